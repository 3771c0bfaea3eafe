"""Defines learning-rate schedules: a rate for every step, assigned to an optimiser.

A schedule computes all its rates once, in Python, and keeps them as a tensor; a step moves a
counter and copies the rate that it points at. Both are tensors that are assigned to, so
`schedule.step()` works inside a jitted training step, where a rate computed in Python would freeze.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError
from aster_ml.nn.optim import Optimizer, all_optimizers


class LRSchedule:
    """The rates given, one a step; the last one stays once they are used up.

    The optimiser has the first rate as soon as the schedule exists; call `step()` after each step
    of the optimiser. An `OptimizerGroup` gets the same rate throughout.

    Raises: ArgumentError when there is no rate, or one is negative or not finite.
    """

    def __init__(self, optimizer: Optimizer, rates: Sequence[float]) -> None:
        if not rates:
            raise ArgumentError(f"{type(self).__name__}: at least one rate is wanted")
        for i, rate in enumerate(rates):
            if not (math.isfinite(rate) and rate >= 0):
                raise ArgumentError(
                    f"{type(self).__name__}: the rate of step {i} is {rate}, a finite number of "
                    "at least 0 is wanted"
                )
        self.optimizers = all_optimizers(optimizer)
        device = self.optimizers[0].device
        self.last = len(rates) - 1
        self.rates = Tensor(
            list(rates), dtype=dtypes.float32, device=device, requires_grad=False
        ).realize()
        self.steps_taken = Tensor([0], dtype=dtypes.int32, device=device, requires_grad=False)
        self.steps_taken.realize()
        for o in self.optimizers:
            o.lr.assign(self.rates[0:1].cast(o.lr.dtype)).realize()

    def schedule_step(self) -> list[Tensor]:
        """The same as `step()` without realizing: all tensors that have to be realized."""
        self.steps_taken.assign((self.steps_taken + 1).minimum(self.last))
        rate = self.rates[self.steps_taken]
        for o in self.optimizers:
            o.lr.assign(rate.cast(o.lr.dtype))
        return [self.steps_taken, *[o.lr for o in self.optimizers]]

    def step(self) -> None:
        """Give the optimiser the rate of the next step."""
        Tensor.realize(*self.schedule_step())


def rates_with_warmup(
    name: str, total_steps: int, warmup_steps: int, lr: float, after: Callable[[float], float]
) -> list[float]:
    """A straight line up to lr over the warm-up, then `after(fraction of the way)`.

    The first step of a warm-up of n steps has the rate lr / n, and the n-th has lr itself.
    """
    if total_steps < 1 or not 0 <= warmup_steps < total_steps:
        raise ArgumentError(
            f"{name}: total_steps={total_steps} and warmup_steps={warmup_steps}; "
            "0 <= warmup_steps < total_steps is wanted"
        )
    rise = [lr * (i + 1) / warmup_steps for i in range(warmup_steps)]
    rest = total_steps - warmup_steps
    return rise + [after(i / max(rest - 1, 1)) for i in range(rest)]


def cosine_between(start: float, stop: float, fraction: float) -> float:
    """From start at 0 to stop at 1 along half a cosine."""
    return stop + (start - stop) * (1 + math.cos(math.pi * fraction)) / 2


class ConstantLR(LRSchedule):
    """The rate lr, after a linear warm-up."""

    def __init__(self, optimizer: Optimizer, lr: float, warmup_steps: int = 0) -> None:
        super().__init__(
            optimizer,
            rates_with_warmup("ConstantLR", warmup_steps + 1, warmup_steps, lr, lambda _: lr),
        )


class CosineLR(LRSchedule):
    """A linear warm-up to lr, then half a cosine down to end_lr at the last step.

    Source: Loshchilov and Hutter 2017, without restarts.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr: float,
        total_steps: int,
        warmup_steps: int = 0,
        end_lr: float = 0.0,
    ) -> None:
        super().__init__(
            optimizer,
            rates_with_warmup(
                "CosineLR",
                total_steps,
                warmup_steps,
                lr,
                lambda fraction: cosine_between(lr, end_lr, fraction),
            ),
        )


class OneCycleLR(LRSchedule):
    """Half a cosine up to max_lr, then half a cosine down; the rise is the warm-up.

    The rise starts at max_lr / div_factor and takes `pct_start` of the steps; the fall ends at
    max_lr / div_factor / final_div_factor. With `anneal="linear"` both are straight lines.

    Source: Smith and Topin 2017; names and defaults are those of PyTorch's OneCycleLR.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int,
        pct_start: float = 0.3,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        anneal: str = "cos",
    ) -> None:
        if total_steps < 2 or not 0 < pct_start < 1:
            raise ArgumentError(
                f"OneCycleLR: total_steps={total_steps} and pct_start={pct_start}; at least 2 "
                "steps and a fraction between 0 and 1 are wanted"
            )
        if anneal not in ("cos", "linear"):
            raise ArgumentError(f"OneCycleLR: anneal={anneal!r}, 'cos' or 'linear' is wanted")
        curve = cosine_between if anneal == "cos" else line_between
        start, end = max_lr / div_factor, max_lr / div_factor / final_div_factor
        peak = pct_start * total_steps - 1
        super().__init__(
            optimizer,
            [
                curve(start, max_lr, i / peak if peak > 0 else 1.0)
                if i <= peak
                else curve(max_lr, end, (i - peak) / (total_steps - 1 - peak))
                for i in range(total_steps)
            ],
        )


def line_between(start: float, stop: float, fraction: float) -> float:
    """From start at 0 to stop at 1 along a straight line."""
    return start + (stop - start) * fraction
