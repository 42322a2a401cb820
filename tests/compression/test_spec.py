import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from g2lstm.compression.encodings import Dense, Grid, Integers, LowRank
from g2lstm.compression.spec import GROUPS, PRESETS, Operations, Spec, encode
from g2lstm.errors import G2Error


def operations(**numbers: float | None) -> Operations:
    return Operations(tuple(numbers.items()))


NUMBERS = st.floats(1e-30, 1e30)
INTEGERS = st.sampled_from(["int8", "int6", "int4"])
OPERATIONS = st.one_of(
    NUMBERS.map(lambda step: operations(round=step)),
    st.tuples(NUMBERS, NUMBERS).map(lambda pair: operations(round=min(pair), clip=max(pair))),
    st.integers(1, 10**6).map(lambda rank: operations(svd=rank)),
    st.tuples(st.integers(1, 10**6), INTEGERS).map(lambda pair: operations(svd=pair[0], **{pair[1]: None})),
    INTEGERS.map(lambda name: operations(**{name: None})),
)
SPECS = st.dictionaries(st.sampled_from(GROUPS), OPERATIONS, min_size=1).map(lambda groups: Spec(**groups))
WORDS = [*GROUPS, *PRESETS, "round", "clip", "svd", "int8", "int4", "=", ":", ",", ";", " ", "\n"]
NEARLY = st.lists(st.sampled_from([*WORDS, "0.2", "1e400", "nan", "-1", "64", "x"]), max_size=12).map("".join)


def problems_of(text: str) -> str:
    with pytest.raises(G2Error) as caught:
        Spec.parse(text)
    return str(caught.value)


def test_a_spec_of_every_kind():
    spec = Spec.parse("gates=round:0.2,clip:0.4; cell=svd:64,int8; embedding=int4; softmax=svd:8")
    assert spec.gates == operations(round=0.2, clip=0.4)
    assert spec.cell == operations(svd=64, int8=None)
    assert spec.embedding == operations(int4=None)
    assert spec.softmax == operations(svd=8)
    assert Spec.parse("cell=round:1") == Spec(cell=operations(round=1.0))


def test_white_space_and_order_do_not_matter():
    spec = Spec.parse("\tcell = int8 ;\n gates= clip : .4 ,round:  2e-1 ")
    assert spec == Spec.parse("gates=round:0.2,clip:0.4;cell=int8")
    assert str(spec) == "gates=round:0.2,clip:0.4; cell=int8"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("int8", "; ".join(f"{group}=int8" for group in GROUPS)),
        ("small; cell=int8", PRESETS["small"].replace("cell=int4", "cell=int8")),
        ("lstm: gates=int4; cell=int8; head: keep", "lstm:gates=int4;cell=int8;head:keep"),
        ("svd:64", "; ".join(f"{group}=svd:64" for group in GROUPS)),
        ("svd: svd:64,int8", "svd: svd:64,int8"),  # a module of that name
    ],
)
def test_presets_operations_and_patterns_stand_in_a_spec(text, same):
    assert Spec.parse(text) == Spec.parse(same)
    assert Spec.parse(str(Spec.parse(text))) == Spec.parse(text)


def test_patterns_hold_until_the_next_one():
    spec = Spec.parse("gates=int4; lstm: gates=int8; cell=int8; *.weight_hh*: keep")
    keep = Spec.parse("keep")
    assert spec == Spec(
        gates=operations(int4=None),
        patterns=(("lstm", Spec.parse("gates=int8; cell=int8")), ("*.weight_hh*", keep)),
    )
    assert Spec.of({"lstm": "gates=int8; cell=int8", "*.weight_hh*": keep}).patterns == spec.patterns
    assert str(spec) == "gates=int4; lstm: gates=int8; cell=int8; *.weight_hh*: keep"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a;b": "int8"}, "'a;b' can't name modules or parameters"),
        ({3: "int8"}, "3 can't name modules or parameters"),
        ({"lstm": "int5"}, "lstm: .*no compression preset 'int5'"),
        ({"lstm": "a: int8"}, "lstm: the spec of a pattern can't have patterns of its own"),
        ({"lstm": 4}, "lstm: a compression spec is text such as .*, got 4"),
        ({}, "the compression spec is empty"),
    ],
)
def test_mistakes_in_a_dict(given, message):
    with pytest.raises(G2Error, match=message):
        Spec.of(given)


@given(SPECS)
def test_the_text_of_a_spec_parses_to_an_equal_one(spec):
    text = str(spec)
    assert Spec.parse(text) == spec
    assert str(Spec.parse(text)) == text
    assert Spec.parse(text.replace(" ", "").replace(",", "  ,\n")) == spec


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("paper-lm-round", "gates=round:0.2"),
        ("paper-lm-clip", "gates=round:0.2,clip:0.4"),
        ("paper-lm-svd128", "gates=svd:128"),
        ("paper-lm-svd64", "gates=svd:64"),
        ("paper-mt-round", "gates=round:0.5"),
        ("paper-mt-clip", "gates=round:0.5,clip:1.0"),
        ("paper-mt-svd32", "gates=svd:32"),
        ("paper-mt-svd16", "gates=svd:16"),
    ],
)
def test_presets_of_the_paper(name, text):
    assert str(Spec.parse(f" {name}\n")) == text


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_parses(name):
    assert Spec.parse(name) == Spec.parse(PRESETS[name])
    assert str(Spec.parse(name)) == PRESETS[name]


