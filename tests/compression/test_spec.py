import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from g2lstm.compression.matrix import Dense, Grid, GroupInt4, LowRank, RowIntegers
from g2lstm.compression.methods import encode, to_grid, to_int4, to_int8, to_low_rank
from g2lstm.compression.spec import GROUPS, PRESETS, Spec, Steps
from g2lstm.errors import G2Error

NUMBERS = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
INTEGERS = st.sampled_from(["int8", "int6", "int4"])
STEPS = st.one_of(
    NUMBERS.map(lambda step: Steps(step=step)),
    st.tuples(NUMBERS, NUMBERS).map(lambda pair: Steps(step=min(pair), limit=max(pair))),
    st.builds(Steps, rank=st.integers(1, 10**6), integers=st.none() | INTEGERS),
    st.builds(Steps, integers=INTEGERS),
)
SPECS = st.dictionaries(st.sampled_from(GROUPS), STEPS, min_size=1).map(lambda groups: Spec(**groups))
WORDS = [*GROUPS, *PRESETS, "round", "clip", "svd", "int8", "int4", "=", ":", ",", ";", " ", "\n"]
NEARLY = st.lists(st.sampled_from([*WORDS, "0.2", "1e400", "nan", "-1", "64", "x"]), max_size=12).map("".join)


def problems_of(text: str) -> str:
    with pytest.raises(G2Error) as caught:
        Spec.parse(text)
    return str(caught.value)


def test_a_spec_of_every_kind():
    spec = Spec.parse("gates=round:0.2,clip:0.4; cell=svd:64,int8; embedding=int4; softmax=svd:8")
    assert spec.gates == Steps(step=0.2, limit=0.4)
    assert spec.cell == Steps(rank=64, integers="int8")
    assert spec.embedding == Steps(integers="int4")
    assert spec.softmax == Steps(rank=8)
    assert Spec.parse("cell=round:1") == Spec(cell=Steps(step=1.0))


