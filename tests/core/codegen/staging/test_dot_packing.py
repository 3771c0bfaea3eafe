"""Products of narrow numbers: their schedules, and that each way to fill panels is right."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.decompose.ops import decompose
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.device import Device
from aster_ml.dtype import dtypes
from aster_ml.engine import storage
from aster_ml.engine.compile import compile_kernel
from aster_ml.errors import KernelOptError
from aster_ml.target import PLAIN_OPS, Target
from aster_ml.uop.evaluate import evaluate, evaluate_expr
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from tests.core.kernel_checks import kernel_of

PLAIN = Target(
    "CPU",
    "llvm",
    vector_bits=512,
    vector_registers=32,
    masks=True,
    broadcasts=True,
    cache_bytes=(32 << 10, 1 << 20, 16 << 20),
)
DOTS = Target(
    "CPU", "llvm", vector_bits=512, vector_registers=32, masks=True, broadcasts=True,
    cache_bytes=(32 << 10, 1 << 20, 16 << 20),
    native_ops=PLAIN_OPS | {"DOT"}, dot_dtypes=frozenset({"int8", "bfloat16"}),
    features=frozenset({"vnni"}),
)  # fmt: skip
PAIRS = replace(
    DOTS,
    vector_bits=256,
    vector_registers=16,
    masks=False,
    broadcasts=False,
    dot_dtypes=frozenset({"int8"}),
    features=frozenset(),
)
TURNS = ("nn", "nt", "tn", "tt")


def operand(
    dtype: str, shape: tuple[int, ...], turned: bool, seed: int, fill: int | None = None
) -> tuple[Tensor, Any]:
    """A matrix, which lies in memory as its transpose if it is turned; and its exact numbers."""
    if turned:
        shape = (*shape[:-2], shape[-1], shape[-2])
    rng = np.random.default_rng(seed)
    if dtype == "int8":
        numbers = rng.integers(-128, 128, shape) if fill is None else np.full(shape, fill)
        tensor = Tensor(numbers.astype(np.int8)).realize()
    else:
        made = rng.standard_normal(shape).astype(np.float32)
        tensor = Tensor(made).cast(dtype).contiguous().realize()
        numbers = tensor.cast("float32").numpy().astype(np.float64)
    if turned:
        return tensor.transpose(-1, -2), np.swapaxes(numbers, -1, -2)
    return tensor, numbers


def multiply(dtype: str, x: Tensor, y: Tensor) -> Tensor:
    """The product; of int8 in int32."""
    return x.matmul(y, dtype=dtypes.int32) if dtype == "int8" else x @ y


def check_product(
    dtype: str, n: int, k: int, m: int, turns: str, batch: int = 1, fill: int | None = None
) -> None:
    """A product against NumPy's: of int8 exact, of floats within a step of the result's dtype."""
    outer = (batch,) if batch > 1 else ()
    x, a = operand(dtype, (*outer, n, k), turns[0] == "t", 1, fill)
    y, b = operand(dtype, (*outer, k, m), turns[1] == "t", 2, fill)
    found, want = multiply(dtype, x, y).numpy(), a @ b
    if dtype == "int8":
        np.testing.assert_array_equal(found, want)
        return
    step = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    np.testing.assert_allclose(found.astype(np.float64), want, rtol=2 * step, atol=step * k**0.5)


def product_of(dtype: str, n: int, k: int, m: int, turns: str = "nn") -> Tensor:
    x = operand(dtype, (n, k), turns[0] == "t", 1)[0]
    return multiply(dtype, x, operand(dtype, (k, m), turns[1] == "t", 2)[0])


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float16"])
@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize(
    "shape", [(40, 133, 70), (6, 678, 41), (33, 37, 7), (17, 64, 128), (130, 5, 34)]
)
def test_products_are_right(dtype: str, turns: str, shape: tuple[int, int, int]) -> None:
    check_product(dtype, *shape, turns)


@pytest.mark.parametrize("seed", range(40))
def test_products_of_any_size_are_right(seed: int) -> None:
    rng = random.Random(seed)
    n, k, m = (rng.randint(1, 70) for _ in range(3))
    dtype = rng.choice(["int8", "int8", "bfloat16", "float16"])
    check_product(dtype, n, k, m, rng.choice(TURNS), rng.choice([1, 1, 3]))


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize(
    "n, k, m", [(40, 133, 70), (1, 66, 9), (33, 37, 7), (6, 678, 41), (7, 20, 8)]
)
def test_products_of_pairs_are_right(n: int, k: int, m: int, turns: str) -> None:
    """With AVX2 a DOT of int8 is two products of pairs, and DOTs of bfloat16 are other ops."""
    with Context(ISA="avx2"):
        check_product("int8", n, k, m, turns)
        check_product("int8", n, k, m, turns, fill=-128)
        check_product("bfloat16", n, k, m, turns)


def test_what_a_dot_of_pairs_is_for() -> None:
    ast = kernel_of(product_of("int8", 64, 129, 64))
    assert Ops.DOT in [u.op for u in lower(ast, PAIRS)[0].uops]
    ast = kernel_of(product_of("bfloat16", 64, 129, 64))
    assert Ops.DOT not in [u.op for u in lower(ast, PAIRS)[0].uops]


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize("k", [16, 63, 64, 65, 129, 866])
def test_few_results_of_long_rows_are_right(dtype: str, k: int) -> None:
    check_product(dtype, 37, k, 1, "nn")
    check_product(dtype, 1, k, 50, "nt")
    check_product(dtype, 3, k, 70, "nt", 2)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize("shape", [(107, 2852, 22), (22, 2852, 107), (107, 2852, 24), (9, 3000, 5)])
def test_results_of_rows_beyond_the_first_cache_are_right(
    dtype: str, shape: tuple[int, int, int]
) -> None:
    check_product(dtype, *shape, "nt")


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("shape", [(64, 200, 96), (33, 70, 21), (5, 40, 30)])
def test_a_narrow_operand_may_meet_a_wide_one(turns: str, shape: tuple[int, int, int]) -> None:
    n, k, m = shape
    x, a = operand("float32", (n, k), turns[0] == "t", 1)
    y, b = operand("int8", (k, m), turns[1] == "t", 2)
    product = x @ y.cast("float32")
    np.testing.assert_allclose(product.numpy(), a @ b, rtol=1e-4, atol=0.02)


@pytest.mark.parametrize("k", [4, 39, 130])
def test_the_least_numbers_do_not_overflow(k: int) -> None:
    check_product("int8", 20, k, 33, "nn", fill=-128)
    check_product("int8", 20, k, 33, "tn", fill=-128)
    check_product("int8", 20, k, 1, "nn", fill=-128)


@pytest.mark.parametrize("turns", TURNS)
def test_rows_whose_panel_is_too_large_for_one_are_filled_in_parts(turns: str) -> None:
    check_product("float16", 700, 300, 320, turns)


def test_what_is_not_finite_stays_where_it_is() -> None:
    # A word that is not full has zeros at its end, and none of the infinities next to them.
    x = np.ones((8, 37), np.float32)
    x[3, 36], x[4, 35], x[5, 0], x[6, 10] = np.inf, -np.inf, np.nan, np.inf
    left = Tensor(x).cast("bfloat16").contiguous().realize()
    for columns in (40, 1):
        ones = np.ones((37, columns), np.float32)
        right = Tensor(ones).cast("bfloat16").contiguous().realize()
        found = (left @ right).cast("float32").numpy()
        np.testing.assert_array_equal(found[[3, 6]], np.inf)
        np.testing.assert_array_equal(found[4], -np.inf)
        np.testing.assert_array_equal(np.isnan(found).any(1), [i == 5 for i in range(8)])
        np.testing.assert_array_equal(found[[0, 1, 2, 7]], 37)


def test_a_product_of_itself_and_one_that_overwrites_an_operand_are_right() -> None:
    x, a = operand("bfloat16", (40, 40), False, 3)
    found = (x @ x.T).cast("float32").numpy()
    np.testing.assert_allclose(found, a @ a.T, rtol=2.0**-7, atol=0.05)
    x.assign(x @ x.T).realize()
    np.testing.assert_array_equal(x.cast("float32").numpy(), found)


def test_what_follows_a_product_is_in_its_kernel() -> None:
    x, a = operand("int8", (24, 50), False, 1)
    y, b = operand("int8", (50, 35), False, 2)
    bias = Tensor(np.arange(35, dtype=np.int32) * 1000).realize()
    found = (multiply("int8", x, y) + bias).relu()
    kernel_of(found)
    np.testing.assert_array_equal(found.numpy(), np.maximum(a @ b + np.arange(35) * 1000, 0))


def test_words_are_used_where_there_is_an_instruction_for_them() -> None:
    for dtype in ("int8", "bfloat16"):
        ast = kernel_of(product_of(dtype, 64, 129, 64))
        assert Ops.DOT in [u.op for u in lower(ast, DOTS)[0].uops]
        assert Ops.DOT not in [u.op for u in lower(ast, PLAIN)[0].uops]


def test_halves_are_converted_once_for_all_results() -> None:
    ast = kernel_of(product_of("float16", 64, 129, 64))
    linear = lower(ast, DOTS)[0]
    products = [u for u in linear.uops if u.op is Ops.MUL and u.dtype is dtypes.float32]
    assert products
    assert all(s.op is Ops.LOAD for u in products for s in u.src)


def check_with(dtype: str, device: str, turns: str, text: str, k: int = 11) -> None:
    """Runs a product of 6 rows by these Opts and compares it with NumPy's."""
    (n, m), seeds = (6, 8), (1, 2)
    with Context(DEV=device):
        x, a = operand(dtype, (n, k), turns[0] == "t", seeds[0])
        y, b = operand(dtype, (k, m), turns[1] == "t", seeds[1])
        result = multiply(dtype, x, y)
        compiled = compile_kernel(kernel_of(result), Device[device], parse_opts(text))
        out = Tensor.full((n, m), 99).cast(result.dtype).contiguous().realize()
        bases = [t.uop.base for t in (out, x, y)]
        handles = [storage.buffer_of(u).ensure_allocated().handle for u in bases]
        compiled.program(tuple(handles), (), compiled.launch)
        found = out.cast("float32").numpy().astype(np.float64)
    np.testing.assert_allclose(found, a @ b, rtol=2.0**-7, atol=0 if dtype == "int8" else 0.02)


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize(
    "dtype, group", [("int8", 4), ("bfloat16", 2), ("int8", 1), ("float16", 1)]
)
@pytest.mark.parametrize(
    "text", ["VECTOR(1,4)", "VECTOR(1,4) UPCAST(0,2) THREAD(0,0)", "UPCAST(1,5,shift) VECTOR(0,2)"]
)
def test_the_interpreter_says_the_same(dtype: str, group: int, turns: str, text: str) -> None:
    # It checks each access as well: no word is read from beyond the end of its buffer.
    check_with(
        dtype, "PYTHON", turns, text.replace(" THREAD(0,0)", "") + f" STAGE(0,{group},words)"
    )


