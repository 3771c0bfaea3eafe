"""Oclgrind sees no race in kernels of ours, and sees one where there is one."""

from __future__ import annotations

import shutil
import sys

import pytest

from aster_ml.device import missing
from tests.conformance.oclgrind import watched

ABSENT = missing("OPENCL") or (
    None if shutil.which("oclgrind") else "oclgrind is not installed; apt-get install oclgrind"
)
needs_oclgrind = pytest.mark.skipif(ABSENT is not None, reason=f"Oclgrind: {ABSENT}")

OURS = """
import numpy as np
from aster_ml import Tensor
x = np.random.default_rng(0).standard_normal((40, 96)).astype(np.float32)
t = Tensor(x)
for got, wanted in (
    (t.sum(1), x.sum(1)), (t.sum(0), x.sum(0)), (t @ t.T, x @ x.T), (t.max(1), x.max(1)),
    (t.softmax(1).sum(1), np.ones(40)), (t * 2 + 1, x * 2 + 1),
):
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-3, atol=1e-4)
"""
RACE = """
import numpy as np
import pyopencl as cl
device = cl.get_platforms()[0].get_devices()[0]
context = cl.Context([device])
queue = cl.CommandQueue(context)
# Volatile: a compiler may take it that each work-item reads what it has written.
source = '''__kernel void k(__global int *out) {
  __local volatile int shared[2];
  shared[0] = get_local_id(0);
  out[get_local_id(0)] = shared[0];
}'''
out = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
cl.Program(context, source).build().k(queue, (8,), (8,), out)
queue.finish()
"""


@pytest.mark.slow
@pytest.mark.opencl
@needs_oclgrind
def test_kernels_of_ours_have_no_races() -> None:
    found = watched([sys.executable, "-c", OURS], timeout=300)
    assert found.is_clean, found.output[-3000:]


@pytest.mark.slow
@pytest.mark.opencl
@needs_oclgrind
def test_a_race_is_seen() -> None:
    found = watched([sys.executable, "-c", RACE], timeout=300)
    assert found.errors["data races"], found.output[-3000:]
