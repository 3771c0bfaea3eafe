"""Trains a convolutional network that reads real handwritten digits, in well under a minute.

Run by `make demo`. 4,000 of 5,000 digits of MNIST are trained on, each time a little shifted,
turned and scaled by tensor ops; 1,000 are held out. It prints the share of those that are read
rightly, saves the weights, loads them into a fresh network that must read the same, and draws a
picture.

Exit codes: 0 all is well, 1 the accuracy is below 98% or the loaded network reads otherwise, or
something that the demo needs is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from aster_ml import Device, Tensor, TinyJit, nn
from aster_ml.apps.report_image import Report, draw_report
from aster_ml.errors import AsterError
from aster_ml.nn.datasets import mnist_5k
from aster_ml.nn.optim import AdamW, Optimizer
from aster_ml.nn.schedule import LRSchedule, OneCycleLR
from aster_ml.nn.state import (
    get_parameters,
    get_state_dict,
    load_state_dict,
    safe_load,
    safe_save,
)

HELD_OUT_PER_DIGIT = 100
BATCH = 100
EPOCHS = 15
MAX_LR = 0.01
LABEL_SMOOTHING = 0.1
WANTED_ACCURACY = 0.98
# The largest change of one training image.
MAX_TURN = math.radians(12)
MAX_SCALE = 0.12
MAX_SHIFT_PIXELS = 2.0
SIDE, BORDER = 28, 1
PADDED = SIDE + 2 * BORDER


class DigitReader:
    """Two convolutions, each with pooling and batch normalisation, and one linear layer.

    Shapes: x [n, 1, 28, 28] -> [n, 10].
    """

    def __init__(self) -> None:
        self.conv1 = nn.Conv2d(1, 16, 5, bias=False)
        self.norm1 = nn.BatchNorm(16)
        self.conv2 = nn.Conv2d(16, 32, 5, bias=False)
        self.norm2 = nn.BatchNorm(32)
        self.head = nn.Linear(32 * 4 * 4, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm1(self.conv1(x).max_pool2d()).relu()  # [n, 16, 12, 12]
        x = self.norm2(self.conv2(x).max_pool2d()).relu()  # [n, 32, 4, 4]
        return self.head(x.flatten(1))


class Split(NamedTuple):
    """The digits to train on and those held out, as arrays: images [n, 1, 28, 28], labels [n]."""

    x_train: np.ndarray[Any, np.dtype[np.uint8]]
    y_train: np.ndarray[Any, np.dtype[np.uint8]]
    x_held_out: np.ndarray[Any, np.dtype[np.uint8]]
    y_held_out: np.ndarray[Any, np.dtype[np.uint8]]


def load_digits() -> Split:
    """The 5,000 digits, 100 of each kind held out: always the same ones, drawn by a fixed seed."""
    x, y = (t.numpy() for t in mnist_5k())
    rng = np.random.default_rng(0)
    held_out = np.concatenate(
        [rng.permutation(np.flatnonzero(y == digit))[:HELD_OUT_PER_DIGIT] for digit in range(10)]
    )
    rng.shuffle(held_out)
    rest = np.setdiff1d(np.arange(len(y)), held_out)
    return Split(x[rest], y[rest], x[held_out], y[held_out])


def normalize(pixels: Tensor) -> Tensor:
    """Bytes as numbers between 0 and 1."""
    return pixels.float() / 255


class Warper:
    """Training images by their numbers, each a little turned, scaled and shifted at random.

    Holds all images in one flat tensor with an empty border around each. A warped image looks up,
    for every pixel, the four pixels around the place it comes from and mixes them: indexing with
    integer tensors, and nothing else.
    """

    def __init__(self, images: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        padded = np.pad(images[:, 0], ((0, 0), (BORDER, BORDER), (BORDER, BORDER)))
        self.pixels = Tensor(np.ascontiguousarray(padded).reshape(-1)).realize()
        centred = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
        self.rows = Tensor(np.repeat(centred, SIDE)[None]).realize()
        self.columns = Tensor(np.tile(centred, SIDE)[None]).realize()

    def __call__(self, numbers: Tensor) -> Tensor:
        """Warped copies of the images with these numbers.

        Shapes: numbers int [n] -> [n, 1, 28, 28].
        """
        return self.sample(numbers, Tensor.uniform(5, numbers.shape[0], 1, low=-1.0, high=1.0))

    def sample(self, numbers: Tensor, noise: Tensor) -> Tensor:
        """The images with these numbers, changed as far as the noise, between -1 and 1, says.

        Shapes: numbers int [n], noise [5, n, 1] -> [n, 1, 28, 28].
        """
        n = numbers.shape[0]
        angle = noise[0] * MAX_TURN
        scale_y, scale_x = noise[1] * MAX_SCALE + 1, noise[2] * MAX_SCALE + 1
        cos, sin = angle.cos(), angle.sin()
        y = (cos * self.rows + sin * self.columns) / scale_y + noise[3] * MAX_SHIFT_PIXELS
        x = (cos * self.columns - sin * self.rows) / scale_x + noise[4] * MAX_SHIFT_PIXELS
        # What comes from outside comes from the border, which is empty.
        middle = (PADDED - 1) / 2
        y, x = ((t + middle).clip(0, PADDED - 1.001) for t in (y, x))
        top, left = y.floor(), x.floor()
        first = numbers.reshape(n, 1) * (PADDED * PADDED) + (top * PADDED + left).int()
        down, right = y - top, x - left
        corners = [self.pixels[first + step].float() for step in (0, 1, PADDED, PADDED + 1)]
        above = corners[0] + (corners[1] - corners[0]) * right
        below = corners[2] + (corners[3] - corners[2]) * right
        mixed = (above + (below - above) * down) / 255
        return mixed.reshape(n, 1, SIDE, SIDE).contiguous()


class Trainer:
    """A network in training: its optimiser, its schedule, and one jitted step."""

    def __init__(self, model: DigitReader, split: Split, epochs: int) -> None:
        self.model, self.epochs = model, epochs
        self.warp = Warper(split.x_train)
        self.labels = Tensor(split.y_train.astype(np.int32)).realize()
        self.count = len(split.y_train)
        total_steps = max(2, epochs * (self.count // BATCH))
        self.optimizer: Optimizer = AdamW(
            get_parameters(model), lr=MAX_LR, b2=0.99, weight_decay=0.01
        )
        self.schedule: LRSchedule = OneCycleLR(self.optimizer, MAX_LR, total_steps, pct_start=0.25)
        self.step: Callable[[Tensor], tuple[Tensor, Tensor]] = TinyJit(self.take_step)

    def take_step(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Train once on the images with these numbers: the loss, and how many were read rightly."""
        labels = self.labels[numbers]
        logits = self.model(self.warp(numbers))
        loss = logits.sparse_categorical_crossentropy(labels, label_smoothing=LABEL_SMOOTHING)
        self.optimizer.zero_grad()
        loss.backward()
        correct = (logits.argmax(axis=1) == labels).sum()
        Tensor.realize(
            loss, correct, *self.optimizer.schedule_step(), *self.schedule.schedule_step()
        )
        return loss, correct

    def run(self, show_progress: bool = True) -> list[float]:
        """Train through all epochs; returns the loss of every step."""
        rng = np.random.default_rng(1)
        losses: list[float] = []
        correct = 0.0
        total = self.epochs * (self.count // BATCH) * BATCH
        with (
            Tensor.train(),
            tqdm(total=total, unit=" samples", disable=not show_progress, smoothing=0.1) as bar,
        ):
            for epoch in range(self.epochs):
                bar.set_description(f"epoch {epoch + 1}/{self.epochs}")
                order = rng.permutation(self.count).astype(np.int32)
                for start in range(0, self.count - BATCH + 1, BATCH):
                    numbers = Tensor(order[start : start + BATCH]).realize()
                    loss, right = self.step(numbers)
                    losses.append(loss.item())
                    # A mean over about the last twenty batches.
                    weight = max(0.05, 1 / len(losses))
                    correct += (right.item() / BATCH - correct) * weight
                    bar.set_postfix_str(
                        f"loss {losses[-1]:.3f}, accuracy {correct:.1%}", refresh=False
                    )
                    bar.update(BATCH)
        return losses


def read_digits(
    model: DigitReader, images: np.ndarray[Any, np.dtype[np.uint8]]
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Reads the digit in each image with the network."""
    batches = [images[i : i + 500] for i in range(0, len(images), 500)]
    read = [model(normalize(Tensor(batch))).argmax(axis=1).numpy() for batch in batches]
    return np.concatenate(read).astype(np.int32)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="aster demo", description="Learn to read digits.")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of weights and warps")
    parser.add_argument(
        "--folder", type=pathlib.Path, default=pathlib.Path(), help="where results are written"
    )
    options = parser.parse_args(argv)
    if options.epochs < 1:
        parser.error(f"--epochs {options.epochs}: at least 1 is wanted")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Train, evaluate, save, load, draw; returns the exit code."""
    options = parse_arguments(argv)
    if importlib.util.find_spec("PIL") is None:
        print("demo: the picture needs Pillow: pip install 'aster-ml[demo]'", file=sys.stderr)
        return 1
    try:
        split = load_digits()
    except AsterError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return run_demo(split, options)


def run_demo(split: Split, options: argparse.Namespace) -> int:
    """All of the demo once the digits are there."""
    Tensor.manual_seed(options.seed)
    model = DigitReader()
    weights = sum(int(t.numel()) for t in get_parameters(model) if t.requires_grad is not False)
    print(
        f"{len(split.y_train):,} handwritten digits to train on, {len(split.y_held_out):,} held "
        f"out; a network of {weights:,} weights, compiled for {Device.DEFAULT}"
    )
    start = time.perf_counter()
    losses = Trainer(model, split, options.epochs).run()
    seconds = time.perf_counter() - start
    read = read_digits(model, split.x_held_out)
    accuracy = float((read == split.y_held_out).mean())
    print(
        f"held-out accuracy {accuracy:.2%} ({int((read == split.y_held_out).sum())} of "
        f"{len(read)}), trained in {seconds:.1f} s"
    )
    options.folder.mkdir(parents=True, exist_ok=True)
    weights_path = options.folder / "demo.safetensors"
    safe_save(get_state_dict(model), weights_path)
    fresh = DigitReader()
    load_state_dict(fresh, safe_load(weights_path), verbose=False)
    read_again = read_digits(fresh, split.x_held_out)
    again = float((read_again == split.y_held_out).mean())
    print(f"saved {weights_path}; loaded into a fresh network: {again:.2%}")
    picture_path = options.folder / "demo.png"
    draw_report(
        picture_path,
        Report(
            title="Aster ML reads handwriting",
            subtitle=f"{accuracy:.1%} of {len(read):,} digits it had never seen, after "
            f"{seconds:.0f} seconds of training on {len(split.y_train):,} others",
            losses=losses,
            steps_per_epoch=len(split.y_train) // BATCH,
            images=split.x_held_out[:, 0],
            labels=split.y_held_out,
            read=read,
        ),
    )
    print(f"drew {picture_path}: the loss, and what the network read in held-out digits")
    if not np.array_equal(read, read_again):
        print("demo: the loaded network does not read what the saved one did", file=sys.stderr)
        return 1
    if accuracy < WANTED_ACCURACY:
        print(f"demo: {accuracy:.2%} is below {WANTED_ACCURACY:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
