"""Compressed weights in a file and back: exact for every kind and odd size, and no file can do harm."""

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load as load_arrays
from safetensors.torch import save as save_tensors

from g2lstm import G2Error
from g2lstm.compression import storage
from g2lstm.compression.encodings import FORMS, KINDS, Dense, Encoding, Grid
from g2lstm.compression.spec import Spec, encode
from g2lstm.compression.storage import array_of, load, parse_header, save, unpack
from tests.compression import stacks
from tests.fuzz import fuzzed

ALONE = [
    "int8", "int6", "int4", "int4,group:64", "int3", "int3,group:32", "int2", "int2,group:32", "levels:5", "levels:2",
    "levels:3", "levels:128", "levels:255", "levels:5,group:32", "levels:16,group:64",
]  # fmt: skip
STEPS = [
    "round:0.2", "round:0.2,clip:0.4", "round:0.0002", "round:9", "svd:1", "bits:1.5", "bits:6", "bits:2.2,zipf",
    *ALONE, *(f"svd:1,{one}" for one in ALONE),
]  # fmt: skip
SPEC = Spec.parse("gates=round:0.2,clip:0.4; cell=int8; embedding=svd:2,int4")


def matrix_of(steps, rows, columns, seed=0):
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return encode(values, Spec.parse(f"gates={steps}").gates if steps else None)


def toy_matrices():
    return {
        "gate.i": matrix_of("round:0.2,clip:0.4", 5, 7),
        "gate.f": matrix_of("round:0.5", 5, 7, 1),
        "cell.g": matrix_of("int8", 5, 7),
        "cell.o": matrix_of(None, 5, 7),
        "embedding.weight": matrix_of("svd:2,int4", 9, 40),
        "softmax": matrix_of("int4", 3, 33),
        "gate.o": matrix_of("int2", 5, 7),
        "head": matrix_of("levels:3,group:32", 3, 70),
        "words": matrix_of("bits:1.5,zipf", 40, 20),
    }


def pack(matrices):
    """The tensors of a file with these matrices, and its header."""
    content = save(matrices, {}, SPEC, {})
    size = struct.unpack("<Q", content[:8])[0]
    return load_arrays(content), json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["compression"])


def equal(one, other):
    """Whether two encoded matrices are the same to the bit."""
    if type(one) is not type(other) or one.shape != other.shape:
        return False
    if one.describe() != other.describe():
        return False
    ours, theirs = one.pack(), other.pack()
    same = (ours[name].dtype == theirs[name].dtype and np.array_equal(ours[name], theirs[name]) for name in ours)
    return ours.keys() == theirs.keys() and all(same) and np.array_equal(one.decode(), other.decode())


def all_equal(ones, others):
    return ones.keys() == others.keys() and all(equal(ones[name], others[name]) for name in ones)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(save(toy_matrices(), {"bias": torch.arange(3.0)}, SPEC, {"task": "lm"}))
    return path


@settings(max_examples=150)
@given(
    steps=st.sampled_from([None, *STEPS]), rows=st.integers(1, 20), columns=st.integers(1, 70), seed=st.integers(0, 9)
)
def test_every_kind_and_every_odd_size_comes_back_exactly(steps, rows, columns, seed):
    matrices = {"one": matrix_of(steps, rows, columns, seed)}
    tensors, header = pack(matrices)
    again, others = unpack(tensors, header["matrices"])
    assert all_equal(again, matrices)
    assert not others
    assert sum(tensor.nbytes for tensor in tensors.values()) == matrices["one"].stored_bytes


def test_every_encoding_is_among_those_that_are_tested():
    """A new one must be added to STEPS here, and to FORMS in `stacks`, by which the kernel is tested."""
    tested = [[name for name, _ in Spec.parse(f"gates={steps}").gates.numbers] for steps in STEPS]
    assert all([part.partition(":")[0] for part in form.split(",")] in tested for form in FORMS)
    made = {type(stacks.matrix(form, 3, 5, np.random.default_rng(0))) for form in [*stacks.FORMS, "low rank int8 int8"]}
    assert made == set(KINDS.values())


@pytest.mark.parametrize("steps", [None, *STEPS])
@pytest.mark.parametrize("shape", [(1, 1), (1, 33), (33, 1), (1, 64)], ids=str)
def test_vectors_and_single_numbers_come_back_exactly(steps, shape):
    matrices = {"one": matrix_of(steps, *shape)}
    tensors, header = pack(matrices)
    assert all_equal(unpack(tensors, header["matrices"])[0], matrices)