@given(st.text() | NEARLY | st.text(alphabet="gates=:;,.round0 19e-"))
@example("gates=svd:" + "9" * 5000)
@example("gates=svd:" + "9" * 4000)
@example("gates=round:1e999")
@example("gates=int8\x00")
@example("\ud800=int8")
def test_any_text_parses_or_is_an_error_of_the_caller(text):
    try:
        spec = Spec.parse(text)
    except G2Error:
        return
    assert spec != Spec()
    assert Spec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gate=int8", "the compression spec 'gate=int8': 'gate' is not a group; did you mean gates?"),
        ("weights=int8", "'weights' is not a group; use one of gates, cell, plain, embedding, softmax, linear"),
        ("biases=int8", "'biases' is not a group; use one of gates, cell, plain, embedding, softmax, linear"),
        ("=int8", "'' is not a group; use one of gates, cell, plain, embedding, softmax, linear"),
        ("gates=Int8", "gates: 'Int8' is not an operation; did you mean int8?"),
        (
            "gates=quantise:3",
            "gates: 'quantise' is not an operation; use one of bits, zipf, round, clip, int4, group, int8, int6, "
            "levels, int3, int2, svd",
        ),
        ("gates=svd:0", "gates: svd:K needs an integer above 0, got '0'"),
        ("gates=svd:-1", "gates: svd:K needs an integer above 0, got '-1'"),
        ("gates=svd:2.5", "gates: svd:K needs an integer above 0, got '2.5'"),
        ("gates=svd", "gates: svd:K needs an integer above 0, got ''"),
        ("gates=svd:1_0", "gates: svd:K needs an integer above 0, got '1_0'"),
        ("gates=svd:\u0967", "gates: svd:K needs an integer above 0, got '\u0967'"),
        ("gates=svd:+1", "gates: svd:K needs an integer above 0, got '+1'"),
        ("gates=round:1_0", "gates: round:R needs a finite number above 0, got '1_0'"),
        ("gates=round:\uff11.5", "gates: round:R needs a finite number above 0, got '\uff11.5'"),
        ("gates=round:0", "gates: round:R needs a finite number above 0, got '0'"),
        ("gates=round:-0.2", "gates: round:R needs a finite number above 0, got '-0.2'"),
        ("gates=round:nan", "gates: round:R needs a finite number above 0, got 'nan'"),
        ("gates=round:inf", "gates: round:R needs a finite number above 0, got 'inf'"),
        ("gates=round:1e400", "gates: round:R needs a finite number above 0, got '1e400'"),
        ("gates=round:x", "gates: round:R needs a finite number above 0, got 'x'"),
        ("gates=round:0.2,clip:nan", "gates: clip:C needs a finite number above 0, got 'nan'"),
        ("gates=round:0.2,clip:0.1", "gates: clip:0.1 leaves only the level 0 of round:0.2; C must be at least R"),
        ("gates=clip:0.4", "gates: clip can't stand alone, write round:R,clip:C"),
        ("gates=clip:0.4,int8", "gates: clip and int8 do not go together; a group takes one of: "),
        ("gates=int8:3", "gates: int8 takes no number, got '3'; write int8 alone"),
        (
            "gates=int8,int4",
            "gates: int8 and int4 do not go together; a group takes one of: bits:B  bits:B,zipf  round:R  ",
        ),
        ("gates=round:1,int8", "gates: round and int8 do not go together; a group takes one of: "),
        ("gates=svd:8,round:1", "gates: svd and round do not go together; a group takes one of: "),
        ("gates=svd:8,int8,int4", "gates: svd and int8 and int4 do not go together; a group takes one of: "),
        ("gates=int8,svd:8", "gates: the order matters, write svd:K,int8"),
        ("gates=int8,int8", "gates: int8 is given twice"),
        ("gates=int8;gates=int4", "gates is given twice; write all its operations after one gates="),
        ("gates=", "gates: there is no operation; a group takes one of: "),
        ("gates=int8,", "gates: there is an extra ','; remove it"),
        ("gates=int8;", "there is an extra ';'; remove it"),
        ("gates=int8; cell", "'cell' must have the form group=operation"),
        ("", "the compression spec is empty; write groups with their operations, as in "),
        (" \n", "the compression spec is empty; write groups with their operations, as in "),
        (
            "paper-lm-clp",
            "there is no compression preset 'paper-lm-clp'; did you mean paper-lm-clip? "
            'Or write groups with their operations, as in "gates=round:0.2,clip:0.4; cell=int8"',
        ),
        ("medium", "there is no compression preset 'medium'; use one of paper-lm-round, paper-lm-clip, "),
        ("svd:0", "svd:K needs an integer above 0, got '0'"),
        ("gates=levels:1", "gates: the K of levels:K must be 2 to 128, or an odd number up to 255, got 1"),
        ("gates=levels:130", "gates: the K of levels:K must be 2 to 128, or an odd number up to 255, got 130"),
        ("gates=svd:8,levels:257", "gates: the K of levels:K must be 2 to 128, or an odd number up to 255, got 257"),
        ("gates=levels:5,svd:8", "gates: the order matters, write svd:K,levels:K"),
        ("gates=int2,svd:8,group:32", "gates: the order matters, write svd:K,int2,group:K"),
        ("gates=int2:64", "gates: int2 takes no number, got '64'; write int2 alone"),
        ("gates=int2,group:48", "gates: the K of group:K must be a multiple of 32 up to 4096, got 48"),
        ("gates=int4,group:8192", "gates: the K of group:K must be a multiple of 32 up to 4096, got 8192"),
        ("gates=levels:17,group:32", "gates: group:K goes with at most 16 levels, got 17; leave it out"),
        ("gates=bits:0.9", "gates: the B of bits:B must lie between 1.0 and 6.0, got 0.9"),
        ("gates=bits:8", "gates: the B of bits:B must lie between 1.0 and 6.0, got 8.0"),
        ("gates=bits", "gates: bits:B needs a finite number above 0, got ''"),
        ("gates=zipf", "gates: zipf can't stand alone, write bits:B,zipf"),
        ("gates=svd:8,bits:2", "gates: svd and bits do not go together; a group takes one of: "),
        ("gates=group:32", "gates: group can't stand alone, write int4,group:K"),
        ("gates=int8,group:32", "gates: int8 and group do not go together; a group takes one of: "),
        ("lstm:", "'lstm': '' must have the form group=operation"),
        ("lstm: smal", "'lstm': 'smal' must have the form group=operation"),
        ("lstm: gates=it8", "'lstm': gates: 'it8' is not an operation; did you mean int8?"),
        ("a b: int8", "'a b' can't name modules or parameters"),
    ],
)
def test_one_mistake(text, message):
    got = problems_of(text)
    assert message in got
    assert "\n" not in got


