"""The demo's parts on real digits: warping, a few steps of training, saving, the picture."""

from __future__ import annotations

import argparse
import math
import pathlib

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit
from aster_ml.apps import demo
from aster_ml.apps.demo import DigitReader, Split, Trainer, Warper, load_digits, read_digits
from aster_ml.apps.report_image import Report, draw_report, nice_step, smooth
from aster_ml.errors import DownloadError
from aster_ml.nn.state import safe_load


@pytest.fixture(scope="module")
def split() -> Split:
    """The real digits, where the package that has them is installed."""
    try:
        return load_digits()
    except DownloadError as error:
        pytest.skip(str(error))


def few(split: Split, train: int, held_out: int) -> Split:
    """A part of the digits, mixed."""
    order = np.random.default_rng(3).permutation(len(split.y_train))[:train]
    return Split(
        split.x_train[order],
        split.y_train[order],
        split.x_held_out[:held_out],
        split.y_held_out[:held_out],
    )


def test_the_split_is_fixed_and_keeps_the_sets_apart(split: Split) -> None:
    again = load_digits()
    np.testing.assert_array_equal(again.x_held_out, split.x_held_out)
    assert len(split.y_train) == 4000
    assert np.bincount(split.y_held_out).tolist() == [100] * 10
    assert np.bincount(split.y_train).tolist() == [400] * 10
    trained = {image.tobytes() for image in split.x_train}
    assert sum(image.tobytes() in trained for image in split.x_held_out) == 0
    assert len(set(split.y_held_out[:20].tolist())) > 3, "mixed, not sorted"


def warp(images: np.ndarray, noise: list[float]) -> np.ndarray:
    """All images, warped by the same noise: turn, two scales, two shifts."""
    n = len(images)
    values = np.repeat(np.array(noise, np.float32).reshape(5, 1, 1), n, axis=1)
    return Warper(images).sample(Tensor(np.arange(n, dtype=np.int32)), Tensor(values)).numpy()


def test_no_noise_changes_nothing(split: Split) -> None:
    images = split.x_held_out[:8]
    np.testing.assert_allclose(warp(images, [0, 0, 0, 0, 0]), images / 255, atol=1e-4)


def test_shift_moves_whole_pixels(split: Split) -> None:
    images = split.x_held_out[:8]
    got = warp(images, [0, 0, 0, 0.5, -1.0])
    want = np.zeros_like(got)
    want[:, :, :-1, 2:] = images[:, :, 1:, :-2] / 255
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_turn_and_scale_mix_the_four_pixels_around(split: Split) -> None:
    image = split.x_held_out[:1]
    got = warp(image, [1.0, -0.5, 0.5, 0.25, 0.125])[0, 0]
    padded = np.pad(image[0, 0] / 255.0, 2)
    cos, sin = math.cos(demo.MAX_TURN), math.sin(demo.MAX_TURN)
    for i, j in [(14, 14), (10, 17), (5, 9), (20, 12), (17, 6), (0, 0), (27, 27)]:
        r, c = i - 13.5, j - 13.5
        y = (cos * r + sin * c) / (1 - 0.5 * demo.MAX_SCALE) + 0.25 * demo.MAX_SHIFT_PIXELS
        x = (cos * c - sin * r) / (1 + 0.5 * demo.MAX_SCALE) + 0.125 * demo.MAX_SHIFT_PIXELS
        y, x = (min(max(v + 15.5, 0), 30.0) for v in (y, x))
        top, left = int(y), int(x)
        down, right = y - top, x - left
        want = (1 - down) * (1 - right) * padded[top, left] + (1 - down) * right * padded[
            top, left + 1
        ]
        want += (
            down * (1 - right) * padded[top + 1, left] + down * right * padded[top + 1, left + 1]
        )
        assert got[i, j] == pytest.approx(want, abs=1e-3), (i, j)


def test_every_call_warps_otherwise_jitted_too(split: Split) -> None:
    warper = Warper(split.x_train[:10])
    jitted = TinyJit(lambda numbers: warper(numbers).realize())
    same = np.full(10, 4, np.int32)
    seen = [jitted(Tensor(same).realize()).numpy() for _ in range(4)]
    images = [image.tobytes() for batch in seen for image in batch]
    assert len(set(images)) == 40
    for batch in seen:
        assert 0 <= batch.min() <= batch.max() <= 1
        # The same digit, so much the same ink.
        assert np.ptp(batch.mean(axis=(1, 2, 3))) < 0.1


