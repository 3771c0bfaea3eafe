"""Sums of products with few tiles of results are split for devices with processors of tiles."""

from __future__ import annotations

import pytest

from aster_ml import Tensor
from aster_ml.schedule.rewrites.split_reduce import sides_of_product, split_one
from aster_ml.schedule.work import Workers
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

CARD = Workers(256, 1 << 15, 32, units=132)


def sum_of(m: int, k: int, n: int, dtype: str) -> UOp:
    """The REDUCE of a product."""
    t = Tensor.empty(m, k, dtype=dtype).matmul(Tensor.empty(k, n, dtype=dtype), dtype="float32")
    return next(u for u in toposort(t.uop) if u.op is Ops.REDUCE)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("m", "k", "n", "parts"),
    [
        (256, 16384, 256, 16), (64, 4096, 4096, 4), (8, 4096, 4096, 1), (2, 16384, 512, 16),
        (4096, 4096, 4096, 1), (256, 512, 256, 1), (1024, 8192, 1024, 1), (128, 7, 128, 1),
    ],
)  # fmt: skip
def test_parts(dtype: str, m: int, k: int, n: int, parts: int) -> None:
    u = sum_of(m, k, n, dtype)
    assert sorted(sides_of_product(u) or ()) == sorted((m, n))
    split = split_one(u, lambda device: CARD)
    assert split.shape == u.shape
    stored = [x for x in toposort(split) if x.op is Ops.CONTIGUOUS]
    assert [x.shape for x in stored] == ([(parts, m, n, 1)] if parts > 1 else [])
    # What a tensor core multiplies is made wider last.
    if dtype == "float16" and stored:
        factors = stored[0].src[0].src[0].src
        assert {f.op for f in factors} == {Ops.CAST}


def test_what_is_no_product_has_no_sides() -> None:
    x = Tensor.empty(64, 64)
    for t in (x.sum(0), (x * x).sum(0)):
        u = next(u for u in toposort(t.uop) if u.op is Ops.REDUCE)
        assert sides_of_product(u) is None
