"""Checks of lesson 07: each receives what the learner wrote; its docstring is the hint."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

from aster_ml import Device, Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import custom_device


def runtime(open_backend: object) -> SimpleNamespace:
    """What `register` takes."""
    return SimpleNamespace(DOC="of an exercise", missing=lambda: None, open_backend=open_backend)


def check_CountingAllocator(learner: ModuleType) -> None:
    """Pass every method on to `inner`; alloc adds to `held`, free takes away."""
    memory = learner.CountingAllocator(custom_device.MemoryOfBytes())
    parts = (memory, custom_device.NoQueue())
    Device.register("COUNTED", runtime(lambda name: custom_device.LessonBackend(name, *parts)))
    assert memory.held == 0, "held is not 0 at first"
    t = Tensor(np.zeros(1000, np.float32), device="COUNTED").realize()
    assert memory.held == 4000, f"4,000 bytes are in use and it says {memory.held}"
    assert t.sum().item() == 0, "a sum came out wrong"
    del t
    assert memory.held < 4000, "what was given back is still counted"


def check_scalar_backend(learner: ModuleType) -> None:
    """dataclasses.replace(target, vector_bits=0), in a subclass of LessonBackend."""
    Device.register("SCALAR", runtime(learner.scalar_backend))
    assert Device["SCALAR"].target.vector_bits == 0, "its target has SIMD"
    values = np.random.default_rng(0).normal(size=(9, 9)).astype(np.float32)
    t = Tensor(values, device="SCALAR")
    assert np.allclose((t @ t).numpy(), values @ values, atol=1e-5), "a product came out wrong"


def check_slowest(learner: ModuleType) -> None:
    """Add the seconds up by name first."""
    got = learner.slowest([("a", 0.5), ("b", 0.4), ("b", 0.4), ("c", 0.1)])
    assert got == "b", f"of a: 0.5, b: 0.4 + 0.4, c: 0.1 it says {got!r}"


def check_fill(learner: ModuleType) -> None:
    """compile, load, alloc, call with launch=ThreadParts(count), copyout: part 4 of the lesson."""
    Device.register("LESSON", custom_device)
    got = learner.fill(Device["LESSON"], 2.5, 7)
    assert np.frombuffer(got, np.float32).tolist() == [2.5] * 7, "the bytes are others"
