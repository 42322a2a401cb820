"""Real models of other projects, each with a call in evaluation, a training loss and, if it is causal, a stream.

Runs in an environment of its own (`test_third_party.py` makes it), which has the projects and the core of g2lstm only.
"""

import importlib.util
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass
class Case:
    model: nn.Module
    run: Callable[[nn.Module], Tensor]  # the output of a fixed input, in evaluation
    is_trained: bool = False  # whether its weights are those of a real training
    is_causal: bool = False  # whether `frames` and `step` make it a stream
    frames: Tensor | None = None  # (T, ...): the input of each step
    sequence: Callable[[nn.Module, Tensor], Tensor] | None = None  # the outputs (T, ...) of all frames in one call
    converts: int = 1  # how many layers convert_ must take


def word_language_model() -> Case:
    """The model of pytorch/examples' word_language_model: embedding, stacked LSTM, decoder tied to the embedding."""

    class RNNModel(nn.Module):
        def __init__(self, tokens: int, width: int, layers: int) -> None:
            super().__init__()
            self.ntoken = tokens
            self.drop = nn.Dropout(0.2)
            self.encoder = nn.Embedding(tokens, width)
            self.rnn = nn.LSTM(width, width, layers, dropout=0.2)
            self.decoder = nn.Linear(width, tokens)
            self.decoder.weight = self.encoder.weight

        def forward(self, input: Tensor, hidden: tuple[Tensor, Tensor] | None = None):
            output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
            decoded = self.decoder(self.drop(output)).view(-1, self.ntoken)
            return functional.log_softmax(decoded, dim=1), hidden

    ids = torch.randint(0, 50, (12, 3))
    return Case(
        RNNModel(50, 32, 2),
        lambda model: model(ids)[0],
        is_causal=True,
        frames=torch.randint(0, 50, (12,)),
        sequence=lambda model, frames: model(frames.unsqueeze(1))[0],
    )


def awd_lstm_lm() -> Case:
    """awd-lstm-lm's way of DropConnect, written anew: raw weights in the LSTM, dropped copies set before each call."""

    class WeightDrop(nn.Module):
        def __init__(self, module: nn.Module, weights: list[str], dropout: float = 0.0) -> None:
            super().__init__()
            self.module, self.weights, self.dropout, self.variational = module, weights, dropout, False
            self.module.flatten_parameters = self.nothing
            for name in weights:
                weight = getattr(module, name)
                del module._parameters[name]
                module.register_parameter(f"{name}_raw", nn.Parameter(weight.data))

        def nothing(self, *_args, **_kwargs) -> None:
            return

        def forward(self, *args):
            for name in self.weights:
                raw = getattr(self.module, f"{name}_raw")
                setattr(self.module, name, functional.dropout(raw, self.dropout, self.training).clone())
            return self.module.forward(*args)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Embedding(40, 24)
            sizes = [(24, 32), (32, 32), (32, 24)]
            self.rnns = nn.ModuleList([WeightDrop(nn.LSTM(*size), ["weight_hh_l0"], 0.5) for size in sizes])
            self.decoder = nn.Linear(24, 40)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.encoder(ids)
            for rnn in self.rnns:
                x, _ = rnn(x)
            return self.decoder(x)

    ids = torch.randint(0, 40, (10, 3))
    return Case(Model(), lambda model: model(ids), converts=3)


def fastai() -> Case:
    """fastai's AWD-LSTM, which keeps its states as attributes and wraps its LSTMs in WeightDropout."""
    from fastai.text.models.awdlstm import AWD_LSTM

    model = AWD_LSTM(vocab_sz=60, emb_sz=20, n_hid=32, n_layers=3)
    ids = torch.randint(0, 60, (4, 9))

    def run(model: nn.Module) -> Tensor:
        model.reset()
        return model(ids)

    return Case(model, run, converts=3)


def joeynmt() -> Case:
    """JoeyNMT's recurrent encoder and decoder: packed sequences, two directions, attention, isinstance questions."""
    from joeynmt.decoders import RecurrentDecoder
    from joeynmt.encoders import RecurrentEncoder

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(40, 16)
            self.encoder = RecurrentEncoder(rnn_type="lstm", hidden_size=16, emb_size=16, num_layers=2, dropout=0.1)
            self.decoder = RecurrentDecoder(
                rnn_type="lstm", emb_size=16, hidden_size=32, encoder=self.encoder, num_layers=2, vocab_size=40,
                init_hidden="last", dropout=0.1,
            )  # fmt: skip

        def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
            mask = (torch.arange(source.size(1)) < lengths.unsqueeze(1)).unsqueeze(1)
            encoded, hidden = self.encoder(self.embedding(source), lengths, mask)
            arguments = {"unroll_steps": target.size(1), "trg_mask": None}
            return self.decoder(self.embedding(target), encoded, hidden, mask, **arguments)[0]

    source, target = torch.randint(0, 40, (3, 7)), torch.randint(0, 40, (3, 5))
    return Case(Translator(), lambda model: model(source, torch.tensor([7, 5, 4]), target), converts=2)


