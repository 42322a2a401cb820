"""Other runtimes that run a stack of LSTM layers step by step: the peers of `g2lstm bench infer`."""

import ctypes
import logging
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from g2lstm.errors import G2Error, needs
from g2lstm.export.c.export import export_c
from g2lstm.nn.lstm import G2LSTM

Vectors: TypeAlias = NDArray[np.float32]
Runner: TypeAlias = Callable[[int], Vectors]  # takes so many more steps and returns the last output
Peer: TypeAlias = Callable[[nn.LSTM, Vectors], Runner]  # given the inputs (N, I), which it reads over and over

_OPSET, _IR = 17, 10


def repeated(step: Callable[[int], Vectors]) -> Runner:
    """Takes steps, numbered on from call to call."""
    count = 0

    def run(number: int) -> Vectors:
        nonlocal count
        for _ in range(number):
            out = step(count)
            count += 1
        return out

    return run


def torch_float32(lstm: nn.LSTM, inputs: Vectors) -> Runner:
    """A plain `torch.nn.LSTM`."""
    steps = torch.from_numpy(inputs)[:, None, None]  # (N, 1, 1, I)
    shape = (lstm.num_layers, 1, lstm.hidden_size)
    state = (torch.zeros(shape), torch.zeros(shape))

    @torch.inference_mode()
    def step(count: int) -> Vectors:
        nonlocal state
        out, state = lstm(steps[count % len(steps)], state)
        return out.numpy().reshape(-1)

    return repeated(step)


def torch_int8(lstm: nn.LSTM, inputs: Vectors) -> Runner:
    """Torch's dynamic quantisation: int8 weights, and activations quantised in each step."""
    quantize = getattr(torch.ao.quantization, "quantize_dynamic", None)
    if quantize is None:
        raise G2Error(f"torch {torch.__version__} no longer has dynamic quantisation")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its move to another package
        [quantised] = quantize(nn.Sequential(lstm), {nn.LSTM})
    return torch_float32(quantised, inputs)


def onnx_runtime(lstm: nn.LSTM, inputs: Vectors, *, quantised: bool = False) -> Runner:
    """ONNX Runtime with one LSTM operator per layer, or its dynamic quantisation of the same graph."""
    with needs("export", "ONNX Runtime"):
        import onnx
        import onnxruntime  # type: ignore[import-untyped]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stack.onnx"
        onnx.save(stack_graph(lstm), path)
        if quantised:
            path = _quantised(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def zeros(*shape: int) -> Any:
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32)
        value.update_inplace(
            np.zeros(shape, np.float32)
        )  # made from an array, it would not keep that in older versions
        return value

    # The fastest way: buffers are bound once, and each step writes its states where the next one reads them.
    steps, H = inputs[:, None, None], lstm.hidden_size  # (N, 1, 1, I)
    names = [name for k in range(lstm.num_layers) for name in (f"h{k}", f"c{k}")]
    states = [{name: zeros(1, 1, H) for name in names} for _ in range(2)]
    x, y, bindings = zeros(*steps[0].shape), zeros(1, 1, 1, H), [session.io_binding() for _ in range(2)]
    for k, binding in enumerate(bindings):
        binding.bind_ortvalue_input("x", x)
        binding.bind_ortvalue_output("y", y)
        for name in names:
            binding.bind_ortvalue_input(name, states[k][name])
            binding.bind_ortvalue_output(f"{name}_out", states[1 - k][name])

    def step(count: int) -> Vectors:
        x.update_inplace(steps[count % len(steps)])
        session.run_with_iobinding(bindings[count % 2])
        out: Vectors = y.numpy()
        return out.reshape(-1)

    return repeated(step)


def openvino(lstm: nn.LSTM, inputs: Vectors) -> Runner:
    """OpenVINO with the same graph in float32; eight bits would need NNCF and data to calibrate it with."""
    with needs("export", "ONNX"):
        import onnx  # noqa: F401
    try:
        import openvino as ov  # type: ignore[import-not-found]
    except ImportError:
        raise G2Error("openvino is not installed; `pip install openvino` to compare with it") from None
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    core = ov.Core()
    request = core.compile_model(core.read_model(stack_graph(lstm).SerializeToString()), "CPU", settings)
    request = request.create_infer_request()
    steps = inputs[:, None, None]  # (N, 1, 1, I)
    names = [name for k in range(lstm.num_layers) for name in (f"h{k}", f"c{k}")]
    # As above: each step writes its states where the next one reads them.
    shape = (1, 1, lstm.hidden_size)
    states = [{name: ov.Tensor(np.zeros(shape, np.float32)) for name in names} for _ in range(2)]

    def step(count: int) -> Vectors:
        request.set_tensor("x", ov.Tensor(steps[count % len(steps)]))
        for name in names:
            request.set_tensor(name, states[count % 2][name])
            request.set_tensor(f"{name}_out", states[1 - count % 2][name])
        request.infer()
        out: Vectors = request.get_tensor("y").data
        return out.reshape(-1)

    return repeated(step)


