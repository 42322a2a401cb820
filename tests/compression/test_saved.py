"""A compressed model of anyone's goes into one file, and comes back in another process's fresh model."""

import copy
import subprocess
import sys

import pytest
import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn

from g2lstm import G2Error, HubMixin, compress, load_into, save
from tests.compression.test_choice import Speech

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

SPEC = "gates=round:0.2,clip:0.4; cell=int4; embedding=int8; softmax=int6"


class Tagger(nn.Module):
    """Somebody's own model, with a buffer and a tied softmax."""

    def __init__(self, hidden=24, layers=2, tied=True):
        super().__init__()
        self.words = nn.Embedding(50, 24)
        self.lstm = nn.LSTM(24, hidden, layers, bidirectional=False)
        self.norm = nn.BatchNorm1d(hidden)
        self.out = nn.Linear(hidden, 50)
        if tied:
            self.out.weight = self.words.weight

    def forward(self, tokens):
        x, _ = self.lstm(self.words(tokens))
        return self.out(self.norm(x.flatten(0, 1)))


class WithHead(Tagger):
    """The same with a further layer."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(50, 2)


@pytest.fixture
def small():
    torch.manual_seed(1)
    model = Tagger()
    model(torch.randint(50, (7, 3)))  # moves the statistics of the norm, which are buffers
    return compress(model, SPEC)


@pytest.mark.parametrize("tied", [True, False])
def test_a_round_trip_into_a_fresh_model(tied, tmp_path):
    small = compress(Tagger(tied=tied), SPEC)
    save(small, tmp_path / "small.safetensors")
    fresh = Tagger(tied=tied)
    restored = load_into(fresh, tmp_path / "small.safetensors")
    tokens = torch.randint(50, (9, 2))
    assert restored is fresh
    assert not restored.training
    assert torch.equal(restored(tokens), small(tokens))
    assert restored.state_dict().keys() == small.state_dict().keys()


def test_the_file_is_as_small_as_the_encodings(tmp_path):
    lstm = nn.LSTM(200, 200)
    save(compress(lstm, "gates=int4; cell=int4"), tmp_path / "small.safetensors")
    assert (tmp_path / "small.safetensors").stat().st_size < sum(4 * p.numel() for p in lstm.parameters()) / 6


def test_a_layer_alone(tmp_path):
    lstm, x = nn.LSTM(5, 6), torch.randn(4, 2, 5)
    small = compress(lstm, "gates=int8; cell=int8")
    save(small, tmp_path / "small.safetensors")
    assert torch.equal(load_into(nn.LSTM(5, 6), tmp_path / "small.safetensors")(x)[0], small(x)[0])


@pytest.mark.parametrize("how", ["save", "state_dict"])
def test_every_kind_of_layer(how, tmp_path):
    torch.manual_seed(0)
    model, x, path = Speech(), torch.randn(6, 2, 5), tmp_path / "small"
    small = compress(model, {"*": "small", "head.0": "keep", "encoder.gru.weight_hh_*": "svd:2"})
    if how == "save":
        save(small, path)
        other = load_into(Speech(), path)
    else:
        torch.save(small.state_dict(), path)
        other = compress(Speech(), {"*": "small", "head.0": "keep", "encoder.gru.weight_hh_*": "svd:2"})
        other.load_state_dict(torch.load(path, weights_only=True))
    assert torch.equal(other(x), small(x))


def test_a_state_dict_on_disk_is_as_small_as_the_encodings(tmp_path):
    lstm = nn.LSTM(200, 200)
    torch.save(compress(lstm, "int4").state_dict(), tmp_path / "state")
    assert (tmp_path / "state").stat().st_size < sum(4 * p.numel() for p in lstm.parameters()) / 6


class Hub(Tagger, HubMixin, PyTorchModelHubMixin):
    """Anyone's model on the Hub, compressed after training or not."""


class Itself(nn.Module, PyTorchModelHubMixin):
    """A model that compresses itself, which needs nothing of ours to load."""

    def __init__(self, hidden=24):
        super().__init__()
        self.body = compress(Tagger(hidden, tied=False), SPEC)

    def forward(self, tokens):
        return self.body(tokens)