@pytest.mark.parametrize(("steps", "bits"), [("levels:3", 1.6), ("int2", 2), ("levels:5", 7 / 3), ("int3", 3)])
def test_how_many_bits_a_weight_takes(steps, bits):
    """And 16 more per row, or per group of columns."""
    assert matrix_of(steps, 40, 120).stored_bytes * 8 == pytest.approx(40 * (120 * bits + 16), abs=8)
    grouped = matrix_of(f"{steps},group:32", 40, 120)
    assert grouped.stored_bytes * 8 == pytest.approx(40 * (120 * bits + 4 * 16), abs=8)


@pytest.mark.parametrize("code", [-32767, -128, -127, 0, 127, 128, 32767])
def test_extreme_codes(code):
    for codes in ([[code]], [[code, -code]], [[code, 0, 1]]):
        matrices = {"one": Grid(np.array(codes, np.int8 if abs(code) < 128 else np.int16), 0.1)}
        tensors, header = pack(matrices)
        assert all_equal(unpack(tensors, header["matrices"])[0], matrices)


def test_a_file_holds_everything(file):
    stored = load(file)
    assert all_equal(stored.matrices, toy_matrices())
    assert stored.others.keys() == {"bias"}
    assert torch.equal(stored.others["bias"], torch.arange(3.0))
    assert stored.spec == SPEC


def test_equal_matrices_are_equal_files():
    facts = {f"fact {number}": str(number) for number in range(9)}
    given = [facts, dict(reversed(facts.items()))]
    assert len({save(toy_matrices(), {"bias": torch.arange(3.0)}, SPEC, each) for each in given * 2}) == 1


def test_the_header_can_be_read_by_people_and_other_programs(file):
    with safe_open(file, framework="pt") as opened:
        metadata, names = opened.metadata(), set(opened.keys())
    assert metadata["task"] == "lm"
    header = json.loads(metadata["compression"])
    assert header["version"] == 1
    assert header["spec"] == str(SPEC)
    # 35 codes of five levels are twelve words of seven bits, eleven bytes.
    assert header["matrices"]["gate.i"] == {
        "kind": "grid", "shape": [5, 7], "step": 0.2, "lowest": -2, "levels": 5, "bits_per_weight": round(88 / 35, 3),
    }  # fmt: skip
    assert header["matrices"]["embedding.weight"]["rank"] == 2
    assert header["matrices"]["embedding.weight"]["left"]["kind"] == "int4"
    assert {"gate.i.codes", "cell.g.scales", "cell.o.values", "embedding.weight.right.scales", "bias"} <= names


def test_five_levels_take_less_than_three_bits_in_the_file(tmp_path):
    weights = {"one": matrix_of("round:0.2,clip:0.4", 200, 300)}
    size = len(save(weights, {}, Spec.parse("gates=round:0.2,clip:0.4"), {}))
    assert size * 8 < 2.5 * 200 * 300


def test_names_that_clash_are_refused():
    matrix = matrix_of("int8", 2, 3)
    with pytest.raises(G2Error, match="two tensors in the file would have the name 'a.codes'"):
        save({"a": matrix}, {"a.codes": torch.zeros(1)}, SPEC, {})
    with pytest.raises(G2Error, match="two tensors in the file would have the name 'a.left.codes'"):
        pack({"a": matrix_of("svd:1,int8", 2, 3), "a.left": matrix})
    tensors, header = pack({"a": matrix_of("svd:1,int8", 2, 3)})
    entries = header["matrices"] | {"a.left": header["matrices"]["a"]["left"]}
    with pytest.raises(G2Error, match="two matrices in its header have the tensor 'a.left.codes'"):
        unpack(tensors, entries)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "in version 2 of the format, and this g2lstm reads up to 1; install a newer g2lstm"),
        ({"version": 2**40}, "no version"),
        ({"version": True}, "no version"),
        ({"version": "1"}, "no version"),
        ({"version": None}, "no version"),
        ({"matrices": []}, r"must have an object as its matrices, got \[\]"),
        ({"matrices": None}, "must have an object as its matrices, got None"),
        ({"bits_per_weight": "4"}, "a decimal number as its bits_per_weight"),
        ({"spec": 3}, "must have text as its spec, got 3"),
        ({"sha256": {}}, "must have text as its sha256, got {}"),
        ({"more": 1}, "has an unknown key, 'more'"),
    ],
)
def test_headers_that_are_wrong(change, message):
    _, header = pack(toy_matrices())
    with pytest.raises(G2Error, match=message):
        parse_header(json.dumps(header | change))


