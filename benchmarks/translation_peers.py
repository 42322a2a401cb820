"""How many sentences per second our translation session and JoeyNMT's recurrent model translate, interleaved.

python benchmarks/translation_peers.py [--rounds N] [--sentences N] [--json]

Both have random weights and the sizes of the recipe `multi30k-small`; all sources and translations have the same
length, so both do the same number of steps. Needs `pip install --no-deps joeynmt sentencepiece subword-nmt sacremoses
importlib_metadata lazy_importer` (tried with 2.3.0; its own requirements would replace our protobuf). OpenNMT-py 3.5.1
can't take part: it requires a torch below 2.3.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace

import torch
from joeynmt.model import build_model
from joeynmt.search import beam_search
from joeynmt.vocabulary import Vocabulary

from g2lstm.cli.bench import print_reports
from g2lstm.compression.model import compress
from g2lstm.lab.bench.measure import Field, Report, timings
from g2lstm.runs.compressed import interleaved
from g2lstm.tasks.mt.beam import translate
from g2lstm.tasks.mt.model import TranslationModel

WORDS, WIDTH, LAYERS, BEAM, LENGTH = 6000, 256, 2, 5, 14  # Multi30k has 13 to 14 sub-words in a sentence
UNK, PAD, BOS, EOS = range(4)
PEER = "JoeyNMT"


def peer() -> torch.nn.Module:
    """JoeyNMT's encoder and decoder of LSTMs, with bilinear ("luong") attention, as we have."""
    symbols = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None, lang_tags=[],
        unk_id=UNK, pad_id=PAD, bos_id=BOS, eos_id=EOS, sep_id=None,
    )  # fmt: skip
    vocabulary = Vocabulary([f"w{number}" for number in range(WORDS - 4)], symbols)
    side = {"type": "recurrent", "rnn_type": "lstm", "hidden_size": WIDTH, "num_layers": LAYERS}
    side |= {"embeddings": {"embedding_dim": WIDTH}}
    decoder = side | {"attention": "luong", "input_feeding": True, "init_hidden": "bridge"}
    return build_model({"encoder": side, "decoder": decoder}, vocabulary, vocabulary).eval()


def translate_with_peer(model: torch.nn.Module, sources: Sequence[Sequence[int]], at_once: int) -> None:
    """Its beam search, batch by batch."""
    for first in range(0, len(sources), at_once):
        batch = torch.tensor([[*source, EOS] for source in sources[first : first + at_once]])
        mask = torch.ones(len(batch), 1, batch.size(1), dtype=torch.bool)
        lengths = torch.full((len(batch),), batch.size(1))
        with torch.inference_mode():
            encoded, hidden, _, _ = model(return_type="encode", src=batch, src_length=lengths, src_mask=mask)
            beam_search(model, BEAM, encoded, hidden, mask, LENGTH + 1, 1.0, min_output_length=LENGTH)


def measure(rounds: int, sentences: int) -> Report:
    """Batches of 64, and one sentence at a time."""
    torch.manual_seed(0)
    ours, theirs = TranslationModel(WORDS, WORDS, WIDTH, WIDTH, LAYERS, LAYERS).eval(), peer()
    sources = torch.randint(4, WORDS, (sentences, LENGTH)).tolist()
    limits = {"source_eos": EOS, "target_eos": EOS, "min_length": LENGTH, "max_length": LENGTH, "beam": BEAM}
    rows = []
    for at_once in (1, 64):
        jobs: dict[str, Callable[[], object]] = {PEER: partial(translate_with_peer, theirs, sources, at_once)}
        for name, model in {"float32": ours, "int8": compress(ours, "int8"), "small": compress(ours, "small")}.items():
            jobs[f"g2lstm, {name}"] = partial(translate, model, sources, batch_size=at_once, **limits)
        for name, timing in timings(interleaved(jobs, rounds), PEER).items():
            row = {"at_once": at_once, "name": name, "rate": sentences / timing.seconds, "ratio": 1 / timing.ratio}
            rows.append(row)
    fields = (Field("at_once", "at once"), Field("name", "model"), Field("rate", "sentences/s", ",.0f"))
    title = f"beam {BEAM}, {LENGTH} tokens, {torch.get_num_threads()} threads, median of {rounds} rounds"
    return Report(title, (*fields, Field("ratio", f"× {PEER}", ".1f")), rows)


def main() -> None:
    """Reads the arguments, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="at least this many interleaved rounds")
    parser.add_argument("--sentences", type=int, default=64, help="how many to translate")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    print_reports(options.json, measure(options.rounds, options.sentences))


if __name__ == "__main__":
    main()
