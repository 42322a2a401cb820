"""Takes one model of `cases.py` through everything: convert, train, freeze, compress, save, load elsewhere, stream.

Usage: python -m tests.third_party.check CASE FOLDER, and with --load to read what an earlier call saved there.
"""

import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import g2lstm
from tests.third_party.cases import CASES, Case


def output_of(case: Case, model: nn.Module) -> Tensor:
    model.eval()
    with torch.no_grad():
        return case.run(model).float()


def cosine(a: Tensor, b: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0).item()


def made(name: str) -> Case:
    torch.manual_seed(3)
    return CASES[name]()


def check(name: str, folder: Path) -> None:
    case = made(name)
    model = case.model
    before = output_of(case, model)

    g2lstm.convert_(model, strict=True)
    converted = [row for row in g2lstm.survey(model) if row.status == "converted"]
    assert len(converted) == case.converts, g2lstm.survey(model)
    torch.testing.assert_close(output_of(case, model), before, rtol=1e-4, atol=1e-5)

    copy = made(name).model
    g2lstm.convert_(copy)
    copy.train()
    optimiser = torch.optim.SGD(copy.parameters(), lr=1e-3)
    case.run(copy).square().mean().backward()
    layers = [copy.get_submodule(row.name) for row in converted]
    gradients = [p.grad for layer in layers for n, p in layer.named_parameters() if n.startswith("weight_hh")]
    assert gradients
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    optimiser.step()
    g2lstm.compress(copy, "int8")  # although it holds states of the training step

    g2lstm.freeze_(model)
    assert not any(row.status == "converted" for row in g2lstm.survey(model))
    torch.testing.assert_close(output_of(case, model), before, rtol=1e-4, atol=1e-5)

    for spec, least in (("int8", 0.999), ("small", 0.99)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            small = g2lstm.compress(model, spec)
        named = any("weight" in str(warning.message) for warning in told)
        found = cosine(output_of(case, small), before)
        print(f"{name}: {spec} {found:.5f}{' (warned)' if named else ''}")  # noqa: T201
        assert not case.is_trained or found >= least or (spec == "small" and named), (spec, found)
    g2lstm.save(small, folder / f"{name}.safetensors")
    torch.save(small.state_dict(), folder / f"{name}.pt")
    torch.save(model.state_dict(), folder / f"{name}.dense.pt")
    packed, dense = ((folder / f"{name}.{kind}").stat().st_size for kind in ("pt", "dense.pt"))
    assert packed < dense, (packed, dense)
    save_file({"output": output_of(case, small).contiguous()}, folder / f"{name}.output.safetensors")

    if case.is_causal:
        session = g2lstm.stream(small)
        with torch.no_grad():
            whole = case.sequence(small.eval(), case.frames)
        steps = torch.stack([torch.as_tensor(session.step(frame)).flatten() for frame in case.frames])
        torch.testing.assert_close(steps, whole.reshape(steps.shape), rtol=1e-2, atol=2e-3)


def load(name: str, folder: Path) -> None:
    """In another process: the saved model, into a fresh one of the same architecture."""
    case = made(name)
    g2lstm.freeze_(g2lstm.convert_(case.model))  # which unwraps DropConnect
    for parameter in case.model.parameters():
        nn.init.constant_(parameter, 0.01)
    expected = load_file(folder / f"{name}.output.safetensors")["output"]
    small = g2lstm.load_into(case.model, folder / f"{name}.safetensors")
    torch.testing.assert_close(output_of(case, small), expected)
    small.load_state_dict(torch.load(folder / f"{name}.pt", weights_only=True))
    torch.testing.assert_close(output_of(case, small), expected)
    with _refused():
        small.load_state_dict(torch.load(folder / f"{name}.dense.pt", weights_only=True))


class _refused:
    """A block that must fail with an error."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, _trace: object) -> bool:
        assert isinstance(error, RuntimeError | ValueError), "an uncompressed state was loaded into a compressed model"
        return True


if __name__ == "__main__":
    torch.set_num_threads(1)
    (load if "--load" in sys.argv else check)(sys.argv[1], Path(sys.argv[2]))
