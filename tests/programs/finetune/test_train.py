"""Learning: gradients, the same losses as PyTorch, the same bits after a break."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from aster_ml import GlobalCounters, Tensor
from aster_ml.apps.finetune import __main__ as command
from aster_ml.apps.finetune.bench import in_a_process, write_task
from aster_ml.apps.finetune.checkpoint import resume, save
from aster_ml.apps.finetune.data import NOTHING, TARGETS, Example, pack
from aster_ml.apps.finetune.plot import draw_losses
from aster_ml.apps.finetune.train import Recipe, Trainer, add_adapters, layers_named
from aster_ml.apps.llm.architectures import read_config
from aster_ml.apps.llm.model import Chunk, Model
from aster_ml.apps.llm.weights import load_weights
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.nn.state import gguf_load
from tests.programs.llm.random_models import write_model
from tests.programs.llm.test_model import CASES

NAMED: dict[str, Any] = {"model": "x.gguf", "bytes": 1, "dtype": "f32"}
RECIPE = Recipe(rank=2, alpha=4.0, targets="all", length=16, accumulate=1, rate=1e-2)


def examples(count: int, size: int = 7) -> list[Example]:
    """Texts of random tokens."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 256, (count, size))
    return [Example([int(t) for t in row], [True] * size) for row in drawn]