def tacotron2() -> Case:
    """torchaudio's Tacotron 2: a bidirectional LSTM, LSTM cells with states as attributes, convolutions.

    Its file is read from the package's folder, because the package itself loads a library built for another torch.
    """
    path = Path(os.environ["G2LSTM_TORCHAUDIO"]) / "torchaudio/models/tacotron2.py"
    spec = importlib.util.spec_from_file_location("tacotron2", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Tacotron2(
        n_mels=8, n_symbol=20, symbol_embedding_dim=16, encoder_embedding_dim=16, attention_rnn_dim=24,
        attention_hidden_dim=12, decoder_rnn_dim=24, prenet_dim=12, postnet_embedding_dim=16, gate_threshold=2.0,
        decoder_max_step=6, attention_dropout=0.0, decoder_dropout=0.0,
    )  # fmt: skip
    tokens, lengths = torch.randint(0, 20, (2, 6)), torch.tensor([6, 5])
    mels, mel_lengths = torch.randn(2, 8, 7), torch.tensor([7, 6])

    def run(model: nn.Module) -> Tensor:
        torch.manual_seed(5)  # its prenet always drops
        return model(tokens, lengths, mels, mel_lengths)[0]

    return Case(model, run, converts=3)


def sb3_contrib() -> Case:
    """sb3-contrib's recurrent policy: two LSTMs, episode starts that reset their states."""
    import gymnasium
    import numpy as np
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
    from sb3_contrib.common.recurrent.type_aliases import RNNStates

    space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)
    policy = RecurrentActorCriticPolicy(space, gymnasium.spaces.Discrete(3), lambda _: 1e-3, lstm_hidden_size=24)
    observations, starts = torch.randn(8, 6), torch.zeros(8)
    starts[3] = 1.0

    def run(model: nn.Module) -> Tensor:
        zero = torch.zeros(1, 2, 24)
        states = RNNStates((zero, zero), (zero, zero))
        values, log_prob, _ = model.evaluate_actions(observations, torch.arange(8) % 3, states, starts)
        return torch.cat([values.flatten(), log_prob])

    return Case(policy, run, converts=2)


def silero_vad() -> Case:
    """silero-vad with the trained weights of its package: convolutions, an LSTM cell, a state between calls."""
    import silero_vad
    from safetensors.torch import load_file

    class Vad(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
            self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
            self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
            self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
            self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
            self.lstm_cell = nn.LSTMCell(128, 128)
            self.final_conv = nn.Conv1d(128, 1, 1)

        def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None):
            x = self.stft_conv(functional.pad(x, (0, 64), "reflect").unsqueeze(1))
            x = (x[:, :129].square() + x[:, 129:].square()).sqrt()
            for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
                x = conv(x).relu()
            h, c = self.lstm_cell(x.squeeze(-1), state)
            return self.final_conv(h.unsqueeze(-1).relu()).sigmoid().squeeze(-1), (h, c)

    model = Vad()
    model.load_state_dict(load_file(Path(silero_vad.__file__).parent / "data/silero_vad_16k.safetensors"))
    seconds = torch.arange(16000 * 3) / 16000
    voice = sum(torch.sin(2 * math.pi * 140 * k * seconds) / k for k in range(1, 12))  # a buzz like a voice's
    sound = 0.1 * voice * (0.5 + 0.5 * torch.sin(2 * math.pi * 4 * seconds)) + 0.002 * torch.randn(len(seconds))
    sound[16000:24000] *= 0.01
    frames = sound.unfold(0, 576, 512)

    def states(model: nn.Module) -> Tensor:  # and outputs, which are probabilities and alike in direction
        steps, state = [], None
        for frame in frames:
            output, state = model(frame.unsqueeze(0), state)
            steps.append(torch.cat([output.flatten(), state[0].flatten()]))
        return torch.stack(steps)

    def sequence(model: nn.Module, _frames: Tensor) -> Tensor:
        return states(model)[:, :1]

    return Case(model, states, is_trained=True, is_causal=True, frames=frames, sequence=sequence)


CASES = {
    case.__name__: case
    for case in (word_language_model, awd_lstm_lm, fastai, joeynmt, tacotron2, sb3_contrib, silero_vad)
}
