"""A convolutional network reads real handwritten digits: trained, saved, loaded, looked at.

About six hours. Run with `aster lesson run 04`; it takes under a minute.
"""

import tempfile
import time
from pathlib import Path

import numpy as np

from aster_ml import Context, GlobalCounters, Tensor, TinyJit, nn
from aster_ml.nn.datasets import mnist_5k
from aster_ml.nn.state import get_parameters, get_state_dict, load_state_dict, safe_load, safe_save

# %% 1. Data: 5,000 real digits, 1,000 of them held out
#
# The accuracy that counts is that on digits which the network has never seen. Here every fifth
# one is put aside before anything else happens. (`mnist()` of the same module gives all 70,000
# where there is a network to fetch them from.)

pixels, labels = (t.numpy() for t in mnist_5k())
held_out = np.arange(len(labels)) % 5 == 0
x_train, y_train = pixels[~held_out], labels[~held_out].astype(np.int32)
x_test, y_test = Tensor(pixels[held_out]), labels[held_out].astype(np.int32)
print(x_train.shape, x_test.shape, x_train.dtype, x_train.max())
# > (4000, 1, 28, 28) (1000, 1, 28, 28) uint8 255

# %% 2. The network
#
# A model is a plain class that holds layers; calling it builds the graph. Two convolutions find
# strokes and then shapes, pooling makes it matter less where they are, a linear layer decides.


class Reader:
    """Shapes: x [n, 1, 28, 28], uint8 -> logits [n, 10]."""

    def __init__(self) -> None:
        self.conv1 = nn.Conv2d(1, 16, 5, bias=False)
        self.norm1 = nn.BatchNorm(16)
        self.conv2 = nn.Conv2d(16, 32, 5, bias=False)
        self.norm2 = nn.BatchNorm(32)
        self.decide = nn.Linear(32 * 4 * 4, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.float() / 255
        x = self.norm1(self.conv1(x).max_pool2d()).relu()  # [n, 16, 12, 12]
        x = self.norm2(self.conv2(x).max_pool2d()).relu()  # [n, 32, 4, 4]
        return self.decide(x.flatten(1).dropout(0.3))


Tensor.manual_seed(0)
model = Reader()
print(sum(p.numel() for p in get_parameters(model)), "parameters in", [*get_state_dict(model)][:3])
# > ... parameters in ['conv1.weight', 'norm1.weight', 'norm1.bias']

# %% 3. More digits than there are
#
# 4,000 digits are few. A digit that is moved by a pixel or two is still that digit, so each is
# moved at random each time it is shown: the network cannot learn places by heart.

padded = np.pad(x_train, ((0, 0), (0, 0), (3, 3), (3, 3)))
rng = np.random.default_rng(0)


def moved(numbers: np.ndarray) -> np.ndarray:
    """These digits, each at another place."""
    shifts = rng.integers(0, 7, size=(len(numbers), 2))
    pieces = [padded[i, :, y : y + 28, x : x + 28] for i, (y, x) in zip(numbers, shifts)]
    return np.stack(pieces)


# %% 4. The step, recorded
#
# Forward, backward and update are one function. TinyJit runs it once, records it the second time,
# and replays the recording from then on: no Python between its kernels.

EPOCHS, BATCH = 14, 100
optimizer = nn.optim.AdamW(get_parameters(model), lr=0.01, weight_decay=0.02)
rate = nn.schedule.OneCycleLR(optimizer, 0.01, EPOCHS * len(x_train) // BATCH, pct_start=0.25)


@TinyJit
def step(x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = model(x).sparse_categorical_crossentropy(y, label_smoothing=0.1)
    loss.backward()
    Tensor.realize(loss, *optimizer.schedule_step(), *rate.schedule_step())
    return loss


losses, times = [], []
with Tensor.train():
    for _ in range(EPOCHS):
        order = rng.permutation(len(x_train))
        for start in range(0, len(order), BATCH):
            numbers = order[start : start + BATCH]
            x, y = Tensor(moved(numbers)).realize(), Tensor(y_train[numbers]).realize()
            began = time.perf_counter()
            losses.append(step(x, y).item())
            times.append(time.perf_counter() - began)
print("the loss fell to a third:", np.mean(losses[-40:]) < np.mean(losses[:5]) / 3)
# > the loss fell to a third: True
print(f"first step {times[0]:.2f} s, replayed {np.median(times):.4f} s, "
      f"{BATCH / np.median(times):,.0f} digits/s")  # fmt: skip
# > first step ... s, replayed ... s, ... digits/s

# %% 5. How good is it?


def read(model: Reader, x: Tensor) -> np.ndarray:
    """What the network reads, without dropout and with the averages of batch norm."""
    return model(x).argmax(axis=1).numpy()


said = read(model, x_test)
accuracy = (said == y_test).mean()
print("over 98% on digits it has never seen:", accuracy > 0.98)
# > over 98% on digits it has never seen: True

# %% 6. Saved, and loaded into another network
#
# A state dict names each tensor by its path. The file is a safetensors file that any framework
# reads. The loaded network must read every digit alike, also those that it gets wrong.

with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder) / "reader.safetensors")
    safe_save(get_state_dict(model), path)
    other = Reader()
    load_state_dict(other, safe_load(path), verbose=False)
    print("reads alike:", bool((read(other, x_test) == said).all()))
# > reads alike: True

# %% 7. What the settings change
#
# NOOPT=1 compiles plain loops: the same numbers (to rounding), the same kernels, but slow ones.
# BEAM=n tries other schedules on this machine and keeps what is quicker. Neither may change what
# the network reads.

batch = x_test[:50].realize()
for name, settings in (("default", {}), ("NOOPT=1", {"NOOPT": 1}), ("BEAM=1", {"BEAM": 1})):
    with Context(**settings):
        GlobalCounters.reset()
        alike = bool((read(model, batch) == said[:50]).all())
        print(f"{name:8} {GlobalCounters.kernel_count} kernels, reads alike: {alike}")
# > default  ... kernels, reads alike: True
# > NOOPT=1  ... kernels, reads alike: True
# > BEAM=1   ... kernels, reads alike: True

# %% 8. A picture of the mistakes
#
# Numbers hide what kind of mistakes there are. Draw them: what it said, what is right.

wrong = np.flatnonzero(said != y_test)
shades = " .:-=+*#%@"


def draw(image: np.ndarray) -> list[str]:
    """A digit as text, two pixels of a column in one line."""
    halves = image.reshape(14, 2, 28).mean(axis=1) / 256 * len(shades)
    return ["".join(shades[int(v)] for v in row) for row in halves]


images = x_test.numpy()[wrong, 0]
pictures = [draw(image) for image in images[:3]]
heads = [f"{said[i]} for {y_test[i]}".center(28) for i in wrong[:3]]
picture = "\n".join([" | ".join(heads), *(" | ".join(rows) for rows in zip(*pictures))])
print(len(wrong), "mistakes, drawn in", len(picture.splitlines()), "lines")
# > ... mistakes, drawn in 15 lines

# `print(picture)` shows three of them. Would you have read them rightly?

# %% What you know now
#
# The whole life of a model: data, network, jitted step, held-out accuracy, files, settings.
# Exercises: `aster lesson check 04`.
