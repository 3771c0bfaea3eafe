"""Normalisation, dropout and attention against PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.tensor import Tensor
from aster_ml.uop.graph import toposort
from aster_ml.uop.ops import Ops
from tests.core.numerics import check_torch, tensor, value


def random(*shape: int, seed: int = 0) -> Any:
    """Normal numbers."""
    return np.random.RandomState(seed + len(shape)).randn(*shape)


@pytest.mark.torch
def test_layernorm() -> None:
    norm = pytest.importorskip("torch.nn.functional").layer_norm
    check_torch(lambda x: x.layernorm(), lambda x: norm(x, (5,)), random(3, 4, 5))
    check_torch(
        lambda x: x.layernorm((1, 2), eps=0.1), lambda x: norm(x, (4, 5), eps=0.1), random(3, 4, 5)
    )


def test_layernorm_of_halves_is_computed_in_float32() -> None:
    x = tensor(np.array([[300.0, -300, 300, -300]], np.float16))
    y = x.layernorm()
    assert y.dtype is dtypes.float16
    np.testing.assert_array_equal(value(y), [[1, -1, 1, -1]])  # 300 ** 2 is no float16


@pytest.mark.torch
@pytest.mark.parametrize("affine", [True, False])
def test_batchnorm_in_training(affine: bool) -> None:
    norm = pytest.importorskip("torch.nn.functional").batch_norm

    def ours(x: Tensor, *affine: Tensor) -> Tensor:
        mean = x.mean((0, 2))
        centred = x - mean.reshape(1, 4, 1)
        invstd = ((centred * centred).mean((0, 2)) + 1e-5).rsqrt()
        return x.batchnorm(*(affine or (None, None)), mean, invstd)

    check_torch(
        ours,
        lambda x, *affine: norm(x, None, None, *affine, training=True),
        random(3, 4, 5),
        *([random(4), random(4, seed=9)] if affine else []),
    )


@pytest.mark.torch
def test_batchnorm_with_given_statistics() -> None:
    torch = pytest.importorskip("torch")
    mean, var = random(4), np.abs(random(4)) + 0.5
    check_torch(
        lambda x, w, b: x.batchnorm(w, b, tensor(mean), tensor(1 / np.sqrt(var + 1e-5))),
        lambda x, w, b: torch.nn.functional.batch_norm(
            x, torch.tensor(mean), torch.tensor(var), w, b
        ),
        random(3, 4, 5, 2),
        random(4),
        random(4, seed=9),
    )


def test_batchnorm_along_other_axes() -> None:
    x, mean = random(3, 4, 5), random(3, 5)
    have = tensor(x).batchnorm(None, None, tensor(mean), tensor(np.full((3, 5), 2.0)), axis=(0, 2))
    np.testing.assert_allclose(value(have), (x - mean[:, None]) * 2)
    whole = tensor(x).batchnorm(None, None, tensor(random(4)), tensor(np.full(x.shape, 3.0)))
    np.testing.assert_allclose(value(whole), (x - random(4)[:, None]) * 3)


def test_batchnorm_multiplies_each_element_once() -> None:
    x, c = tensor(random(2, 3, 4)), tensor(random(3))
    graph = toposort(x.batchnorm(c, c, c, c).uop)
    assert sum(u.op is Ops.MUL and u.shape == (2, 3, 4) for u in graph) == 1


# dropout


def test_dropout_outside_of_training_does_nothing() -> None:
    x = tensor(random(3))
    same = x.dropout(0.5)
    with Tensor.train():
        kept = x.dropout(0)
    want = value(x).copy()
    # Values of their own: what is written to x later is not theirs.
    x += 1
    assert (value(same) == want).all()
    assert (value(kept) == want).all()


def test_dropout() -> None:
    x = Tensor(np.full((100, 100), 3, np.float32))
    with Tensor.train():
        y = value(x.dropout(0.25))
        again = value(x.dropout(0.25))
        assert not value(x.dropout(1)).any()
    assert set(np.unique(y)) == {0, 4}
    assert abs((y == 0).mean() - 0.25) < 0.02
    assert (y != again).any()


def test_dropout_gradient_has_the_same_zeros() -> None:
    x = Tensor(np.ones((10, 10), np.float32))
    with Tensor.train():
        y = x.dropout(0.5)
    (grad,) = y.sum().gradient(x)
    np.testing.assert_array_equal(value(grad), value(y))


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_dropout_refuses(p: float) -> None:
    with pytest.raises(ArgumentError, match=f"dropout: p is {p}"):
        tensor(random(3)).dropout(p)


# attention

Q, K, V = random(2, 4, 3, 8), random(2, 4, 5, 8, seed=1), random(2, 4, 5, 7, seed=2)
MASK = np.random.RandomState(3).rand(3, 5) > 0.4
MASK[:, 0] = True


@pytest.mark.torch
@pytest.mark.parametrize("config", [{}, {"is_causal": True}], ids=str)
def test_attention(config: dict[str, Any]) -> None:
    theirs = pytest.importorskip("torch.nn.functional").scaled_dot_product_attention
    check_torch(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, **config),
        lambda q, k, v: theirs(q, k, v, **config),
        Q,
        K,
        V,
    )


@pytest.mark.torch
@pytest.mark.parametrize(
    "mask", [MASK, random(3, 5), random(2, 1, 3, 5)], ids=["bool", "float", "float with axes"]
)
def test_attention_mask(mask: Any) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.functional.scaled_dot_product_attention
    check_torch(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, attn_mask=tensor(mask)),
        lambda q, k, v: theirs(q, k, v, attn_mask=torch.tensor(mask)),
        Q,
        K,
        V,
    )


def rows_without_number(result: Any) -> list[int]:
    """Of one head, the rows of a result that a NaN or an infinity has reached."""
    return np.flatnonzero(~np.isfinite(np.asarray(result)).all(-1)).tolist()


@pytest.mark.torch
@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("n", [2, 7, 64])
def test_hidden_keys_reach_nothing_and_hidden_values_what_they_are_multiplied_for(
    n: int, number: float
) -> None:
    """As docs/reference/floats.md says it; PyTorch's fused kernel of a triangle does so, too."""
    torch = pytest.importorskip("torch")
    q, k, v = (random(n, 16, seed=i) for i in range(3))
    bad_k, bad_v = k.copy(), v.copy()
    bad_k[-1] = bad_v[-1] = number
    seen = np.arange(n) < n - 1

    def ours(keys: Any, values: Any, **config: Any) -> list[int]:
        return rows_without_number(
            Tensor(q).scaled_dot_product_attention(Tensor(keys), Tensor(values), **config).numpy()
        )

    def theirs(keys: Any, values: Any, **config: Any) -> list[int]:
        given = [torch.tensor(x)[None, None] for x in (q, keys, values)]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            result = torch.nn.functional.scaled_dot_product_attention(*given, **config)
        return rows_without_number(result[0, 0])

    assert ours(bad_k, v, is_causal=True) == theirs(bad_k, v, is_causal=True) == [n - 1]
    assert ours(k, bad_v, is_causal=True) == theirs(k, bad_v, is_causal=True) == list(range(n))
    mask = np.tile(seen, (n, 1))
    assert ours(bad_k, v, attn_mask=Tensor(mask)) == []
    assert ours(k, bad_v, attn_mask=Tensor(mask)) == list(range(n))


