"""`G2LSTM`: a drop-in `torch.nn.LSTM` whose input and forget gates learn to be 0 or 1."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from g2lstm.errors import G2Error
from g2lstm.nn import native, reference, stock
from g2lstm.nn.checks import OPTIONS, Arranged, arrange, arrange_noise, check_projection, checked_option, is_autocast
from g2lstm.nn.gate import GateRule, Gates, GateValues
from g2lstm.nn.layer import Backend, Direction, LayerOutput, Weights, gate_values
from g2lstm.nn.random import draw_drop, draw_noise

_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # torch 2.7 and later
DEFAULT_TAU = {"gumbel": 0.9, "sharpened": 0.2, "sigmoid": 1.0}


class GatedLSTM(nn.Module):
    """An LSTM with our gates, wherever its weights come from: `G2LSTM` has parameters, a compressed layer decodes them.

    A subclass has the attributes of `torch.nn.LSTM` and those of `OPTIONS`, and provides the weights.
    """

    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    proj_size: int
    method: str
    tau: float
    noise_rate: float
    gates: str
    eval_gate: str
    weight_dropout: float
    backend: str
    _gate_listener: Callable[[Gates], None] | None = None  # set by `record_gates`

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights, and so of the input."""
        raise NotImplementedError

    def _weights(self, dtype: torch.dtype) -> list[list[Weights]]:
        """The weights in this type, by layer and direction."""
        raise NotImplementedError

    def to_lstm(self) -> nn.LSTM:
        """A `torch.nn.LSTM` with the same output in evaluation; its weights are copies."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: Any) -> None:
        """As for any module, but checks options whenever they are set."""
        given: Any = checked_option(name, value) if name in OPTIONS else value
        super().__setattr__(name, given)

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: tuple[Tensor, Tensor] | None = None,
        *,
        return_gates: bool = False,
        noise: Sequence[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Runs the layer as `torch.nn.LSTM` does.

        Args:
            input: (T, B, I), (B, T, I) if batch_first, (T, I) unbatched, or a PackedSequence.
            hx: the first states h (L * D, B, R) and c (L * D, B, H), without B if unbatched; zero if not given.
            return_gates: also return the gate values.
            noise: the noise to use, one tensor per layer and direction, rate already applied: (T, B, 2H), or (N, 2H)
                for a PackedSequence; i then f, and o where that is sampled too. Only in training.
            generator: source of the noise; torch's default generator if not given.

        Returns:
            output, (h, c), and with `return_gates` also `Gates`.
        """
        arranged = arrange(self, input, hx)
        if noise is not None:
            noise = arrange_noise(self, list(noise), arranged)
        device = arranged.x.device.type
        if is_autocast(arranged.x):
            with torch.autocast(device, enabled=False):
                result, gates = self._run(arranged, torch.get_autocast_dtype(device), return_gates, noise, generator)
        else:
            result, gates = self._run(arranged, arranged.x.dtype, return_gates, noise, generator)
        output = arranged.restore(result)
        return (*output, gates) if return_gates else output

    def _run(
        self,
        arranged: Arranged,
        dtype: torch.dtype,
        return_gates: bool,
        noise: Sequence[Tensor] | None,
        generator: torch.Generator | None,
    ) -> tuple[LayerOutput, Gates | None]:
        x, h, c = (t.to(dtype) for t in (arranged.x, arranged.h, arranged.c))
        batch_sizes, rule = arranged.batch_sizes, self.gate_rule()
        run_layer = self._choose_backend(x.device, rule)
        wants_gates = return_gates or self._gate_listener is not None
        if run_layer is stock.run_layer and not self.training and not wants_gates:
            weights = stock.fold([w for layer in self._weights(dtype) for w in layer], rule)
            return stock.fused(x, h, c, weights, batch_sizes, self.num_layers), None

        values: list[GateValues] = []
        ends: list[LayerOutput] = []
        for index, layer_weights in enumerate(self._weights(dtype)):
            own = slice(index * self.directions, (index + 1) * self.directions)
            layer_noise = self._noise(x, generator) if noise is None else [n.to(dtype) for n in noise[own]]
            each = zip(h[own], c[own], layer_weights, layer_noise, strict=True)
            layer = [Direction(x, *one[:3], rule, one[3], batch_sizes, d == 1) for d, one in enumerate(each)]
            ends.append(run_layer(layer))
            x = ends[-1].out
            if wants_gates:
                values += map(gate_values, layer, x.chunk(self.directions, -1))
            if self.training and self.dropout > 0 and index < self.num_layers - 1:
                x = nn.functional.dropout(x, self.dropout)
        result = LayerOutput(x, torch.cat([end.h for end in ends]), torch.cat([end.c for end in ends]))
        if not wants_gates:
            return result, None
        gates = arranged.restore_gates(values, self.training)
        if self._gate_listener is not None:
            self._gate_listener(gates.detach())
        return result, gates

    def _choose_backend(self, device: torch.device, rule: GateRule) -> Backend:
        """The function that runs a layer.

        On a CPU, "auto" takes the native kernel for training and for hard gates, which torch's fused LSTM does not
        have; everywhere else it takes the fused LSTM, except that hard gates on other devices are left to the plain
        loop. With gradients, `torch.compile` cannot trace the fused LSTM of a CPU, so the native kernel replaces it.
        """
        on_cpu = device.type == "cpu"
        if self.backend == "native" and not on_cpu:
            raise G2Error(
                f"backend 'native' runs on the CPU, but the input is on '{device}'; "
                "use backend='auto', which takes torch's fused LSTM there, or move the layer and its input to the CPU"
            )
        backend = self.backend
        if backend == "auto":
            backend = "native" if on_cpu and (self.training or rule.hard) else "reference" if rule.hard else "stock"
        if backend == "stock" and on_cpu and torch.compiler.is_compiling() and torch.is_grad_enabled():
            backend = "stock" if _is_exporting() else "native"
        return {"native": native, "reference": reference, "stock": stock}[backend].run_layer

    @property
    def directions(self) -> int:
        """2 if bidirectional, else 1."""
        return 2 if self.bidirectional else 1

    def gate_rule(self) -> GateRule:
        """How pre-activations become gates in the current mode."""
        hard = not self.training and self.eval_gate == "hard"
        # A sharpened model has its temperature in evaluation too; for a G2 model that is one way to read its gates.
        has_temperature = self.training or self.eval_gate == "tempered" or self.method == "sharpened"
        return GateRule(self.tau if has_temperature and self.method != "sigmoid" else 1.0, self.gates, hard)

    def _noise(self, x: Tensor, generator: torch.Generator | None) -> list[Tensor] | list[None]:
        """Fresh noise for each direction of one layer; None if the method has no noise."""
        if not (self.training and self.method == "gumbel" and self.noise_rate > 0):
            return [None] * self.directions
        shape = (*x.shape[:-1], GateRule(gates=self.gates).noisy_gates * self.hidden_size)
        return [
            draw_noise(shape, rate=self.noise_rate, dtype=x.dtype, device=x.device, generator=generator)
            for _ in range(self.directions)
        ]

    def options(self) -> dict[str, Any]:
        """The keyword arguments that `torch.nn.LSTM` does not have, as they are now."""
        return {name: getattr(self, name) for name in OPTIONS}