def make(
    path: pathlib.Path, recipe: Recipe = RECIPE, dtype: str = "f32", texts: int = 8
) -> Trainer:
    """A small model that learns some texts."""
    metadata, tensors = gguf_load(path, raw=True)
    config, weights = read_config(metadata), load_weights(tensors, dtype)
    adapters = add_adapters(weights, config, recipe)
    model = Model(config, weights, recipe.length, slots=0)
    return Trainer(model, adapters, pack(examples(texts), recipe.length), recipe)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small random llama."""
    path = tmp_path_factory.mktemp("finetune") / "x.gguf"
    write_model(path, "llama")
    return path


def test_texts_of_a_row_do_not_see_one_another(llama: pathlib.Path) -> None:
    """The loss of texts in one row is that of each alone, as a chat would compute it."""
    trainer = make(llama)
    row = trainer.rows[:1]
    share = Tensor(np.ones(1, np.float32))
    got = trainer.loss(Tensor(row), Tensor(trainer.learned_of(row)), share).item()
    context = Model(trainer.model.config, trainer.model.weights, 16, 1, "f32")
    want = 0.0
    for text in (e.tokens for e in examples(8)[:2]):
        place = Chunk(context.positions, 0, 0, len(text))
        logits = context.logits(context.hidden(Tensor([text], dtype="int32"), place))
        odds = logits.log_softmax().numpy()[0]
        want -= sum([float(odds[i, token]) for i, token in enumerate(text[1:])])
    assert got == pytest.approx(want, rel=1e-5)


OTHERS = ("qwen3moe", "gemma2", "phi3", "phi2")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in OTHERS]


@pytest.mark.parametrize("name", ["llama", *SLOW])
def test_the_slope_is_what_a_small_step_does(name: str, tmp_path: pathlib.Path) -> None:
    """The gradient along a random direction, against the difference of two losses."""
    write_model(tmp_path / "x.gguf", name, **CASES.get(name, {}))
    trainer = make(tmp_path / "x.gguf")
    rng = np.random.default_rng(1)
    for t in trainer.parameters:
        t.assign(Tensor(rng.normal(size=t.shape).astype(np.float32) * 0.1)).realize()
    rows = trainer.rows[:1]
    given = Tensor(rows), Tensor(trainer.learned_of(rows)), Tensor(np.full(1, 0.1, np.float32))
    with Tensor.train():
        trainer.add_gradients(*given)
    ways = [rng.normal(size=t.shape).astype(np.float32) for t in trainer.parameters]
    slope = sum([float((w * g.numpy()).sum()) for w, g in zip(ways, trainer.sums)])
    size, ends = 2e-3, []
    before = [t.numpy() for t in trainer.parameters]
    for side in (1, -1):
        for t, value, w in zip(trainer.parameters, before, ways):
            t.assign(Tensor(value + side * size * w)).realize()
        ends.append(trainer.loss(*given).item())
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * size), rel=2e-2, abs=2e-3)
    assert all([np.abs(g.numpy()).max() > 0 for g in trainer.sums])


def test_batches_and_accumulation_give_the_same_step(llama: pathlib.Path) -> None:
    found = []
    for batch, accumulate in ((4, 1), (2, 2)):
        trainer = make(llama, replace(RECIPE, batch=batch, accumulate=accumulate))
        losses = [trainer.step()[0] for _ in range(3)]
        found.append((losses, [t.numpy() for t in trainer.parameters]))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
    for a, b in zip(found[1][1], found[0][1]):
        np.testing.assert_allclose(a, b, atol=2e-4)


def test_each_row_is_learned_once_an_epoch(llama: pathlib.Path) -> None:
    trainer = make(llama, replace(RECIPE, batch=2, accumulate=2, epochs=2), texts=22)
    assert len(trainer.rows) == 11
    assert trainer.total == 6
    for epoch in range(2):
        seen = np.concatenate([b for i in range(3) for b in trainer.batches(3 * epoch + i)])
        taught = seen[(seen[:, TARGETS] != NOTHING).any(-1)]
        assert sorted(taught.reshape(11, -1).tolist()) == sorted(
            trainer.rows.reshape(11, -1).tolist()
        )


@pytest.mark.parametrize("dtype", [pytest.param("f32", marks=pytest.mark.slow), "packed"])
def test_the_same_bits_after_a_break(dtype: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama", quantise="Q8_0")
    recipe = replace(RECIPE, epochs=2, accumulate=2, warmup=2)
    whole = make(path, recipe, dtype, texts=12)
    want = [whole.step()[0] for _ in range(whole.total)]
    assert len(want) == 6
    first = make(path, recipe, dtype, texts=12)
    assert [first.step()[0] for _ in range(3)] == want[:3]
    save(tmp_path / "run", first, NAMED)
    second = make(path, recipe, dtype, texts=12)
    assert resume(tmp_path / "run", second, NAMED) == 3
    for _ in range(3):
        second.step()
    assert second.losses == want
    for a, b in zip(second.parameters, whole.parameters):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert want[-1] < want[0]


def test_a_run_goes_on_with_what_it_began_with(llama: pathlib.Path, tmp_path: pathlib.Path) -> None:
    first = make(llama)
    with pytest.raises(FormatError, match="safetensors is absent"):
        resume(tmp_path, first, NAMED)
    save(tmp_path, first, NAMED)
    for recipe, named, want in (
        (replace(RECIPE, rate=0.5), NAMED, "rate was 0.01 and is 0.5 now"),
        (replace(RECIPE, rank=3), NAMED, "rank was 2 and is 3"),
        (RECIPE, {**NAMED, "bytes": 2}, "bytes was 1 and is 2"),
    ):
        with pytest.raises(FormatError, match=want):
            resume(tmp_path, make(llama, recipe), named)
    with pytest.raises(FormatError, match="rows was"):
        resume(tmp_path, make(llama, texts=9), NAMED)


@pytest.mark.slow
@pytest.mark.torch
def test_losses_are_those_of_pytorch(llama: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    recipe = replace(RECIPE, targets="q,v,down", steps=100)
    task = write_task(llama, recipe, tmp_path)
    row = json.loads(task.read_text())
    peer = pathlib.Path(command.__file__).with_name("torch_peer.py")
    want = in_a_process(str(peer), str(task))["losses"]
    trainer = make(llama, recipe, texts=1)
    trainer.rows[0, 0], trainer.rows[0, 1] = row["tokens"], row["targets"]
    trainer.rows[0, 2], trainer.rows[0, 3] = range(16), 1
    got = [trainer.step()[0] for _ in want]
    np.testing.assert_allclose(got, want, rtol=2e-4)
    assert want[-1] < want[0]


def test_names_of_layers_and_matrices(llama: pathlib.Path) -> None:
    assert layers_named("all", 3) == {0, 1, 2}
    assert layers_named("last 2", 5) == {3, 4}
    assert layers_named("0-2,4", 5) == {0, 1, 2, 4}
    for wrong in ("last 6", "5", "3-1", "x", "", "last x", "1-2-3", "0-99999999999"):
        with pytest.raises(ArgumentError, match="--layers"):
            layers_named(wrong, 5)
    trainer = make(llama, replace(RECIPE, targets="q,down", layers="1"))
    assert list(trainer.adapters) == ["blk.1.attn_q.weight", "blk.1.ffn_down.weight"]
    with pytest.raises(ArgumentError, match="'qkv' is none of this model"):
        make(llama, replace(RECIPE, targets="q,qkv"))


@pytest.mark.parametrize("name, value", [
    ("rank", 0), ("batch", 0), ("rate", 0.0), ("clip", float("nan")), ("warmup", -1),
])  # fmt: skip
def test_a_recipe_of_nonsense(name: str, value: float) -> None:
    with pytest.raises(ArgumentError, match=f"{name} is {value}"):
        Recipe(**{name: value})


def test_a_loss_that_is_no_number(llama: pathlib.Path) -> None:
    trainer = make(llama)
    trainer.parameters[0].assign(Tensor.full(trainer.parameters[0].shape, float("nan"))).realize()
    with pytest.raises(ArithmeticError, match="the loss of step 1 is nan"):
        trainer.step()
    assert trainer.losses == []


def test_the_matrix_of_the_vocabulary_alone_is_unpacked_once(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama", quantise="Q8_0")
    model = make(path, dtype="packed").model
    weights = model.weights
    name = "output.weight" if "output.weight" in weights.tensors else "token_embd.weight"
    assert isinstance(model.head, Tensor)
    assert model.head is not weights.tensors[name]
    assert weights.nbytes_of(weights.tensors[name]) < weights.nbytes_of(model.head)
    np.testing.assert_array_equal(model.head.numpy(), weights.tensors[name].numpy())
    plain = make(path, dtype="f32").model
    assert plain.head is plain.weights.tensors[name]


def test_no_float_copy_of_packed_weights_is_kept(tmp_path: pathlib.Path) -> None:
    """What a step leaves behind is smaller than the weights would be as floats."""
    path = tmp_path / "x.gguf"
    write_model(path, "llama", quantise="Q8_0")
    trainer = make(path, dtype="packed")
    for _ in range(3):
        trainer.step()
    weights = sum([t.numel() * 4 for t in trainer.model.weights.tensors.values() if t.ndim > 1])
    packed = trainer.model.weights.nbytes()
    before = GlobalCounters.mem_used
    trainer.step()
    assert GlobalCounters.mem_used == before
    assert packed < weights / 3


def test_the_plot() -> None:
    svg = draw_losses([3.0, 2.0, float("nan"), 1.0], "a < b")
    assert svg.count("<circle") == 3
    assert "a &lt; b" in svg
    assert draw_losses([], "x").startswith("<svg")
    assert draw_losses([1.0] * 10_000, "x").count("<circle") == 2000


def test_ten_lines_say_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for made in range(1, 76):
        command.tell(made, 75, 0.5)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 11
    assert said[0] == "step 1 of 75, loss 0.500"
    assert said[-1] == "step 75 of 75, loss 0.500"


def lines_of(count: int) -> str:
    """Texts as lines of JSON."""
    return "".join([json.dumps({"text": f"the inner {i}"}) + "\n" for i in range(count)])


def test_the_command(
    llama: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "x.jsonl", tmp_path / "run"
    data.write_text(lines_of(4))
    plain = [str(llama), str(data), "--out", str(out), "--lora", "2", "--length", "32"]
    assert command.main(plain) == 0
    said = capsys.readouterr()
    assert "steps; " in said.out
    assert "loss" in said.out
    assert said.err.startswith("step 1 of ")
    names = {"adapter_config.json", "adapter_model.safetensors", "checkpoint.safetensors"}
    assert {p.name for p in out.iterdir()} == {*names, "loss.svg"}
    assert command.main([*plain, "--resume", "--rate", "5"]) == 1
    assert "rate was 0.001 and is 5.0 now" in capsys.readouterr().err
    data.write_text("no\n")
    assert command.main(plain) == 1
    assert "line 1: it is no JSON" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        command.main([str(llama)])


@pytest.mark.slow
def test_ctrl_c_saves_and_the_run_goes_on(llama: pathlib.Path, tmp_path: pathlib.Path) -> None:
    data, out = tmp_path / "x.jsonl", tmp_path / "run"
    data.write_text(lines_of(4))
    words = [str(llama), str(data), "--out", str(out), "--length", "32", "--steps", "100000"]
    program = [sys.executable, "-m", "aster_ml.apps.finetune", *words, "--save-every", "1"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 120
        while not (out / "loss.svg").exists() and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == command.INTERRUPTED
    assert "--resume goes on" in said
    made = int(said.split("saved after step ")[1].split()[0])
    trainer, named = command.make_trainer(llama, data, Recipe(length=32, steps=100_000), "packed")
    assert resume(out, trainer, named) == made