def test_all_mistakes_are_told_at_once():
    got = problems_of("gate=int8,int8; cell=rond:1,clip:2; softmax=clip:0,svd:0; softmax=int8:1;; embedding")
    assert got.splitlines() == [
        "the compression spec 'gate=int8,int8; cell=rond:1,clip:2; softmax=clip:0,svd:0;...' has 10 mistakes:",
        "  'gate' is not a group; did you mean gates?",
        "  'gate': int8 is given twice",
        "  cell: 'rond' is not an operation; did you mean round?",
        "  softmax: clip:C needs a finite number above 0, got '0'",
        "  softmax: svd:K needs an integer above 0, got '0'",
        "  softmax: clip and svd do not go together; a group takes one of: bits:B  bits:B,zipf  round:R  "
        "round:R,clip:C  int4  "
        "int4,group:K  int8  int6  levels:K  levels:K,group:K  int3  int3,group:K  int2  int2,group:K; or svd:K, alone "
        "or before one of those without round",
        "  softmax is given twice; write all its operations after one softmax=",
        "  softmax: int8 takes no number, got '1'; write int8 alone",
        "  there is an extra ';'; remove it",
        "  'embedding' must have the form group=operation",
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("gates=round:0.2", Grid),
        ("gates=round:0.2,clip:0.4", Grid),
        ("gates=svd:3", LowRank),
        ("gates=svd:3,int4", LowRank),
        ("gates=int8", Integers),
        ("gates=int4", Integers),
        ("cell=int8", Dense),
    ],
)
def test_a_spec_does_what_it_says(text, kind):
    values = torch.randn(11, 37)
    got = encode(values, Spec.parse(text).gates)
    assert isinstance(got, kind)
    assert got.shape == (11, 37)
    by_hand = {
        "gates=round:0.2": lambda: Grid.encode(values, {"round": 0.2}),
        "gates=round:0.2,clip:0.4": lambda: Grid.encode(values, {"round": 0.2, "clip": 0.4}),
        "gates=svd:3": lambda: LowRank.encode(values, {"svd": 3}),
        "gates=svd:3,int4": lambda: LowRank.encode(values, {"svd": 3, "int4": None}),
        "gates=int8": lambda: Integers.encode(values, {"int8": None}),
        "gates=int4": lambda: Integers.encode(values, {"int4": None}),
        "cell=int8": lambda: Dense(values.numpy()),
    }[text]()
    assert got.describe() == by_hand.describe()
    assert all(np.array_equal(array, by_hand.packed[name]) for name, array in got.packed.items())