@pytest.mark.parametrize("key", ["version", "spec", "bits_per_weight", "matrices", "sha256"])
def test_headers_that_lack_something(key):
    _, header = pack(toy_matrices())
    del header[key]
    with pytest.raises(G2Error, match=f"(has no|as its) {key}"):
        parse_header(json.dumps(header))


DEEP: list = []
for _ in range(900):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "gate.i",
            {"kind": "pickle"},
            "grid, int4, int8, int6, levels, grouped_levels, low_rank, got 'pickle'",
        ),
        ("gate.i", {"kind": ["grid"]}, "must be of kind"),
        ("gate.i", {"kind": DEEP}, "must be of kind"),
        ("gate.i", {"shape": [5]}, "a shape of rows and columns"),
        ("gate.i", {"shape": [0, 7]}, "a shape of rows and columns"),
        ("gate.i", {"shape": [-5, -7]}, "a shape of rows and columns"),
        ("gate.i", {"shape": [5.0, 7]}, "a shape of rows and columns"),
        ("gate.i", {"shape": [True, 35]}, "a shape of rows and columns"),
        ("gate.i", {"shape": [2**31, 7]}, "a shape of rows and columns"),
        ("gate.i", {"shape": DEEP}, "a shape of rows and columns"),
        ("gate.i", {"shape": [2**31 - 1, 2**31 - 1]}, "the tensor 'gate.i.codes' must be"),
        ("gate.i", {"shape": [5, 8]}, "the tensor 'gate.i.codes' must be"),
        ("gate.i", {"shape": [7, 5]}, None),
        ("gate.i", {"step": -0.2}, "must lie between"),
        ("gate.i", {"step": float("nan")}, "must lie between"),
        ("gate.i", {"step": float("inf")}, "must lie between"),
        ("gate.i", {"step": 1}, "decimal number such as 0.2 as its step"),
        ("gate.i", {"step": None}, "decimal number such as 0.2 as its step"),
        ("gate.i", {"levels": 1}, "a levels of 2 to 65536, got 1"),
        ("gate.i", {"levels": 10**3000}, "a levels of 2 to 65536"),
        ("gate.i", {"levels": 4}, "the tensor 'gate.i.codes' must be"),
        ("gate.i", {"lowest": -40000}, "a lowest of"),
        ("gate.i", {"lowest": 32767}, "codes of 'gate.i' must be at most 32767"),
        ("gate.i", {"bits_per_weight": 1.0}, "the header does not match the tensors of 'gate.i'"),
        ("gate.i", {"bits_per_weight": DEEP}, "as its bits_per_weight"),
        ("gate.i", {"extra": 1}, "of kind grid must have levels, lowest, step"),
        ("cell.g", {"kind": "dense"}, "the tensor 'cell.g.values' is missing"),
        ("cell.o", {"kind": "int8"}, "the tensor 'cell.o.codes' is missing"),
        ("softmax", {"group": 0}, "a group of 8 to 4096"),
        ("softmax", {"group": -32}, "a group of 8 to 4096"),
        ("softmax", {"group": 10**30}, "a group of 8 to 4096"),
        ("softmax", {"group": 4104}, "a group of 8 to 4096"),
        ("softmax", {"group": 12}, "a group that is a multiple of 8, got 12"),
        ("softmax", {"group": 16}, "the tensor 'softmax.scales' must be"),
        ("gate.o", {"levels": 1}, "a levels of 2 to 255"),
        ("gate.o", {"levels": 200}, "must be 2 to 128, or an odd number up to 255, got 200"),
        ("gate.o", {"levels": 5}, "the tensor 'gate.o.codes' must be"),
        ("gate.o", {"kind": "grouped_levels"}, "of kind grouped_levels must have group, levels"),
        ("gate.o", {"kind": "grouped_levels", "group": 32}, "the tensor 'gate.o.scales' must be"),
        ("words", {"bytes": 19}, "a bytes of 20 to 2147483647, got 19"),
        ("words", {"common": 0}, "a common of 1 to 2147483647, got 0"),
        ("words", {"kind": "entropy"}, "of kind entropy must have bytes"),
        ("words", {"bytes": 10**9}, "the tensor 'words.codes' must be"),
        ("words", {"shape": [40, 21]}, "the codes of 'words' are damaged"),
        ("words", {"shape": [20, 40]}, "the codes of 'words' are damaged"),
        ("words", {"kind": "dense"}, "of kind dense must have no further keys"),
        ("head", {"group": 48}, "a group that is a multiple of 32, got 48"),
        ("head", {"group": 64}, "the tensor 'head.scales' must be"),
        ("head", {"levels": 17}, "a levels of 2 to 16"),
        ("embedding.weight", {"rank": 3}, "its left factor must be 9 x 3"),
        ("embedding.weight", {"rank": 10}, "a rank of 1 to 9"),
        (
            "embedding.weight",
            {"left": None},
            "must be of kind dense, half, int4, int8, int6, levels, grouped_levels, got",
        ),
        ("embedding.weight", {"shape": [9, 41]}, "its right factor must be 2 x 41"),
    ],
)
def test_entries_that_are_wrong(name, change, message):
    tensors, header = pack(toy_matrices())
    header["matrices"][name] = header["matrices"][name] | change
    if message is None:
        assert unpack(tensors, header["matrices"])[0][name].shape == (7, 5)
        return
    with pytest.raises(G2Error, match=message) as raised:
        unpack(tensors, header["matrices"])
    assert len(str(raised.value)) < 400


