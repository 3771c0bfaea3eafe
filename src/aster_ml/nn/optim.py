"""Defines optimisers: from parameters and their gradients to new values of the parameters.

An optimiser holds the parameters and its own state as tensors and updates both by assign, so that
a jitted step replays with the same buffers; nothing is computed before the first step. `step()`
realizes parameters, state and buffers (the tensors it was given that take no gradient, such as
running statistics) together: one schedule.
The learning rate is a tensor of shape [1]; `nn.schedule` moves it.

Nothing here knows of layers or data.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from aster_ml import Device, Tensor, dtypes
from aster_ml.errors import ArgumentError, AsterError, GradientError
from aster_ml.extend import check_tensor

NEWTON_SCHULZ_QUINTIC = (3.4445, -4.775, 2.0315)


def check_not_negative(optimizer: str, **values: float) -> None:
    """Rates and decays below zero are mistakes, not settings."""
    for name, value in values.items():
        if isinstance(value, str):
            raise ArgumentError(f"{optimizer}: {name}={value!r} is text; a number is wanted")
        if value < 0:
            raise ArgumentError(f"{optimizer}: {name}={value} is negative")


def check_unit(optimizer: str, **values: float) -> None:
    """Factors of running averages lie in [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ArgumentError(f"{optimizer}: {name}={value} is not in [0, 1)")


class Optimizer:
    """Base of all optimisers: the parameters, the learning rate and the step.

    A parameter whose `requires_grad` is undecided is set to take a gradient; one that says no goes
    to `buffers`, which a step realizes and does not change. With `fused` an update that treats
    every element alike runs over one flat tensor of all parameters: fewer and larger kernels, at
    the price of joining and splitting. Updates that look at a parameter as a whole (LARS, LAMB,
    Muon) are the same with and without it.

    Raises: ArgumentError when there is no parameter to train, or a value makes no sense.
    """

    elementwise = True

    def __init__(self, params: list[Tensor], lr: float, fused: bool = False) -> None:
        check_not_negative(type(self).__name__, lr=lr)
        name = type(self).__name__
        if not hasattr(params, "__iter__"):
            raise ArgumentError(f"{name}: parameters are {params!r}; a list of tensors is wanted")
        given = list({id(t): t for t in params}.values())
        for t in given:
            check_tensor(t, name)
        for t in given:
            if t.requires_grad is None:
                t.requires_grad = True
        self.params: list[Tensor] = [t for t in given if t.requires_grad]
        self.buffers: list[Tensor] = [t for t in given if not t.requires_grad]
        if not self.params:
            raise ArgumentError(
                f"{type(self).__name__}: none of the {len(given)} tensors given takes a gradient "
                "(requires_grad is False); nn.state.get_parameters(model) gives those of a model"
            )
        for i, t in enumerate(self.params):
            if not dtypes.is_float(t.dtype):
                raise ArgumentError(
                    f"{type(self).__name__}: parameter {i} of shape {list(t.shape)} has dtype "
                    f"{t.dtype}, a float dtype is wanted"
                )
        self.fused = bool(fused) and self.elementwise
        sizes = [int(t.numel()) for t in self.params]
        self.offsets = [0, *itertools.accumulate(sizes)]
        dtype = dtypes.float64 if dtypes.default_float == dtypes.float64 else dtypes.float32
        self.lr = Tensor([lr], dtype=dtype, device=self.device, requires_grad=False).contiguous()

    @property
    def device(self) -> str:
        """Where the first parameter is, and with it the learning rate."""
        device: str = self.params[0].device
        return device

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for t in self.params:
            t.grad = None

    def step(self) -> None:
        """Move the parameters once along their gradients.

        Raises: RuntimeError when `Tensor.training` does not hold; GradientError when a parameter
        has no gradient.
        """
        if not Tensor.training:
            raise AsterError(
                f"{type(self).__name__}.step() with Tensor.training=False: run it inside "
                "`with Tensor.train():`, or set Tensor.training = True"
            )
        Tensor.realize(*self.schedule_step())

    def schedule_step(self) -> list[Tensor]:
        """The same as `step()` without realizing: all tensors that have to be realized."""
        grads = [self.gradient_of(i) for i in range(len(self.params))]
        shared = self.begin_step()
        if self.fused:
            flat = self.update(
                0,
                Tensor.cat(*[t.detach().flatten() for t in self.params]),
                Tensor.cat(*[g.flatten() for g in grads]),
                shared,
            )
            values = [
                flat[start:stop].reshape(t.shape)
                for start, stop, t in zip(self.offsets, self.offsets[1:], self.params)
            ]
        else:
            values = [
                self.update(i, t.detach(), g, shared)
                for i, (t, g) in enumerate(zip(self.params, grads))
            ]
        for t, value in zip(self.params, values):
            t.assign(value.cast(t.dtype))
        return [*self.state(), *self.params, *self.buffers, self.lr]

    def gradient_of(self, i: int) -> Tensor:
        """The gradient of parameter i."""
        t = self.params[i]
        if t.grad is None:
            raise GradientError(
                f"{type(self).__name__}: parameter {i} of {len(self.params)}, shape "
                f"{list(t.shape)}, has no gradient: call loss.backward() after zero_grad() and "
                "before step(); if the loss does not depend on it, leave it out of the optimizer "
                "or set its requires_grad to False"
            )
        grad: Tensor = t.grad
        return grad

    def new_state(self) -> list[Tensor]:
        """Zeros for one running average: a tensor a parameter, or one for all when fused.

        Dtype: float32 for parameters of fewer bits, so that small steps are not lost.
        """
        if self.fused:
            wide = any(t.dtype == dtypes.float64 for t in self.params)
            dtype = dtypes.float64 if wide else dtypes.float32
            zeros = [
                Tensor.zeros(self.offsets[-1], dtype=dtype, device=self.device, requires_grad=False)
            ]
        else:
            zeros = [
                t.zeros_like(
                    dtype=t.dtype if t.dtype == dtypes.float64 else dtypes.float32,
                    requires_grad=False,
                )
                for t in self.params
            ]
        return [z.contiguous() for z in zeros]

    def state(self) -> list[Tensor]:
        """The tensors that a step changes beside the parameters."""
        return []

    def begin_step(self) -> tuple[Tensor, ...]:
        """Change what changes once a step; returns what all updates of the step share."""
        return ()

    def update(self, i: int, t: Tensor, g: Tensor, shared: tuple[Tensor, ...]) -> Tensor:
        """The new value of parameter i, which is t, along its gradient g."""
        raise NotImplementedError(f"{type(self).__name__} has to define update(i, t, g, shared)")


class OptimizerGroup(Optimizer):
    """Several optimisers that step as one, each with its own parameters."""

    def __init__(self, *optimizers: Optimizer) -> None:
        if not optimizers:
            raise ArgumentError("OptimizerGroup: at least one optimizer is wanted")
        for o in optimizers:
            if not isinstance(o, Optimizer):
                raise ArgumentError(f"OptimizerGroup: {o!r} is no optimizer")
        self.optimizers = optimizers
        self.params = [t for o in optimizers for t in o.params]
        self.buffers = [t for o in optimizers for t in o.buffers]

    def __getitem__(self, i: int) -> Optimizer:
        return self.optimizers[i]

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for o in self.optimizers:
            o.zero_grad()

    def schedule_step(self) -> list[Tensor]:
        """All tensors that a step of every optimiser has to realize."""
        return [t for o in self.optimizers for t in o.schedule_step()]


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, Nesterov momentum and weight decay.

    The decay is added to the gradient. With `classic` the learning rate scales a gradient as it
    enters the momentum, and otherwise the sum as it leaves: the same while the rate is constant.
    Without a momentum `nesterov` and `classic` change nothing.

    Source: Sutskever et al. 2013; PyTorch's SGD.
    """

    def __init__(
        self,
        params: list[Tensor],
        lr: float = 0.001,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        classic: bool = False,
        fused: bool = False,
    ) -> None:
        super().__init__(params, lr, fused)
        check_unit(type(self).__name__, momentum=momentum)
        check_not_negative(type(self).__name__, weight_decay=weight_decay)
        self.momentum, self.wd = momentum, weight_decay
        self.nesterov, self.classic = nesterov, classic
        self.b = self.new_state() if momentum else []

    def state(self) -> list[Tensor]:
        """The momenta."""
        return self.b

    def update(self, i: int, t: Tensor, g: Tensor, shared: tuple[Tensor, ...]) -> Tensor:
        """t - lr * (momentum of g + wd * t)."""
        if self.wd:
            g = g + t * self.wd
        if self.classic:
            return t - self.accumulate(i, g * self.lr)
        return t - self.accumulate(i, g) * self.lr

    def accumulate(self, i: int, g: Tensor) -> Tensor:
        """The gradient with its momentum."""
        if not self.momentum:
            return g
        b = self.b[i]
        # The average may have been moved, to a device with more room.
        b.assign(b * self.momentum + g.to(b.device))
        here = b.to(g.device)
        return g + here * self.momentum if self.nesterov else here


class LARS(SGD):
    """SGD with a rate of its own for every parameter: `tcoef * |t| / (|g| + wd * |t|)`.

    With `ns_steps` the momentum is made orthogonal by that many Newton-Schulz steps. With `pre_wd`
    the decay is added to the gradient, and otherwise the parameter shrinks by `lr * wd`.

    Source: You, Gitman and Ginsburg 2017.
    """

    elementwise = False

    def __init__(
        self,
        params: list[Tensor],
        lr: float = 0.001,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        ns_steps: int = 0,
        ns_coefficients: tuple[float, ...] | None = None,
        nesterov: bool = False,
        classic: bool = True,
        pre_wd: bool = True,
        tcoef: float = 0.001,
        fused: bool = False,
    ) -> None:
        super().__init__(params, lr, momentum, weight_decay, nesterov, classic, fused)
        check_not_negative(type(self).__name__, ns_steps=ns_steps, tcoef=tcoef)
        self.ns_steps, self.pre_wd, self.tcoef = ns_steps, pre_wd, tcoef
        self.ns_coefficients = ns_coefficients or NEWTON_SCHULZ_QUINTIC

    def update(self, i: int, t: Tensor, g: Tensor, shared: tuple[Tensor, ...]) -> Tensor:
        """t - rate * momentum of g, the decay where `pre_wd` says."""
        rate = self.lr * self.trust(t, g) if self.tcoef else self.lr
        if self.wd and self.pre_wd:
            g = g + t * self.wd
        if self.classic:
            g = g * rate
        g = self.accumulate(i, g)
        if self.ns_steps:
            g = self.orthogonalize(g)
        if self.wd and not self.pre_wd:
            t = t * (1 - self.lr * self.wd)
        return t - (g if self.classic else g * rate)

    def trust(self, t: Tensor, g: Tensor) -> Tensor:
        """The ratio of norms, 1 where either norm is 0."""
        size, slope = norm(t), norm(g)
        ratio = size * self.tcoef / (slope + size * self.wd)
        return ((size > 0) & (slope > 0)).where(ratio, 1.0)

    def orthogonalize(self, g: Tensor) -> Tensor:
        """The gradient as a matrix (first axis by all others) with singular values near 1."""
        matrix = g.reshape(g.shape[0], -1)
        return matrix.newton_schulz(self.ns_steps, params=self.ns_coefficients).reshape(g.shape)


class Muon(LARS):
    """SGD with momentum whose step is made orthogonal, for weights of two or more axes.

    Biases, norms and embeddings are better served by `AdamW`; `OptimizerGroup` joins the two.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
    """

    def __init__(
        self,
        params: list[Tensor],
        lr: float = 0.001,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        ns_steps: int = 5,
        ns_coefficients: tuple[float, ...] = NEWTON_SCHULZ_QUINTIC,
        nesterov: bool = True,
        fused: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            momentum,
            weight_decay,
            ns_steps,
            ns_coefficients,
            nesterov,
            classic=False,
            pre_wd=False,
            tcoef=0.0,
            fused=fused,
        )
        for i, t in enumerate(self.params):
            if t.ndim == 0:
                raise ArgumentError(f"Muon: parameter {i} is a single number, a matrix is wanted")


class LAMB(Optimizer):
    """Adam's step, scaled for every parameter by the ratio of its norm to the step's norm.

    Source: You et al. 2019.
    """

    elementwise = False

    def __init__(
        self,
        params: list[Tensor],
        lr: float = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam: bool = False,
        fused: bool = False,
    ) -> None:
        self.elementwise = adam
        super().__init__(params, lr, fused)
        check_unit(type(self).__name__, b1=b1, b2=b2)
        check_not_negative(type(self).__name__, eps=eps, weight_decay=weight_decay)
        self.b1, self.b2, self.eps, self.wd, self.adam = b1, b2, eps, weight_decay, adam
        # b1 and b2 to the power of the steps taken, for the correction of the averages' start. In
        # float32 their differences to 1 would have few digits.
        self.b1_t, self.b2_t = (
            Tensor.ones(
                1, dtype=dtypes.float64, device=wide_place(self.device), requires_grad=False
            ).contiguous()
            for _ in range(2)
        )
        self.m = self.new_state()
        self.v = self.new_state()

    def state(self) -> list[Tensor]:
        """The powers of b1 and b2 and the running averages."""
        return [self.b1_t, self.b2_t, *self.m, *self.v]

    def begin_step(self) -> tuple[Tensor, ...]:
        """Raise the powers by one; returns the corrections of the two averages."""
        self.b1_t.assign(self.b1_t * self.b1)
        self.b2_t.assign(self.b2_t * self.b2)
        return (1 - self.b1_t).reciprocal(), (1 - self.b2_t).reciprocal()

    def update(self, i: int, t: Tensor, g: Tensor, shared: tuple[Tensor, ...]) -> Tensor:
        """t - rate * (m / (sqrt(v) + eps) + wd * t) with the corrected averages m and v."""
        m, v = self.m[i], self.v[i]
        correction1, correction2 = [x.cast(m.dtype).to(m.device) for x in shared]
        # The averages may have been moved, to a device with more room.
        g = g.to(m.device)
        m.assign(m + (g - m) * (1 - self.b1))
        v.assign(v + (g * g - v) * (1 - self.b2))
        step = ((m * correction1) / ((v * correction2).sqrt() + self.eps)).to(t.device)
        if self.wd:
            step = step + t * self.wd
        if self.adam:
            return t - step * self.lr
        size, length = norm(t), norm(step)
        ratio = ((size > 0) & (length > 0)).where(size / length, 1.0)
        return t - step * (self.lr * ratio)


class AdamW(LAMB):
    """Adam with the decay apart from the gradient: the parameter shrinks by `lr * weight_decay`.

    Source: Loshchilov and Hutter 2019.
    """

    def __init__(
        self,
        params: list[Tensor],
        lr: float = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        fused: bool = False,
    ) -> None:
        super().__init__(params, lr, b1, b2, eps, weight_decay, adam=True, fused=fused)


class Adam(LAMB):
    """A step by the running mean of the gradient over the root of that of its square.

    Source: Kingma and Ba 2015.
    """

    def __init__(
        self,
        params: list[Tensor],
        lr: float = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        fused: bool = False,
    ) -> None:
        super().__init__(params, lr, b1, b2, eps, 0.0, adam=True, fused=fused)


def wide_place(device: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Where single numbers of float64 are computed for a device: there, or else on the CPU."""
    first = device if isinstance(device, str) else device[0]
    return device if "float64" in Device[first].target.native_dtypes else "CPU"


def norm(t: Tensor) -> Tensor:
    """The Euclidean length of all elements, in float32 or wider."""
    return (t if t.dtype == dtypes.float64 else t.float()).square().sum().sqrt()


def all_optimizers(optimizer: Optimizer) -> Sequence[Optimizer]:
    """The optimisers of a group, however nested, or the optimiser itself."""
    if not isinstance(optimizer, OptimizerGroup):
        return [optimizer]
    return [leaf for o in optimizer.optimizers for leaf in all_optimizers(o)]
