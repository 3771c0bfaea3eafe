"""Solutions of lesson 04."""

from aster_ml import Tensor, TinyJit, nn
from aster_ml.nn.state import get_parameters


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of rows of logits [n, 10] whose greatest value is at the label [n]."""
    return (logits.argmax(axis=1) == labels).float().mean().item()


def confusion(said: Tensor, labels: Tensor) -> Tensor:
    """[10, 10]: how often label i was read as j, for said and labels of [n], without a loop."""
    return labels.one_hot(10).float().T @ said.one_hot(10).float()


class SmallReader:
    """A network of at most 8,000 parameters: x [n, 1, 28, 28] of floats -> [n, 10]."""

    def __init__(self) -> None:
        self.conv1 = nn.Conv2d(1, 8, 5, stride=2)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2)
        self.decide = nn.Linear(16 * 5 * 5, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.conv1(x).relu()
        return self.decide(self.conv2(x).relu().flatten(1))


def train(model: SmallReader, x: Tensor, labels: Tensor, epochs: int) -> list[float]:
    """Trains on x [n, 1, 28, 28] in batches of 50, by a recorded step; the loss of each step."""
    optimizer = nn.optim.Adam(get_parameters(model), lr=0.004)

    @TinyJit
    def step(x: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(labels)
        loss.backward()
        optimizer.step()
        return loss.realize()

    losses = []
    with Tensor.train():
        for _ in range(epochs):
            order = Tensor.randperm(x.shape[0]).realize()
            for start in range(0, x.shape[0], 50):
                numbers = order[start : start + 50]
                losses.append(step(x[numbers].realize(), labels[numbers].realize()).item())
    return losses