class G2LSTM(GatedLSTM, nn.RNNBase):
    """Long short-term memory with Gumbel gates; parameters, inputs and outputs are those of `torch.nn.LSTM`.

    While training, the input and forget gates are sampled: sigmoid((a + noise) / tau) with logistic noise, which pushes
    them towards 0 and 1. In evaluation there is no noise, and by default no temperature: the layer then *is* the
    `torch.nn.LSTM` with the same weights.

    Args:
        input_size: features of the input.
        hidden_size: units, H.
        num_layers: how many layers are stacked.
        bias: whether the gates have biases.
        batch_first: whether input and output are (B, T, features) instead of (T, B, features); states stay the same.
        dropout: probability of dropout between layers, while training.
        bidirectional: whether a second direction reads from the end; outputs are joined.
        proj_size: width of a projection of h; 0 for no projection.
        method: "gumbel" (the paper's G2), "sigmoid" (a plain LSTM) or "sharpened" (temperature without noise, in
            training and in evaluation).
        tau: temperature; 0.9 for "gumbel" and 0.2 for "sharpened" unless given. "sigmoid" has none.
        noise_rate: probability that a gate element gets noise, in [0, 1]; the paper's experiments use 0.2.
        gates: which gates are pushed towards 0 or 1: "if", or "ifo" to include the output gate.
        eval_gate: in evaluation, "soft" sigmoid(a), "tempered" sigmoid(a / tau) or "hard" 1[a >= 0].
        weight_dropout: DropConnect, the probability of dropping a recurrent weight for one forward call.
        backend: "auto", "native" (CPU kernel), "stock" (torch's fused LSTM) or "reference" (a plain loop).
        device: of the parameters.
        dtype: of the parameters.
    """

    weight_ih_l0: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        method: str = "gumbel",
        tau: float | None = None,
        noise_rate: float = 0.2,
        gates: str = "if",
        eval_gate: str = "soft",
        weight_dropout: float = 0.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if tau is None:
            tau = DEFAULT_TAU.get(method, 1.0)
        check_projection(hidden_size, proj_size)
        shape = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        super().__init__("LSTM", *shape, device, dtype)
        self.method = method
        self.tau = tau
        self.noise_rate = noise_rate
        self.gates = gates
        self.eval_gate = eval_gate
        self.weight_dropout = weight_dropout
        self.backend = backend

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters."""
        return self.weight_ih_l0.dtype

    def _weights(self, dtype: torch.dtype) -> list[list[Weights]]:
        """By layer and direction, with DropConnect while training."""
        each = [self._direction_weights(names, dtype) for names in self._all_weights]
        return [each[k : k + self.directions] for k in range(0, len(each), self.directions)]

    def _direction_weights(self, names: list[str], dtype: torch.dtype) -> Weights:
        tensors = [getattr(self, name).to(dtype) for name in names]
        w_x, w_h, *rest = tensors
        choice = None
        if self.training and self.weight_dropout > 0:
            if w_h.device.type == "cpu":
                choice = draw_drop(self.weight_dropout)
            else:
                w_h = nn.functional.dropout(w_h, self.weight_dropout)
        b_x, b_h = rest[:2] if self.bias else (None, None)
        return Weights(w_x, w_h, b_x, b_h, rest[-1] if self.proj_size else None, choice)

    def extra_repr(self) -> str:
        """The arguments of `torch.nn.LSTM` that differ from its defaults, followed by ours."""
        ours = f"method={self.method}, gates={self.gates}, eval_gate={self.eval_gate}"
        if self.method != "sigmoid":
            ours += f", tau={self.tau}"
        if self.method == "gumbel":
            ours += f", noise_rate={self.noise_rate}"
        if self.weight_dropout:
            ours += f", weight_dropout={self.weight_dropout}"
        if self.backend != "auto":
            ours += f", backend={self.backend}"
        return f"{super().extra_repr()}, {ours}"

    def to_lstm(self) -> nn.LSTM:
        """A `torch.nn.LSTM` with the same output in evaluation; its weights are copies."""
        from g2lstm.nn.convert import to_lstm

        return to_lstm(self)

    @classmethod
    def from_lstm(cls, lstm: nn.LSTM, **options: Any) -> "G2LSTM":
        """A `G2LSTM` with the same output in evaluation as `lstm`; its weights are copies.

        Args:
            lstm: the layer to start from.
            **options: this class's own arguments: method, tau, noise_rate, ... With eval_gate "hard" the output
                differs, since `torch.nn.LSTM` has no hard gates.
        """
        from g2lstm.nn.convert import from_lstm

        return from_lstm(lstm, cls, **options)
