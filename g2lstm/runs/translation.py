"""`TrainedTranslationModel`: a translation model with its tokenizers, ready to be used from Python."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from g2lstm.config.mt import MtRecipe
from g2lstm.data.pairs import PairFiles, mt_files
from g2lstm.data.registry import partial_pairs
from g2lstm.data.text import read_pieces
from g2lstm.data.tokenize import EOS, UNK, Tokenizer
from g2lstm.errors import G2Error
from g2lstm.mt.detokenize import detokenize
from g2lstm.mt.model import TranslationModel
from g2lstm.mt.translate import replace_unknown, translate
from g2lstm.runs.directory import RunDirectory

SOURCE_TOKENIZER, TARGET_TOKENIZER = "tokenizer.source.json", "tokenizer.target.json"


class Translation(NamedTuple):
    """One translation of a sentence."""

    text: str
    score: float  # log-probability by length, what the search maximises
    log_probability: float
    source: list[str]  # its tokens, with the end of sentence
    target: list[str]
    attention: Tensor | None  # (target, source): where each target token looked


class TrainedTranslationModel:
    """A translation model from a run directory.

    Attributes:
        run: its directory.
        recipe: what it was trained by.
        source: between source text and token ids.
        target: between target text and token ids.
        model: the module, in evaluation mode.
    """

    def __init__(
        self, run: RunDirectory, recipe: MtRecipe, source: Tokenizer, target: Tokenizer, model: TranslationModel
    ) -> None:
        self.run = run
        self.recipe = recipe
        self.source = source
        self.target = target
        self.model = model

    def translate(self, text: str, *, beam: int | None = None, as_text: bool = False) -> str:
        """The best translation of each line of a text; see `search` for more of them.

        Args:
            text: tokenised as the training text was.
            beam: hypotheses that are followed; the recipe's if not given.
            as_text: join punctuation to words, as people write; for German and English.
        """
        found = self.search(text.removesuffix("\n").split("\n"), beam=beam, as_text=as_text)
        return "\n".join(best[0].text for best in found)

    def search(
        self,
        lines: Sequence[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
        n_best: int = 1,
        with_attention: bool = False,
        as_text: bool = False,
        eval_gate: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[list[Translation]]:
        """The best translations of each line, best first; an empty line has an empty translation.

        Args:
            lines: source sentences, tokenised as the training text was.
            beam: hypotheses that are followed; this and the next are the recipe's if not given.
            length_penalty: scores are divided by length to this power.
            max_length: target tokens at most; twice the source and ten more if not given.
            n_best: how many translations of a line.
            with_attention: keep where each target token looked.
            as_text: join punctuation to words, as people write; for German and English.
            eval_gate: "soft", "tempered" or "hard"; None for the model's own.
            progress: called with the sentences done and those in all.
        """
        how = self.recipe.evaluate
        sources = self.source.encode_lines(lines)
        has_words = self.target.kind == "word"  # may say <unk>, for which the attention then finds a source word
        found = translate(
            self.model,
            sources,
            source_eos=self.source.eos_id,
            target_eos=self.target.eos_id,
            beam=how.beam if beam is None else beam,
            length_penalty=how.length_penalty if length_penalty is None else length_penalty,
            max_length=max_length,
            n_best=n_best,
            batch_size=how.batch_size,
            keep_attention=with_attention or has_words,
            eval_gate=eval_gate,
            progress=progress,
        )
        results = []
        for line, ids, hypotheses in zip(lines, sources, found, strict=True):
            tokens = [*map(self.source.token_of, ids), EOS] if ids else []
            each = []
            for hypothesis in hypotheses:
                words = [self.target.token_of(token) for token in hypothesis.tokens]
                text = self.target.decode(hypothesis.tokens)
                if has_words and hypothesis.attention is not None:
                    text = " ".join(replace_unknown(words, line.split(), hypothesis.attention, unknown=UNK))
                if as_text:
                    text = detokenize(text, self.recipe.data.target)
                attention = hypothesis.attention if with_attention else None
                ends = [*words, EOS] if ids else []
                each.append(Translation(text, hypothesis.score, hypothesis.log_probability, tokens, ends, attention))
            results.append(each)
        return results

    def files(self, split: str, data_dir: Path | None = None) -> PairFiles:
        """The text files of a split of the data that the model was trained on."""
        data = self.recipe.data
        files = mt_files(data.name, None if data.path is None else Path(data.path), data.source, data.target, data_dir)
        if split not in files:
            raise G2Error(f"there is no split {split!r}; choose one of {', '.join(files)}")
        return files[split]

    @property
    def partial(self) -> str | None:
        """How much of its data set the model was trained on, where that was not all of it."""
        name, pairs = self.recipe.data.name, self.run.training_facts().get("train_pairs", "")
        return partial_pairs(name, int(pairs)) if name is not None and pairs.isdigit() else None

    def split(self, split: str, data_dir: Path | None = None) -> tuple[list[str], list[str]]:
        """The sources and the references of a split, as they stand in the files."""
        files = self.files(split, data_dir)
        sources, references = ([piece.text for piece in read_pieces(file)] for file in files)
        if len(sources) != len(references):
            raise G2Error(
                f"{files.source} has {len(sources)} lines and {files.target} {len(references)}; line by line they must "
                "be translations of each other"
            )
        return sources, references
