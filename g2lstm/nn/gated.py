"""What all layers with our gates share: their options, their noise, the choice of a backend, and a forward call."""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from g2lstm.errors import G2Error
from g2lstm.nn import native, reference, stock
from g2lstm.nn.checks import NOISY_METHODS, OPTIONS, Arranged, arrange, arrange_noise, checked_option, is_autocast
from g2lstm.nn.gate import GateRule, Gates, GateValues
from g2lstm.nn.kind import DEFAULT_TAU, Kind, temperature, usual_eval_gate
from g2lstm.nn.layer import Backend, Direction, LayerOutput, States, Weights, gate_values
from g2lstm.nn.random import draw_drop, draw_noise, dropout

_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # torch 2.7 and later
_UP_TO_THE_METHOD = ("tau", "eval_gate")


class GateOptions(TypedDict, total=False):
    """The keyword arguments of our layers that torch's own do not have."""

    method: str
    tau: float | None
    noise_rate: float
    soft_rate: float
    gates: str
    eval_gate: str | None
    weight_dropout: float
    backend: str


class Gated(nn.Module):
    """A recurrent layer with our gates, wherever its weights come from.

    A subclass has the attributes of torch's layer and those of `OPTIONS`.
    """

    kind: Kind
    is_cell = False  # whether it takes one step, not a sequence
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    proj_size: int
    method: str
    noise_rate: float
    soft_rate: float
    gates: str
    weight_dropout: float
    backend: str
    _tau: float | None
    _eval_gate: str | None
    _all_weights: list[list[str]]  # their names in each layer and direction
    _gate_listener: Callable[[Gates], None] | None = None  # set by `record_gates`

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights, and so of the input."""
        return self._tensor(self._all_weights[0][0]).dtype

    def _tensor(self, name: str) -> Tensor:
        """The values of one parameter of torch's layer."""
        value: Tensor = getattr(self, name)
        return value

    def _weights(self, dtype: torch.dtype, generator: torch.Generator | None = None) -> list[list[Weights]]:
        """The weights in this type, by layer and direction, with DropConnect while training."""
        each = []
        for names in self._all_weights:
            w_x, w_h, *rest = [self._tensor(name).to(dtype) for name in names]
            choice = None
            if self.training and self.weight_dropout > 0:
                if w_h.device.type == "cpu":
                    choice = draw_drop(self.weight_dropout, generator)
                else:
                    w_h = dropout(w_h, self.weight_dropout, generator)
            b_x, b_h = rest[:2] if self.bias else (None, None)
            each.append(Weights(w_x, w_h, b_x, b_h, rest[-1] if self.proj_size else None, choice))
        return [each[k : k + self.directions] for k in range(0, len(each), self.directions)]

    def set_options(self, **options: Unpack[GateOptions]) -> None:
        """Sets all options: these, and the defaults of the others."""
        if unknown := sorted(set(options) - set(OPTIONS)):
            raise G2Error(f"{type(self).__name__} has no option {unknown[0]!r}; it has {', '.join(OPTIONS)}")
        self.method = options.get("method", "gumbel")
        self.tau = options.get("tau")
        self.noise_rate = options.get("noise_rate", 0.2)
        self.soft_rate = options.get("soft_rate", 0.0)
        self.gates = options.get("gates", next(iter(self.kind.sampled)))
        self.eval_gate = options.get("eval_gate")
        self.weight_dropout = options.get("weight_dropout", 0.0)
        self.backend = options.get("backend", "auto")

    def options(self) -> dict[str, Any]:
        """The keyword arguments that torch's layer does not have, as they are now; None where the method decides."""
        return {name: getattr(self, f"_{name}" if name in _UP_TO_THE_METHOD else name) for name in OPTIONS}

    def __setattr__(self, name: str, value: Any) -> None:
        """As for any module, but checks options whenever they are set."""
        if name in OPTIONS and not (value is None and name in _UP_TO_THE_METHOD):
            value = checked_option(name, value, self.kind)
        super().__setattr__(name, value)

    @property
    def tau(self) -> float:
        """The temperature; that of the method unless one was given."""
        return DEFAULT_TAU[self.method] if self._tau is None else self._tau

    @tau.setter
    def tau(self, tau: float | None) -> None:
        self._tau = tau

    @property
    def eval_gate(self) -> str:
        """How gates are computed in evaluation: "hard" for the method "binary" and "soft" for others, unless given."""
        return usual_eval_gate(self.method) if self._eval_gate is None else self._eval_gate

    @eval_gate.setter
    def eval_gate(self, eval_gate: str | None) -> None:
        self._eval_gate = eval_gate

    @property
    def directions(self) -> int:
        """2 if bidirectional, else 1."""
        return 2 if self.bidirectional else 1

    def gate_rule(self, training: bool | None = None) -> GateRule:
        """How pre-activations become gates, in the current mode unless one is given."""
        training = self.training if training is None else training
        hard, binary = not training and self.eval_gate == "hard", training and self.method == "binary"
        return GateRule(temperature(self.method, self.tau, self.eval_gate, training), self.gates, hard, binary)

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Any = None,
        *,
        return_gates: bool = False,
        noise: Any = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Runs the layer, or takes one step, as torch's own does.

        Args:
            input: (T, B, I), (B, T, I) if batch_first, (T, I) unbatched, or a PackedSequence; of a cell (B, I) or (I,).
            hx: the first states, zero if not given: h (L * D, B, R) and, of an LSTM, c (L * D, B, H); without B if
                unbatched, and without L * D of a cell.
            return_gates: also return the gate values.
            noise: the noise to use, a tensor per layer and direction, rate already applied: (T, B, 2H), or (N, 2H) for
                a PackedSequence; i then f, or r then z; 3H where the output gate is sampled too. A cell takes a tensor
                (B, 2H). Only in training.
            generator: source of noise, DropConnect and dropout; torch's default generator if not given.

        Returns:
            output and the last states; of a cell these alone. With `return_gates` also `Gates`.
        """
        arranged = arrange(self, input, hx)
        if noise is not None:
            noise = arrange_noise(self, [noise] if self.is_cell else noise, arranged)
        device = arranged.x.device.type
        if is_autocast(arranged.x):
            with torch.autocast(device, enabled=False):
                result, gates = self._run(arranged, torch.get_autocast_dtype(device), return_gates, noise, generator)
        else:
            result, gates = self._run(arranged, arranged.x.dtype, return_gates, noise, generator)
        output, states = arranged.restore(result)
        state = states if len(states) == 2 else states[0]
        if self.is_cell:
            return (state, gates) if return_gates else state
        return (output, state, gates) if return_gates else (output, state)

    def _run(
        self,
        arranged: Arranged,
        dtype: torch.dtype,
        return_gates: bool,
        noise: Sequence[Tensor] | None,
        generator: torch.Generator | None,
    ) -> tuple[LayerOutput, Gates | None]:
        x, states = arranged.x.to(dtype), tuple(state.to(dtype) for state in arranged.states)
        batch_sizes, rule = arranged.batch_sizes, self.gate_rule()
        run_layer = self._choose_backend(x.device, rule)
        wants_gates = return_gates or self._gate_listener is not None
        if run_layer is stock.run_layer and not self.training and not wants_gates:
            weights = stock.fold([w for layer in self._weights(dtype) for w in layer], rule)
            return stock.fused(x, states, weights, rule, batch_sizes, self.num_layers), None

        values: list[GateValues] = []
        ends: list[States] = []
        for index, layer_weights in enumerate(self._weights(dtype, generator)):
            own = slice(index * self.directions, (index + 1) * self.directions)
            layer_noise = self._noise(x, generator) if noise is None else [n.to(dtype) for n in noise[own]]
            layer_states = zip(*(state[own] for state in states), strict=True)
            each = zip(layer_states, layer_weights, layer_noise, strict=True)
            layer = [Direction(x, *one[:2], rule, one[2], batch_sizes, d == 1) for d, one in enumerate(each)]
            x, end = run_layer(layer)
            ends.append(end)
            if wants_gates:
                values += map(gate_values, layer, x.chunk(self.directions, -1))
            if self.training and self.dropout > 0 and index < self.num_layers - 1:
                x = dropout(x, self.dropout, generator)
        result = LayerOutput(x, tuple(torch.cat(each) for each in zip(*ends, strict=True)))
        if not wants_gates:
            return result, None
        gates = arranged.restore_gates(self.kind, values, self.training)
        if self._gate_listener is not None:
            self._gate_listener(gates.detach())
        return result, gates

    def _choose_backend(self, device: torch.device, rule: GateRule) -> Backend:
        """The function that runs a layer.

        On a CPU, "auto" takes the native kernel for training and for hard gates, which torch's fused layers do not
        have; everywhere else it takes the fused layer, except that hard and binary gates on other devices are left to
        the plain loop. With gradients, `torch.compile` cannot trace the fused layers of a CPU, and `torch.export` would
        fix the length of their sequences, so the native kernel replaces them. A cell has only one step, for which
        packing the kernel's weights would not pay.
        """
        on_cpu = device.type == "cpu"
        if self.backend == "native" and not on_cpu:
            raise G2Error(
                f"backend 'native' runs on the CPU, but the input is on '{device}'; use backend='auto', which takes "
                f"torch's fused {self.kind.name} there, or move the layer and its input to the CPU"
            )
        backend, fast = self.backend, "native" if on_cpu and not self.is_cell else "reference"
        if backend == "auto":
            is_ours = rule.hard or rule.binary or (self.training and (on_cpu or self.is_cell))
            backend = fast if is_ours else "stock"
        needs_operator = torch.is_grad_enabled() or (_is_exporting() and not self.is_cell)
        if backend == "stock" and on_cpu and torch.compiler.is_compiling() and needs_operator:
            backend = fast
        return {"native": native, "reference": reference, "stock": stock}[backend].run_layer

    def _noise(self, x: Tensor, generator: torch.Generator | None) -> list[Tensor] | list[None]:
        """Fresh noise for each direction of one layer; None if the method has no noise."""
        soft_rate = self.soft_rate if self.method == "binary" else 0.0
        if not (self.training and self.method in NOISY_METHODS and self.noise_rate + soft_rate > 0):
            return [None] * self.directions
        shape = (*x.shape[:-1], len(self.kind.sampled[self.gates]) * self.hidden_size)
        rates = {"rate": self.noise_rate, "soft_rate": soft_rate}
        return [
            draw_noise(shape, **rates, dtype=x.dtype, device=x.device, generator=generator)
            for _ in range(self.directions)
        ]


class WithParameters(Gated):
    """A layer with our gates that has the parameters of torch's layer."""

    def extra_repr(self) -> str:
        """The arguments of torch's layer that differ from its defaults, followed by ours."""
        ours = f"method={self.method}, gates={self.gates}, eval_gate={self.eval_gate}"
        if self.method != "sigmoid":
            ours += f", tau={self.tau}"
        if self.method in NOISY_METHODS:
            ours += f", noise_rate={self.noise_rate}"
        if self.method == "binary" and self.soft_rate:
            ours += f", soft_rate={self.soft_rate}"
        if self.weight_dropout:
            ours += f", weight_dropout={self.weight_dropout}"
        if self.backend != "auto":
            ours += f", backend={self.backend}"
        return f"{super().extra_repr()}, {ours}"
