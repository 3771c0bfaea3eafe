"""Computes recurrent layers: RNN, GRU and LSTM, unrolled step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aster_ml import Tensor
from aster_ml.errors import UnsupportedError
from aster_ml.onnx.ops.registry import Value, op

Activation = Callable[[Tensor], Tensor]
# What a state or an input is multiplied with, by the number of the direction.
Product = Callable[[Tensor, int], Tensor]
Step = Callable[[Tensor, list[Tensor]], list[Tensor]]


def activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    """A function by its name, with its two parameters. Raises: UnsupportedError."""
    a, b = alpha, beta
    known: dict[str, Activation] = {
        "relu": lambda x: x.relu(),
        "tanh": lambda x: x.tanh(),
        "sigmoid": lambda x: x.sigmoid(),
        "affine": lambda x: (1.0 if a is None else a) * x + (0.0 if b is None else b),
        "leakyrelu": lambda x: (x < 0).where(x * (0.01 if a is None else a), x),
        "thresholdedrelu": lambda x: (x > (1.0 if a is None else a)).where(x, 0),
        "scaledtanh": lambda x: (1.0 if a is None else a) * (x * (1.0 if b is None else b)).tanh(),
        "hardsigmoid": lambda x: (x * (0.2 if a is None else a) + (0.5 if b is None else b)).clip(
            0, 1
        ),
        "elu": lambda x: (x < 0).where((1.0 if a is None else a) * (x.exp() - 1), x),
        "softsign": lambda x: x / (1 + x.abs()),
        "softplus": lambda x: x.softplus(),
    }
    found = known.get(name.lower())
    if found is None:
        raise UnsupportedError(f"activation {name!r}; there are {', '.join(sorted(known))}")
    return found


# Activations without parameters take none from the lists of them.
WITH_ALPHA = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
LSTM_DEFAULTS = ["Sigmoid", "Tanh", "Tanh"]
WITH_BETA = {"affine", "scaledtanh", "hardsigmoid"}


class Layer:
    """Common part of RNN, GRU and LSTM: directions, steps, sequences that end early."""

    def __init__(
        self,
        x: Tensor,
        weights: tuple[Tensor, Tensor, Tensor | None],
        lengths: Tensor | None,
        states: list[Tensor | None],
        gates: int,
        defaults: list[str],
        products: tuple[Product, Product] | None = None,
        *,
        activation_alpha: list[float] | None = None,
        activation_beta: list[float] | None = None,
        activations: list[str] | None = None,
        clip: float | None = None,
        direction: str = "forward",
        hidden_size: int | None = None,
        layout: int = 0,
        output_sequence: int = 0,
    ) -> None:
        self.direction, self.layout, self.clip, self.gates = direction, layout, clip, gates
        self.x = x.transpose(0, 1) if self.layout else x
        self.w, self.r, self.b = weights
        plain: tuple[Product, Product] = (
            lambda x, number: x.matmul(self.w[number].transpose(0, 1)),
            lambda x, number: x.matmul(self.r[number].transpose(0, 1)),
        )
        self.of_input, self.of_state = products or plain
        self.size = self.r.shape[-1]
        self.lengths = lengths
        self.directions = self.w.shape[0]
        shape = (self.directions, self.x.shape[1], self.size)
        self.states = [
            Tensor.zeros(shape, dtype=x.dtype, device=x.device)
            if state is None
            else (state.transpose(0, 1) if self.layout else state)
            for state in states
        ]
        names = activations or defaults * self.directions
        alphas, betas = list(activation_alpha or []), list(activation_beta or [])
        self.functions = [
            activation(
                name,
                alphas.pop(0) if name.lower() in WITH_ALPHA and alphas else None,
                betas.pop(0) if name.lower() in WITH_BETA and betas else None,
            )
            for name in names
        ]

    def clipped(self, x: Tensor) -> Tensor:
        """Within the bounds that the layer has, if any."""
        return x if not self.clip else x.clip(-self.clip, self.clip)

    def biases(self, number: int) -> tuple[Any, Any]:
        """The biases of the inputs and of the states, in one direction."""
        if self.b is None:
            return 0.0, 0.0
        half = self.gates * self.size
        return self.b[number, :half], self.b[number, half:]

    def run(
        self, make_step: Callable[[int, list[Activation]], Step]
    ) -> tuple[Tensor, list[Tensor]]:
        """All outputs [steps, directions, batch, size] (by layout) and the last states."""
        count = len(self.functions) // self.directions
        outputs, ends = [], []
        for number in range(self.directions):
            functions = self.functions[number * count : (number + 1) * count]
            backwards = self.direction == "reverse" or number == 1
            rows, last = self.steps(number, make_step(number, functions), backwards)
            outputs.append(rows)
            ends.append(last)
        whole = (
            outputs[0].unsqueeze(1) if len(outputs) == 1 else outputs[0].stack(outputs[1], dim=1)
        )
        states = [
            column[0].unsqueeze(0) if len(column) == 1 else column[0].stack(column[1], dim=0)
            for column in zip(*ends)
        ]
        if self.layout:
            return whole.permute((2, 0, 1, 3)), [state.transpose(0, 1) for state in states]
        return whole, states

    def steps(self, number: int, step: Step, backwards: bool) -> tuple[Tensor, list[Tensor]]:
        """The outputs of one direction, step by step, and its last states."""
        length = self.x.shape[0]
        bias = self.biases(number)[0]
        # What comes from the inputs is one product for all steps.
        given = self.of_input(self.x, number) + bias
        states = [state[number] for state in self.states]
        rows: list[Tensor] = []
        order = range(length - 1, -1, -1) if backwards else range(length)
        for at in order:
            new = step(given[at], states)
            if self.lengths is not None:
                inside = (self.lengths > at).reshape((-1, 1))
                rows.append(inside.where(new[0], 0))
                states = [inside.where(n, s) for n, s in zip(new, states)]
            else:
                rows.append(new[0])
                states = new
        rows = rows[::-1] if backwards else rows
        return rows[0].stack(*rows[1:], dim=0) if len(rows) > 1 else rows[0].unsqueeze(0), states


@op("RNN", rest=Layer)
def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    **rest: Any,
) -> Value:
    """h = f(W x + R h + b)."""
    layer = Layer(x, (w, r, b), sequence_lens, [initial_h], 1, ["Tanh"], **rest)
    layer.functions = layer.functions[: layer.directions]

    def make(number: int, functions: list[Activation]) -> Step:
        back, bias = layer.r[number].transpose(0, 1), layer.biases(number)[1]

        def step(given: Tensor, states: list[Tensor]) -> list[Tensor]:
            return [functions[0](layer.clipped(given + states[0].matmul(back) + bias))]

        return step

    whole, states = layer.run(make)
    return whole, states[0]


@op("GRU", rest=Layer)
def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    linear_before_reset: int = 0,
    **rest: Any,
) -> Value:
    """Gates z and r, and h = (1 - z) g(W x + R (r h)) + z h."""
    defaults = ["Sigmoid", "Tanh"]
    layer = Layer(x, (w, r, b), sequence_lens, [initial_h], 3, defaults, **rest)
    size = layer.size

    def make(number: int, functions: list[Activation]) -> Step:
        back, bias = layer.r[number].transpose(0, 1), layer.biases(number)[1]
        f, g = functions
        gate_bias = bias if isinstance(bias, float) else bias[: 2 * size]
        last_bias = bias if isinstance(bias, float) else bias[2 * size :]

        def step(given: Tensor, states: list[Tensor]) -> list[Tensor]:
            h = states[0]
            gates = given[:, : 2 * size] + h.matmul(back[:, : 2 * size]) + gate_bias
            gates = f(layer.clipped(gates))
            z, reset = gates[:, :size], gates[:, size:]
            if linear_before_reset:
                inner = reset * (h.matmul(back[:, 2 * size :]) + last_bias)
            else:
                inner = (reset * h).matmul(back[:, 2 * size :]) + last_bias
            new = g(layer.clipped(given[:, 2 * size :] + inner))
            return [(1 - z) * new + z * h]

        return step

    whole, states = layer.run(make)
    return whole, states[0]


@op("LSTM", rest=Layer)
def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    input_forget: int = 0,
    **rest: Any,
) -> Value:
    """Gates i, o, f, c = f c + i g(..), h = o h(c), with peepholes where `p` is there."""
    states = [initial_h, initial_c]
    layer = Layer(x, (w, r, b), sequence_lens, states, 4, LSTM_DEFAULTS, **rest)
    return lstm_outputs(layer, p, input_forget)


def lstm_outputs(layer: Layer, p: Tensor | None, input_forget: int) -> Value:
    """All outputs of an LSTM and its last states."""
    size = layer.size

    def make(number: int, functions: list[Activation]) -> Step:
        bias = layer.biases(number)[1]
        f, g, last = functions
        peeps = None
        if p is not None:
            peeps = [p[number, i * size : (i + 1) * size] for i in range(3)]

        def step(given: Tensor, states: list[Tensor]) -> list[Tensor]:
            h, c = states
            gates = given + layer.of_state(h, number) + bias
            i, o, forget, cell = (gates[:, n * size : (n + 1) * size] for n in range(4))
            if peeps is not None:
                i, forget = i + peeps[0] * c, forget + peeps[2] * c
            i = f(layer.clipped(i))
            forget = 1 - i if input_forget else f(layer.clipped(forget))
            c = forget * c + i * g(layer.clipped(cell))
            o = f(layer.clipped(o if peeps is None else o + peeps[1] * c))
            return [o * last(c), c]

        return step

    whole, ends = layer.run(make)
    return whole, ends[0], ends[1]