@pytest.mark.torch
def test_attention_with_shared_heads() -> None:
    theirs = pytest.importorskip("torch.nn.functional").scaled_dot_product_attention
    check_torch(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, enable_gqa=True),
        lambda q, k, v: theirs(q, k, v, enable_gqa=True),
        Q,
        K[:, :2],
        V[:, :2],
    )


def test_attention_of_halves() -> None:
    q, k, v = (tensor(a.astype(np.float16)) for a in (Q, K, V))
    have = q.scaled_dot_product_attention(k, v)
    assert have.dtype is dtypes.float16
    scores = Q @ K.swapaxes(-1, -2) / math.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ V
    np.testing.assert_allclose(value(have), want, atol=5e-3)


def test_attention_drops_out_in_training_only() -> None:
    q, k, v = (Tensor(a.astype(np.float32)) for a in (Q, K, V))
    still = value(q.scaled_dot_product_attention(k, v, dropout_p=0.5))
    np.testing.assert_array_equal(still, value(q.scaled_dot_product_attention(k, v)))
    with Tensor.train():
        assert (value(q.scaled_dot_product_attention(k, v, dropout_p=0.5)) != still).any()


def test_attention_refuses() -> None:
    q, k, v = tensor(Q), tensor(K), tensor(V)
    with pytest.raises(ArgumentError, match="is_causal stands for a mask, and attn_mask is given"):
        q.scaled_dot_product_attention(k, v, attn_mask=tensor(MASK), is_causal=True)
    three = tensor(K[:, :3])
    with pytest.raises(ShapeError, match="4 heads of queries do not share the 3 heads"):
        q.scaled_dot_product_attention(three, three, enable_gqa=True)


def test_sequential() -> None:
    x = tensor(np.array([-1.0, 2]))
    have = x.sequential([Tensor.relu, lambda t: t + 1, lambda t: t * 2])
    assert value(have).tolist() == [2, 6]