def test_a_factor_is_not_of_low_rank_itself():
    tensors, header = pack(toy_matrices())
    entry = header["matrices"]["embedding.weight"]
    entry["left"] = entry | {"shape": [9, 2]}
    with pytest.raises(G2Error, match="int6, levels, grouped_levels, got 'low_rank'"):
        unpack(tensors, header["matrices"])


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("gate.i.codes", torch.zeros(11, dtype=torch.int8), r"must be uint8 \(11,\), got int8 \(11,\)"),
        ("gate.i.codes", torch.full((11,), 255, dtype=torch.uint8), "damaged: one of them is outside the 5 levels"),
        ("cell.g.scales", torch.full((5,), torch.nan), "'cell.g.scales' holds NaN or numbers beyond 1e"),
        ("cell.g.scales", torch.full((5,), -3e38), "'cell.g.scales' holds NaN or numbers beyond 1e"),
        ("cell.g.scales", torch.zeros(5).half(), "must be float32"),
        ("cell.g.scales", torch.zeros(5).bfloat16(), "must be float32"),
        ("cell.g.scales", torch.zeros(4), r"must be float32 \(5,\), got float32 \(4,\)"),
        ("cell.o.values", torch.full((5, 7), torch.inf), "'cell.o.values' holds NaN or numbers beyond"),
        ("softmax.scales", torch.full((3, 2), torch.inf).half(), "'softmax.scales' holds NaN or numbers beyond"),
    ],
)
def test_tensors_that_are_wrong(name, tensor, message):
    tensors, header = pack(toy_matrices())
    with pytest.raises(G2Error, match=message):
        unpack(tensors | {name: array_of(tensor)}, header["matrices"])


def test_half_numbers_must_be_finite_too():
    tensors, header = pack({"a": Dense(np.ones((2, 3), np.float16))})
    broken = {"a.values": np.full((2, 3), np.inf, np.float16)}
    with pytest.raises(G2Error, match="'a.values' holds NaN or numbers beyond"):
        unpack(tensors | broken, header["matrices"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not usable JSON"),
        ("[1]", "must be a table, got \\[1\\]"),
        ('{"version": 1, "version": 1}', "a key appears twice"),
        ('{"version": NaN}', "NaN is not a number"),
        ('{"version": -Infinity}', "-Infinity is not a number"),
        ('{"version": ' + "9" * 5000 + "}", "not usable JSON"),
        ("[" * 100_000, "not usable JSON"),
        ('{"a":' * 100_000, "not usable JSON"),
    ],
)
def test_text_that_is_no_header(text, message):
    with pytest.raises(G2Error, match=message):
        parse_header(text)