def test_files_and_the_hub_in_another_process(small, tmp_path, capsys):
    """Buffers come along."""
    save(small, tmp_path / "small.safetensors")
    expected = [f"sum small {small(torch.arange(12).view(6, 2)).double().sum().item()}"]
    for kind in ("Hub", "Itself", "plain"):
        torch.manual_seed(3)
        model = Itself(32) if kind == "Itself" else Hub(32, tied=False)
        with torch.no_grad():
            (model.body if kind == "Itself" else model).norm.running_mean.normal_()
        model = compress(model, SPEC) if kind == "Hub" else model.eval()
        model.save_pretrained(tmp_path / kind)
        expected.append(f"sum {kind} {model(torch.arange(12).view(6, 2)).double().sum().item()}")
        assert ("g2lstm packed its" in (tmp_path / kind / "README.md").read_text()) == (kind == "Hub")
    code = (
        "import torch; from g2lstm import load_into; from tests.compression.test_saved import Hub, Itself, Tagger\n"
        "torch.manual_seed(5)\n"
        f"model = load_into(Tagger(), {str(tmp_path)!r} + '/small.safetensors')\n"
        "print('sum small', model(torch.arange(12).view(6, 2)).double().sum().item())\n"
        "for kind in ('Hub', 'Itself', 'plain'):\n"
        f"    model = (Itself if kind == 'Itself' else Hub).from_pretrained({str(tmp_path)!r} + '/' + kind)\n"
        "    print('sum', kind, model(torch.arange(12).view(6, 2)).double().sum().item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("sum ")] == expected  # the Hub prints too


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: Tagger(hidden=32, tied=False), "must have the shape"),
        (lambda: Tagger(layers=1), "has no matrix 'lstm.weight_ih_l1.i' to compress"),
        (lambda: Tagger(layers=3), "'lstm.weight_ih_l2.i' is missing"),
        (WithHead, "'head.bias' is nothing, expected"),
        (lambda: nn.Linear(3, 3), "has no matrix"),
    ],
)
def test_another_architecture_is_refused_and_unchanged(small, other, message, tmp_path):
    save(small, tmp_path / "small.safetensors")
    model = other()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(G2Error, match=message):
        load_into(model, tmp_path / "small.safetensors")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.state_dict().keys() == before.keys()


def test_what_is_not_compressed_is_refused(tmp_path):
    with pytest.raises(G2Error, match="Tagger is not compressed; pass the result of g2lstm.compress"):
        save(Tagger(), tmp_path / "small.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_values_that_are_not_finite_are_not_saved(small, tmp_path):
    small.register_buffer("history", torch.tensor([1.0, torch.nan]))
    with pytest.raises(G2Error, match="history holds NaN or infinity"):
        save(small, tmp_path / "small.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "small.safetensors").write_bytes(b"nothing")
    with pytest.raises(G2Error):
        load_into(Tagger(), tmp_path / "small.safetensors")


@pytest.mark.parametrize("buffer", [torch.empty(0), torch.ones(2, dtype=torch.complex64)])
def test_tensors_that_could_not_be_loaded_are_not_saved(buffer, small, tmp_path):
    small.register_buffer("kept", buffer)
    with pytest.raises(G2Error, match=r"kept is torch\..*, which a file can't hold; if it is a buffer"):
        save(small, tmp_path / "small.safetensors")
    assert list(tmp_path.iterdir()) == []
    small.register_buffer("kept", buffer, persistent=False)
    save(small, tmp_path / "small.safetensors")
    assert load_into(Tagger(), tmp_path / "small.safetensors").training is False


def test_a_model_without_memory_is_refused(small, tmp_path):
    save(small, tmp_path / "small.safetensors")
    with pytest.raises(
        G2Error, match="Tagger is on the meta device, where weights have no values; build it on the CPU"
    ):
        load_into(Tagger().to("meta"), tmp_path / "small.safetensors")
