"""Records a function and replays it."""

from typing import assert_type

from aster_ml import Tensor, TinyJit


@TinyJit
def step(x: Tensor) -> Tensor:
    return (x * 2).realize()


assert_type(step, TinyJit[Tensor])
for _ in range(3):
    out = step(Tensor([1.0, 2.0]).realize())
    assert_type(out, Tensor)
    assert out.tolist() == [2.0, 4.0]