def stack_graph(lstm: nn.LSTM) -> Any:
    """A stack as an ONNX model, from x (1, 1, I), h0, c0, h1 ... (1, 1, H) to y (1, 1, 1, H), h0_out, c0_out ..."""
    from onnx import TensorProto, checker, helper, numpy_helper

    def value(name: str, *shape: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    H, nodes, weights, below = lstm.hidden_size, [], [], "x"
    ends, state = [value("x", 1, 1, lstm.input_size)], [value("y", 1, 1, 1, H)]
    for k, parameters in enumerate(lstm.all_weights):
        # From torch's gates i f g o to i o f g, as ONNX has them.
        blocks = [np.split(parameter.detach().numpy(), 4) for parameter in parameters]
        w_x, w_h, b_x, b_h = (np.concatenate([i, o, f, g]) for i, f, g, o in blocks)
        arrays = {f"W{k}": w_x, f"R{k}": w_h, f"B{k}": np.concatenate([b_x, b_h])}
        weights += [numpy_helper.from_array(array[None], name) for name, array in arrays.items()]
        if k:
            nodes.append(helper.make_node("Squeeze", [below, "direction"], [f"x{k}"]))
            below = f"x{k}"
        above = "y" if k == lstm.num_layers - 1 else f"y{k}"
        taken, given = [below, *arrays, "", f"h{k}", f"c{k}"], [above, f"h{k}_out", f"c{k}_out"]
        nodes.append(helper.make_node("LSTM", taken, given, hidden_size=H))
        ends += [value(f"h{k}", 1, 1, H), value(f"c{k}", 1, 1, H)]
        state += [value(f"h{k}_out", 1, 1, H), value(f"c{k}_out", 1, 1, H)]
        below = above
    if lstm.num_layers > 1:
        weights.append(numpy_helper.from_array(np.array([1], np.int64), "direction"))
    graph = helper.make_graph(nodes, "stack", ends, state, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    checker.check_model(model)
    return model


def _quantised(path: Path) -> Path:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-untyped]

    root, after = logging.getLogger(), path.with_suffix(".int8.onnx")
    level = root.level
    root.setLevel(logging.ERROR)  # it advises preparing the graph first, which changes nothing in an LSTM
    try:
        quantize_dynamic(path, after, weight_type=QuantType.QInt8)
    finally:
        root.setLevel(level)
    kinds = {node.op_type for node in onnx.load(after).graph.node if "LSTM" in node.op_type}
    if kinds != {"DynamicQuantizeLSTM"}:
        raise G2Error(f"this onnxruntime does not quantise the operator LSTM: its graph has {', '.join(sorted(kinds))}")
    return after


_LOOP = """
#include "stack.h"
int size(void);
int size(void) { return (int)sizeof(stack_state); }
void run(stack_state *state, const float *inputs, long rows, long first, long count, float *out);
void run(stack_state *state, const float *inputs, long rows, long first, long count, float *out)
{
    for (long k = first; k < first + count; ++k) stack_step(state, inputs + k % rows * STACK_INPUTS, out);
}
"""


def c_runner(model: G2LSTM, inputs: Vectors, flags: Sequence[str]) -> tuple[Runner, int]:
    """What runs a stack that a compiler has compiled with these flags, and the bytes of its weights.

    The steps of a call are a loop in C, as in a program without Python.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise G2Error("there is no C compiler, cc")
    with tempfile.TemporaryDirectory() as folder:
        made = export_c(model, Path(folder) / "stack.c")
        loop, library = Path(folder) / "loop.c", Path(folder) / "stack.so"
        loop.write_text(_LOOP)
        build = [
            compiler,
            "-std=c99",
            *flags,
            "-shared",
            "-fPIC",
            str(made.files[1]),
            str(loop),
            "-o",
            str(library),
            "-lm",
        ]
        done = subprocess.run(build, capture_output=True, text=True, check=False)
        if done.returncode:
            raise G2Error(f"cc can't compile it: {done.stderr.strip().splitlines()[:1]}")
        compiled = ctypes.CDLL(str(library))  # stays open after the file is gone
    state, out, count = ctypes.create_string_buffer(compiled.size()), np.zeros(model.hidden_size, np.float32), 0
    compiled.stack_reset(state)
    inputs = np.ascontiguousarray(inputs, np.float32)

    def run(number: int) -> Vectors:
        nonlocal count
        rows, first, steps = (ctypes.c_long(one) for one in (len(inputs), count, number))
        read, written = (ctypes.c_void_p(one.ctypes.data) for one in (inputs, out))
        compiled.run(state, read, rows, first, steps, written)
        count += number
        return out.copy()

    return run, made.sizes.weights
