"""Exercises of lesson 04. Replace each `raise` and run `aster lesson check 04`."""

from aster_ml import Tensor


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of rows of logits [n, 10] whose greatest value is at the label [n]."""
    raise NotImplementedError


def confusion(said: Tensor, labels: Tensor) -> Tensor:
    """[10, 10]: how often label i was read as j, for said and labels of [n], without a loop."""
    raise NotImplementedError


class SmallReader:
    """A network of at most 8,000 parameters: x [n, 1, 28, 28] of floats -> [n, 10]."""

    def __init__(self) -> None:
        raise NotImplementedError

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def train(model: SmallReader, x: Tensor, labels: Tensor, epochs: int) -> list[float]:
    """Trains on x [n, 1, 28, 28] in batches of 50, by a recorded step; the loss of each step."""
    raise NotImplementedError