def test_loss_falls_and_digits_are_learnt(split: Split) -> None:
    part = few(split, 1000, 200)
    Tensor.manual_seed(4)
    model = DigitReader()
    before = (read_digits(model, part.x_held_out) == part.y_held_out).mean()
    losses = Trainer(model, part, epochs=3).run(show_progress=False)
    after = (read_digits(model, part.x_held_out) == part.y_held_out).mean()
    assert len(losses) == 30
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:3])
    assert before < 0.4
    assert after > 0.8


def run_small_demo(part: Split, folder: pathlib.Path) -> int:
    """The demo with little training."""
    return demo.run_demo(part, argparse.Namespace(epochs=1, seed=0, folder=folder))


def test_demo_writes_weights_and_picture_and_fails_below_the_mark(
    split: Split, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is absent")
    code = run_small_demo(few(split, 300, 100), tmp_path / "out")
    output = capsys.readouterr()
    assert code == 1, "one epoch of 300 digits is too little for 98%"
    assert "is below 98%" in output.err
    assert "300 handwritten digits to train on, 100 held out" in output.out
    lines = {line.split()[0]: line for line in output.out.splitlines()}
    said = lines["held-out"].split()[2]
    assert lines["saved"].endswith(f"fresh network: {said}")
    assert "conv1.weight" in safe_load(tmp_path / "out" / "demo.safetensors")
    with image_module.open(tmp_path / "out" / "demo.png") as picture:
        assert picture.size == (1280, 828)


def test_demo_succeeds_above_the_mark(
    split: Split, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL", reason="Pillow is absent")
    monkeypatch.setattr(demo, "WANTED_ACCURACY", 0.05)
    assert run_small_demo(few(split, 300, 100), tmp_path) == 0


def test_demo_without_its_digits_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL", reason="Pillow is absent")

    def absent() -> Split:
        raise DownloadError("the digits are nowhere")

    monkeypatch.setattr(demo, "load_digits", absent)
    assert demo.main([]) == 1
    assert "demo: the digits are nowhere" in capsys.readouterr().err


def test_demo_refuses_no_training(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--epochs", "0"])
    assert "--epochs 0: at least 1 is wanted" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_demo_reads_98_percent(tmp_path: pathlib.Path, split: Split) -> None:
    pytest.importorskip("PIL", reason="Pillow is absent")
    assert demo.main(["--folder", str(tmp_path)]) == 0


def draw(path: pathlib.Path, losses: list[float], wrong: int) -> np.ndarray:
    """A picture of 100 squares of which some are misread, as an array."""
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is absent")
    images = np.zeros((100, 28, 28), np.uint8)
    images[:, 8:20, 8:20] = 255
    labels = np.arange(100) % 10
    read = labels.copy()
    read[:wrong] = (read[:wrong] + 1) % 10
    draw_report(path, Report("title", "subtitle", losses, 10, images, labels, read))
    with image_module.open(path) as picture:
        return np.asarray(picture).astype(int)


def reddish(picture: np.ndarray) -> int:
    """How many pixels have the colour that marks a misread digit."""
    red, green, blue = picture[..., 0], picture[..., 1], picture[..., 2]
    return int(((red > 150) & (green < 110) & (blue < 110)).sum())


def test_picture_marks_what_was_misread(tmp_path: pathlib.Path) -> None:
    losses = np.linspace(2.3, 0.5, 50).tolist()
    none, two, many = (draw(tmp_path / "p.png", losses, wrong) for wrong in (0, 2, 50))
    assert reddish(none) == 0
    assert 0 < reddish(two) < reddish(many)
    blue = (two[:, :560, 2] > two[:, :560, 0] + 60).sum()
    assert blue > 300, "the curve is there"


@pytest.mark.parametrize("losses", [[2.0], [1.0, 1.0], [0.0, 0.0, 0.0], [5000.0, 1e-3]])
def test_picture_of_odd_curves(tmp_path: pathlib.Path, losses: list[float]) -> None:
    assert draw(tmp_path / "p.png", losses, 1).shape == (828, 1280, 3)


def test_scales_and_means() -> None:
    assert nice_step(2.3, 6) == 0.5
    assert nice_step(12, 6) == 2
    assert nice_step(70, 6) == 20
    assert smooth([3.0, 3.0, 3.0]) == pytest.approx([3.0, 3.0, 3.0])
    assert smooth([1.0, 0.0])[1] == pytest.approx(0.9 / 1.9)