def test_white_space_and_order_do_not_matter():
    spec = Spec.parse("\tcell = int8 ;\n gates= clip : .4 ,round:  2e-1 ")
    assert spec == Spec.parse("gates=round:0.2,clip:0.4;cell=int8")
    assert str(spec) == "gates=round:0.2,clip:0.4; cell=int8"


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
        ("weights=int8", "'weights' is not a group; there are: gates, cell, embedding, softmax"),
        ("biases=int8", "'biases' is not a group; there are: gates, cell, embedding, softmax"),
        ("=int8", "'' is not a group; there are: gates, cell, embedding, softmax"),
        ("gates=Int8", "gates: 'Int8' is not a step; did you mean int8?"),
        ("gates=quantise:3", "gates: 'quantise' is not a step; there are: round, clip, svd, int8, int6, int4"),
        ("gates=svd:0", "gates: svd:K needs a whole number above 0, got '0'"),
        ("gates=svd:-1", "gates: svd:K needs a whole number above 0, got '-1'"),
        ("gates=svd:2.5", "gates: svd:K needs a whole number above 0, got '2.5'"),
        ("gates=svd", "gates: svd:K needs a whole number above 0, got ''"),
        ("gates=svd:1_0", "gates: svd:K needs a whole number above 0, got '1_0'"),
        ("gates=svd:\u0967", "gates: svd:K needs a whole number above 0, got '\u0967'"),
        ("gates=svd:+1", "gates: svd:K needs a whole number above 0, got '+1'"),
        ("gates=round:1_0", "gates: round:R needs a finite number above 0, got '1_0'"),
        ("gates=round:\uff11.5", "gates: round:R needs a finite number above 0, got '\uff11.5'"),
        ("gates=round:0", "gates: round:R needs a finite number above 0, got '0'"),
        ("gates=round:-0.2", "gates: round:R needs a finite number above 0, got '-0.2'"),
        ("gates=round:nan", "gates: round:R needs a finite number above 0, got 'nan'"),
        ("gates=round:inf", "gates: round:R needs a finite number above 0, got 'inf'"),
        ("gates=round:1e400", "gates: round:R needs a finite number above 0, got '1e400'"),
        ("gates=round:x", "gates: round:R needs a finite number above 0, got 'x'"),
        ("gates=round:0.2,clip:nan", "gates: clip:C needs a finite number above 0, got 'nan'"),
        ("gates=round:0.2,clip:0.1", "gates: clip:0.1 leaves no level but 0 of round:0.2; C must be at least R"),
        ("gates=clip:0.4", "gates: clip needs the levels that rounding makes; write round:R,clip:C"),
        ("gates=clip:0.4,int8", "gates: clip needs the levels that rounding makes; write round:R,clip:C"),
        ("gates=int8:3", "gates: int8 takes no number, got '3'; write int8 alone"),
        ("gates=int8,int4", "gates: int8 and int4 do not go together; a group takes one of: round:R  round:R,clip:C  "),
        ("gates=round:1,int8", "gates: round and int8 do not go together; a group takes one of: "),
        ("gates=svd:8,round:1", "gates: svd and round do not go together; a group takes one of: "),
        ("gates=svd:8,int8,int4", "gates: svd and int8 and int4 do not go together; a group takes one of: "),
        ("gates=int8,svd:8", "gates: svd comes first, and int8 keeps its factors; write svd:K,int8"),
        ("gates=int8,int8", "gates: int8 is given twice"),
        ("gates=int8;gates=int4", "gates is given twice; write its steps after one gates="),
        ("gates=", "gates: there is no step; a group takes one of: "),
        ("gates=int8,", "gates: there is an empty step; take out the ',' that is too many"),
        ("gates=int8;", "there is an empty part; take out the ';' that is too many"),
        ("gates=int8; cell", "'cell' must have the form group=step,step"),
        ("", "the compression spec is empty; write groups with their steps, as in "),
        (" \n", "the compression spec is empty; write groups with their steps, as in "),
        (
            "paper-lm-clp",
            "no preset of compression is called 'paper-lm-clp'; did you mean paper-lm-clip? "
            'Or write groups with their steps, as in "gates=round:0.2,clip:0.4; cell=int8"',
        ),
        ("int8", "no preset of compression is called 'int8'; there are: paper-lm-round, paper-lm-clip, "),
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
        "  cell: 'rond' is not a step; did you mean round?",
        "  softmax: clip:C needs a finite number above 0, got '0'",
        "  softmax: svd:K needs a whole number above 0, got '0'",
        "  softmax: clip needs the levels that rounding makes; write round:R,clip:C",
        "  softmax is given twice; write its steps after one softmax=",
        "  softmax: int8 takes no number, got '1'; write int8 alone",
        "  there is an empty part; take out the ';' that is too many",
        "  'embedding' must have the form group=step,step",
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("gates=round:0.2", Grid),
        ("gates=round:0.2,clip:0.4", Grid),
        ("gates=svd:3", LowRank),
        ("gates=svd:3,int4", LowRank),
        ("gates=int8", RowIntegers),
        ("gates=int4", GroupInt4),
        ("cell=int8", Dense),
    ],
)
def test_a_spec_does_what_its_steps_say(text, kind):
    values = torch.randn(11, 37)
    got = encode(values, Spec.parse(text).gates)
    assert isinstance(got, kind)
    assert got.shape == (11, 37)
    assert got.dequantize().dtype == torch.float32
    by_hand = {
        "gates=round:0.2": lambda: to_grid(values, 0.2),
        "gates=round:0.2,clip:0.4": lambda: to_grid(values, 0.2, 0.4),
        "gates=svd:3": lambda: to_low_rank(values, 3),
        "gates=svd:3,int4": lambda: to_low_rank(values, 3, "int4"),
        "gates=int8": lambda: to_int8(values),
        "gates=int4": lambda: to_int4(values),
        "cell=int8": lambda: Dense(values),
    }[text]()
    assert got.tensors().keys() == by_hand.tensors().keys()
    assert all(torch.equal(tensor, by_hand.tensors()[name]) for name, tensor in got.tensors().items())
    assert got.stored_bytes == by_hand.stored_bytes


def test_an_unknown_kind_of_integers():
    with pytest.raises(G2Error, match="weights are kept as 'int8', 'int6' or 'int4', got 'int3'"):
        encode(torch.randn(2, 2), Steps(integers="int3"))
