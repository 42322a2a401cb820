"""`TrainedTranslationModel`: a translation model with its tokenizers, ready to be used from Python."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.mt.detokenize import check_language, detokenize
from g2lstm.tasks.mt.model import TranslationModel
from g2lstm.tasks.mt.recipe import MtRecipe
from g2lstm.tasks.mt.translate import MAX_SOURCE, replace_unknown, translate
from g2lstm.text.pairs import PairFiles, mt_files, read_pairs
from g2lstm.text.registry import partial_pairs
from g2lstm.text.tokenize import EOS, UNK, Tokenizer

SOURCE_TOKENIZER, TARGET_TOKENIZER = "tokenizer.source.json", "tokenizer.target.json"

_WHITE_SPACE = re.compile(r"[ \t\r\n\v\f]+")  # of ASCII; a no-break space is part of a word


class Translation(NamedTuple):
    """One translation of a sentence."""

    text: str
    score: float  # log-probability by length, what the search maximises
    log_probability: float
    source: list[str]  # its tokens for people, with the end of sentence
    target: list[str]
    attention: Tensor | None  # (target, source): where each target token looked
    target_ids: list[int]  # without the end of sentence


class Translator:
    """A translation model and what it needs to read and write text.

    Attributes:
        recipe: what it is trained by.
        source: between source text and token ids.
        target: between target text and token ids.
        model: the module.
    """

    def __init__(self, recipe: MtRecipe, source: Tokenizer, target: Tokenizer, model: TranslationModel) -> None:
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
        max_source: int | None = MAX_SOURCE,
        n_best: int = 1,
        with_attention: bool = False,
        as_text: bool = False,
        eval_gate: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[list[Translation]]:
        """The best translations of each line, best first; a blank line has an empty translation.

        Args:
            lines: source sentences, tokenised as the training text was; white space around them changes nothing.
            beam: hypotheses that are followed; this and the next are the recipe's if not given.
            length_penalty: scores are divided by length to this power.
            max_length: target tokens at most; twice the source and ten more if not given.
            max_source: a line of more tokens is an error; None for no limit.
            n_best: how many translations of a line.
            with_attention: keep where each target token looked.
            as_text: join punctuation to words, as people write; for German and English.
            eval_gate: "soft", "tempered" or "hard"; None for the model's own.
            progress: called with the sentences done and those in all.
        """
        if isinstance(lines, str):
            raise G2Error("lines must be a list of sentences, got one string; give [text], or use translate(text)")
        if as_text:
            check_language(self.recipe.data.target)
        how = self.recipe.evaluate
        lines = [self.cleaned(line) for line in lines]
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
            max_source=max_source,
            n_best=n_best,
            batch_size=how.batch_size,
            keep_attention=with_attention or has_words,
            forbidden=() if has_words else (self.target.unk_id,),
            eval_gate=eval_gate,
            progress=progress,
        )
        results = []
        for line, ids, hypotheses in zip(lines, sources, found, strict=True):
            tokens = [*self.source.readable(ids), EOS] if ids else []
            each = []
            for hypothesis in hypotheses:
                text = self.target.decode(hypothesis.tokens)
                if has_words and hypothesis.attention is not None:
                    words = [self.target.token_of(token) for token in hypothesis.tokens]
                    text = " ".join(replace_unknown(words, self._words(line), hypothesis.attention, unknown=UNK))
                if as_text:
                    text = detokenize(text, self.recipe.data.target)
                attention = hypothesis.attention if with_attention else None
                ends = [*self.target.readable(hypothesis.tokens), EOS] if ids else []
                scores = hypothesis.score, hypothesis.log_probability
                each.append(Translation(text, *scores, tokens, ends, attention, hypothesis.tokens))
            results.append(each)
        return results

    def cleaned(self, line: str) -> str:
        """A line without white space around it; where the text is tokenised, with single spaces between the words."""
        return (_WHITE_SPACE.sub(" ", line) if self.recipe.data.is_tokenized else line).strip()

    def _words(self, line: str) -> list[str]:
        """A line's words as the word tokenizer tells them apart, in their own case."""
        return [line[start:end] for start, end in self.source.backend.encode(line, add_special_tokens=False).offsets]


class TrainedTranslationModel(Translator):
    """A translation model from a run directory, in evaluation mode.

    Attributes:
        run: its directory; the others are those of a `Translator`.
    """

    def __init__(
        self, run: RunDirectory, recipe: MtRecipe, source: Tokenizer, target: Tokenizer, model: TranslationModel
    ) -> None:
        super().__init__(recipe, source, target, model)
        self.run = run

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
        return partial_pairs(name, int(pairs)) if name is not None and pairs.isdecimal() and len(pairs) < 16 else None

    def split(self, split: str, data_dir: Path | None = None) -> tuple[list[str], list[str]]:
        """The sources and the references of a split, as they stand in the files."""
        return read_pairs(self.files(split, data_dir))