def rewritten(path, *, tensors=None, **changes):
    """The file with other tensors, or another header, sealed with a checksum that is right."""
    with safe_open(path, framework="pt") as opened:
        metadata, found = opened.metadata(), {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    header = json.loads(metadata.pop("compression")) | changes
    found = found | (tensors or {})
    header["sha256"] = storage._checksum({name: array_of(tensor) for name, tensor in found.items()}, header, metadata)
    path.write_bytes(save_tensors(found, {**metadata, "compression": json.dumps(header)}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spec": "gates=bogus"}, "'bogus' is not an operation"),
        ({"spec": "cell=int8;gates=int8"}, "its header must name a spec, got 'cell=int8;gates=int8'"),
        ({"version": 7}, "install a newer g2lstm$"),
        ({"bits_per_weight": 99.0}, "the header's bits_per_weight must be"),
        ({"tensors": {"cell.g.scales": torch.zeros(4)}}, "'cell.g.scales' must be"),
        ({"tensors": {"x": torch.zeros(2, dtype=torch.complex64)}}, "'x' is C64"),
        ({"tensors": {"bias": torch.tensor([0, torch.nan, 0])}}, "the tensor 'bias' holds NaN or infinity; restore it"),
        ({"tensors": {"bias": torch.full((3,), -torch.inf)}}, "the tensor 'bias' holds NaN or infinity; restore it"),
        ({"tensors": {"x": torch.zeros(2, 0)}}, "'x' is F32 .2, 0., which cannot be weights"),
    ],
)
def test_files_that_are_wrong_but_for_their_checksum(file, changes, message):
    rewritten(file, **changes)
    with pytest.raises(G2Error, match=message) as raised:
        load(file)
    assert str(file) in str(raised.value)


def test_a_file_without_a_header(tmp_path):
    path = tmp_path / "plain.safetensors"
    path.write_bytes(save_tensors({"a": torch.zeros(2)}))
    with pytest.raises(G2Error, match="not usable JSON"):
        load(path)
    with pytest.raises(G2Error, match="can't read"):
        load(tmp_path / "missing")
    with pytest.raises(G2Error, match="can't read"):
        load(tmp_path)


def raw(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 8,
        b"\xff" * 64,
        raw({"a": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}, b"\0" * 3),
        raw({"a": {"dtype": "F32", "shape": [2**63, 0], "data_offsets": [0, 0]}}, b""),
        raw({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}, b"\0" * 4),
    ],
)
def test_bytes_that_are_no_file(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(G2Error, match="can't read"):
        load(path)


@fuzzed(few=30, many=300)
def test_any_damage_is_noticed_or_changes_nothing(tmp_path_factory, data):
    content = bytearray(save(toy_matrices(), {"bias": torch.arange(3.0)}, SPEC, {"task": "lm"}))
    for _ in range(data.draw(st.integers(1, 3))):
        match data.draw(st.sampled_from(["flip", "cut", "insert", "swap"])):
            case "flip":
                content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                start = data.draw(st.integers(0, len(content) - 2))
                del content[start : start + data.draw(st.integers(1, 40))]
                content = content or bytearray(b"\0")
            case "insert":
                start = data.draw(st.integers(0, len(content) - 1))
                content[start:start] = data.draw(st.binary(min_size=1, max_size=9))
            case "swap":
                one, other = (data.draw(st.integers(0, len(content) - 1)) for _ in range(2))
                content[one], content[other] = content[other], content[one]
    path = tmp_path_factory.mktemp("fuzz") / "model.safetensors"
    path.write_bytes(content)
    try:
        stored = load(path)
    except G2Error:
        return
    assert all_equal(stored.matrices, toy_matrices())
    assert torch.equal(stored.others["bias"], torch.arange(3.0))
    assert stored.spec == SPEC


def test_every_flipped_byte_of_a_tensor_is_noticed(file):
    content = file.read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    assert len(content) - start > 300
    for place in range(start, len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(G2Error, match="its checksum does not match"):
            load(file)


NONSENSE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["grid", "int8", "low_rank", "dense", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@fuzzed(few=40, many=400)
def test_a_header_made_up_is_refused_or_gives_matrices(data):
    """A stranger can make a checksum too: whatever the header says, there is one error, or matrices that work."""
    tensors, header = pack(toy_matrices())
    for _ in range(data.draw(st.integers(1, 3))):
        table = header
        while True:
            key = data.draw(st.sampled_from(sorted(table)))
            if isinstance(table[key], dict) and table[key] and data.draw(st.booleans()):
                table = table[key]
                continue
            break
        match data.draw(st.sampled_from(["replace", "near", "delete", "copy"])):
            case "replace":
                table[key] = data.draw(NONSENSE)
            case "near" if isinstance(table[key], int | float):
                table[key] += data.draw(st.sampled_from([-1, 1, 2**31, 0.5]))
            case "near" if isinstance(table[key], list) and table[key]:
                table[key] = table[key][::-1]
            case "delete" if len(table) > 1:
                del table[key]
            case "copy":
                table[data.draw(st.sampled_from(sorted(table)))] = table[key]
    try:
        matrices, _ = unpack(tensors, parse_header(json.dumps(header))["matrices"])
    except G2Error:
        return
    for matrix in matrices.values():
        assert isinstance(matrix, Encoding)
        assert matrix.decode().shape == matrix.shape