@pytest.mark.parametrize("device", ["PYTHON", "CPU"])
@pytest.mark.parametrize("dtype, group, k", [("int8", 4, 16), ("int8", 4, 37), ("bfloat16", 2, 21)])
def test_lanes_of_words_say_the_same(device: str, dtype: str, group: int, k: int) -> None:
    check_with(dtype, device, "nt", f"UPCAST(0,3) UPCAST(1,2) STAGE(0,{group},words)", k)


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("dtype, group", [("int8", 4), ("bfloat16", 2), ("int8", 1)])
def test_c_has_no_word_for_a_dot_and_computes_it(dtype: str, group: int, turns: str) -> None:
    with Context(CLANG=1):
        check_with(dtype, "CPU", turns, f"VECTOR(1,8) UPCAST(0,3) STAGE(0,{group},words)")


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.float32])
def test_a_dot_in_other_ops_has_its_value(dtype: Any) -> None:
    rng = random.Random(5)
    for _ in range(50):
        # Exponents in the middle, so that bfloat16 has neither infinities nor NaN.
        words = [rng.getrandbits(32) & 0xBFFFBFFF for _ in range(2)]
        x, y = (UOp.const(dtypes.uint32, w) for w in words)
        split = decompose(UOp(Ops.DOT, dtype, (x, y)), PLAIN)
        want = evaluate(Ops.DOT, dtype, tuple(words), (dtypes.uint32,) * 2)
        assert evaluate_expr(split, {}) == pytest.approx(want, rel=1e-6)


def test_a_dot_of_other_kernels_is_refused() -> None:
    x = Tensor.ones(12, 32).contiguous().realize()
    with pytest.raises(KernelOptError, match=r"STAGE\(0,4,words\): a sum of products"):
        schedule_kernel(kernel_of(x @ x.T), PLAIN, parse_opts("STAGE(0,4,words)"))
    with pytest.raises(KernelOptError, match="groups of 1 or 4"):
        schedule_kernel(
            kernel_of(product_of("int8", 12, 32, 8)), PLAIN, parse_opts("STAGE(0,2,words)")
        )


def test_what_a_dot_means() -> None:
    def word(*numbers: int) -> int:
        return int.from_bytes(np.array(numbers, np.int8).tobytes(), "little")

    words = (dtypes.uint32,) * 2
    operands = (word(1, -2, 127, -128), word(5, -128, 3, 100))
    want = 129 * 5 + 126 * -128 + 255 * 3 + 0 * 100
    assert evaluate(Ops.DOT, dtypes.int32, operands, words) == want
    # 1.5 and -2, 4 and 0.5 as bfloat16.
    assert evaluate(Ops.DOT, dtypes.float32, (0xC000_3FC0, 0x3F00_4080), words) == 1.5 * 4 - 2 * 0.5
