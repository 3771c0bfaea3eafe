"""Stand-in for `extra.lr_scheduler`: rates computed on the device from a counter of steps."""

from __future__ import annotations

from aster_ml import Tensor
from aster_ml.nn.optim import Optimizer


class OneCycleLR:
    """A straight line up to max_lr over a part of all steps, and one down over the rest."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        div_factor: float,
        final_div_factor: float,
        total_steps: int,
        pct_start: float,
    ) -> None:
        self.optimizer = optimizer
        self.first = max_lr / div_factor
        self.peak = max_lr
        self.last = self.first / final_div_factor
        self.total_steps = total_steps
        self.rise = total_steps * pct_start
        self.epoch_counter = Tensor(
            [0], requires_grad=False, device=self.optimizer.device
        ).contiguous()
        self.optimizer.lr.assign(self.get_lr()).realize()

    def get_lr(self) -> Tensor:
        """The rate of the step that the counter is at."""
        up = self.first + (self.peak - self.first) * self.epoch_counter / self.rise
        way = (self.epoch_counter - self.rise) / (self.total_steps - self.rise)
        down = self.peak + (self.last - self.peak) * way
        return (self.epoch_counter < self.rise).where(up, down).cast(self.optimizer.lr.dtype)

    def schedule_step(self) -> list[Tensor]:
        """What `step` realizes."""
        self.epoch_counter.assign(self.epoch_counter + 1)
        self.optimizer.lr.assign(self.get_lr())
        return [self.epoch_counter, self.optimizer.lr]

    def step(self) -> None:
        """Gives the optimiser the rate of the next step."""
        Tensor.realize(*self.schedule_step())
