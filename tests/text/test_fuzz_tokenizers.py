"""A tokenizer's file holds a vocabulary that fits, or is a clear error; the library never sees anything else."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from g2lstm.errors import G2Error
from g2lstm.text.tokenize import Tokenizer, train_bpe_tokenizer, train_word_tokenizer
from tests.fuzz import changed, damaged, fuzzed

LINES = ["the cat sat on the mat", "a dog"]
FILES = [
    train_word_tokenizer(LINES).to_json(),
    train_bpe_tokenizer(LINES * 3, vocabulary=266, prefix_space=True, is_tokenized=True, lowercase=True).to_json(),
    train_bpe_tokenizer(LINES * 3, vocabulary=266, prefix_space=True, is_cleaning=True).to_json(),
]


def check(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with suppress(G2Error):
        use(Tokenizer.load(path))


def use(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the ant \ud7ff sat\x00 <eos> \N{GRINNING FACE}")
    assert all(0 <= one < len(tokenizer) for one in ids)
    assert isinstance(tokenizer.decode([*ids, *range(len(tokenizer))]), str)
    assert [tokenizer.token_of(one) for one in range(len(tokenizer))]


@fuzzed()
def test_damaged_files(tmp_path: Path, data: Any) -> None:
    check(tmp_path / "tokenizer.json", damaged(data, data.draw(st.sampled_from(FILES)).encode()))


@fuzzed()
def test_files_that_say_something_else(tmp_path: Path, data: Any) -> None:
    content = json.dumps(changed(data, json.loads(data.draw(st.sampled_from(FILES)))))
    check(tmp_path / "tokenizer.json", content.encode())


SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
PADDING = {
    "strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
    "pad_token": "[PAD]",
}  # fmt: skip
ADDED = {"id": 999, "content": "q", "single_word": False, "lstrip": False, "rstrip": False, "special": False}


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": SPLIT},  # takes time without bound
        {"padding": PADDING},  # takes memory without bound
        {"truncation": {"max_length": 0, "strategy": "LongestFirst", "stride": 10, "direction": "Right"}},
        {"added_tokens": [{**ADDED, "normalized": True}]},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}},  # these make the library panic
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
        {"decoder": {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        {"normalizer": {"type": "Prepend", "prepend": "a" * 1000}},
        {"model": {"unk_token": "no such token"}},
        {"model": {"dropout": 0.5}},
        {"model": {"continuing_subword_prefix": "##"}},
        {"new": 1},
    ],
)
@pytest.mark.parametrize("content", FILES, ids=["word", "bpe", "clean"])
def test_settings_that_training_never_writes_are_refused(tmp_path: Path, content: str, change: dict[str, Any]) -> None:
    said = json.loads(content)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**said, **change, "model": {**said["model"], **change.get("model", {})}}))
    with pytest.raises(G2Error, match="it has settings that training never writes"):
        Tokenizer.load(path)


def test_a_file_of_an_older_library_says_less(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    said = json.loads(FILES[1])
    for left_out in ("ignore_merges", "byte_fallback"):
        del said["model"][left_out]
    path.write_text(json.dumps(said))
    assert json.loads(Tokenizer.load(path).to_json()) == json.loads(FILES[1])


@pytest.mark.parametrize(
    "vocabulary",
    [
        {"<unk>": 0, "<eos>": 1, "a": 3}, {"<unk>": 0, "<eos>": 0}, {"<unk>": 1, "<eos>": 2}, {"<unk>": 0, "<eos>": -1},
        {"<unk>": 0, "<eos>": 2**32}, {"<unk>": 0, "<eos>": 10**30}, {"<unk>": 0, "<eos>": 1.0}, {"<unk>": False},
        [], None, {"<unk>": 0, "<eos>": "1"},
    ],
)  # fmt: skip
def test_ids_that_a_model_would_not_have(tmp_path: Path, vocabulary: Any) -> None:
    said = json.loads(FILES[0])
    said["model"]["vocab"] = vocabulary
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(said))
    with pytest.raises(G2Error, match="the ids of its tokens must be 0, 1, 2"):
        Tokenizer.load(path)
