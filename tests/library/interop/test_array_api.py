"""`aster_ml.array_api` beside array-api-strict: names, signatures, values, special cases."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import aster_ml.array_api as xp
from aster_ml import Tensor
from aster_ml.dtype import to_dtype

strict = pytest.importorskip("array_api_strict", reason="array-api-strict is absent")

# What the version after 2024.12 adds, and what is the peer's own.
NOT_HERE = {
    "broadcast_shapes", "isin", "ArrayAPIStrictFlags", "Device", "ModuleType",
    "get_array_api_strict_flags", "reset_array_api_strict_flags", "set_array_api_strict_flags",
    "eig", "eigvals",
}  # fmt: skip
LINALG = (
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve",
    "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
)  # fmt: skip
FFT = (
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfftn", "rfft", "rfftfreq", "rfftn",
)  # fmt: skip
FLOATS = ["float32", pytest.param("float64", marks=pytest.mark.slow)]
INTS = ("int8", "uint8", "int32", "uint32", "int64")
EDGES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 2.5, -3.0, 1e-5, 7.0]


def test_every_name_is_there() -> None:
    names = {n for n in dir(strict) if not n.startswith("_")} - NOT_HERE - {"linalg", "fft"}
    missing = [n for n in names if not hasattr(xp, n)]
    missing += [n for n in LINALG if not hasattr(xp.linalg, n)]
    missing += [n for n in FFT if not hasattr(xp.fft, n)]
    assert not missing
    assert xp.__array_api_version__ == "2024.12"
    assert set(xp.__all__) <= set(dir(xp))


def signatures() -> Iterator[tuple[str, Any, Any]]:
    for ours, theirs, names in (
        (xp, strict, xp.__all__),
        (xp.linalg, strict.linalg, LINALG),
        (xp.fft, strict.fft, FFT),
    ):
        for name in names:
            function = getattr(theirs, name, None)
            if inspect.isfunction(function):
                yield name, getattr(ours, name), function


@pytest.mark.parametrize(("name", "ours", "theirs"), [pytest.param(*s, id=s[0])
                                                      for s in signatures()])  # fmt: skip
def test_signatures_are_the_standards(name: str, ours: Any, theirs: Any) -> None:
    mine = inspect.signature(ours).parameters
    for key, wanted in inspect.signature(theirs).parameters.items():
        assert key in mine, f"{name}: no parameter {key}"
        if wanted.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            assert mine[key].kind is wanted.kind, f"{name}: kind of {key}"
        has_default = wanted.default is not inspect.Parameter.empty
        assert (mine[key].default is not inspect.Parameter.empty) == has_default, f"{name}: {key}"


def as_ours(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return xp.asarray(value, device="PYTHON")
    return [as_ours(v) for v in value] if isinstance(value, list) else value


def as_theirs(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return strict.asarray(value)
    return [as_theirs(v) for v in value] if isinstance(value, list) else value


def check_equal(got: Any, want: Any, name: str, ulp: float = 64) -> None:
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            check_equal(g, w, name, ulp)
        return
    wanted = np.asarray(want._array)
    found = got.numpy()
    assert found.shape == wanted.shape, name
    assert found.dtype.kind == wanted.dtype.kind, name
    if wanted.dtype.kind == "f":
        eps = np.finfo(found.dtype).eps
        np.testing.assert_allclose(found, wanted, rtol=ulp * eps, atol=ulp * eps, err_msg=name)
        # Which zero is the greater one is left open.
        zeros = (wanted == 0) & (found == 0) & (name.split()[0] not in ("maximum", "minimum"))
        assert (np.signbit(found) == np.signbit(wanted))[zeros].all(), name
    else:
        np.testing.assert_array_equal(found, wanted, err_msg=name)


UNARY_FLOAT = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor isfinite isinf isnan log "
    "log10 log1p log2 negative positive reciprocal round sign signbit sin sinh sqrt square tan "
    "tanh trunc"
).split()
BINARY_FLOAT = (
    "add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal "
    "logaddexp maximum minimum multiply nextafter not_equal pow remainder subtract"
).split()
UNARY_INT = (
    "abs bitwise_invert ceil floor isfinite negative positive round sign square trunc"
).split()
BINARY_INT = (
    "add bitwise_and bitwise_or bitwise_xor equal greater less maximum minimum multiply subtract"
).split()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY_FLOAT)
def test_floats_of_one_array(name: str, dtype: str) -> None:
    x = np.array(EDGES, dtype)
    with np.errstate(all="ignore"):
        want = getattr(strict, name)(strict.asarray(x))
    check_equal(getattr(xp, name)(as_ours(x)), want, f"{name} {dtype}")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BINARY_FLOAT)
def test_floats_of_two_arrays(name: str, dtype: str) -> None:
    a, b = np.meshgrid(np.array(EDGES, dtype), np.array(EDGES, dtype))
    with np.errstate(all="ignore"):
        want = getattr(strict, name)(strict.asarray(a), strict.asarray(b))
    check_equal(getattr(xp, name)(as_ours(a), as_ours(b)), want, f"{name} {dtype}")


@pytest.mark.parametrize("name", [*UNARY_INT, *BINARY_INT])
def test_ints(name: str) -> None:
    for dtype in INTS:
        a = np.array([0, 1, 2, 3, 100], dtype)
        arrays = [a] if name in UNARY_INT else [a, a[::-1].copy()]
        with np.errstate(all="ignore"):
            if name == "negative" and dtype.startswith("u"):
                continue
            want = getattr(strict, name)(*map(strict.asarray, arrays))
        got = getattr(xp, name)(*map(as_ours, arrays))
        check_equal(got, want, f"{name} {dtype}")
        assert got.dtype is to_dtype(str(np.asarray(want._array).dtype)), f"{name} {dtype}"


M = np.arange(24, dtype=np.float64).reshape(2, 3, 4) % 7
V = np.array([3, 1, 2, 3, 1], np.int64)
S = np.array([[[4.0, 1, 0], [1, 3, 1], [0, 1, 5]]])
B = np.array([[True, False], [True, True]])
# Name, arguments, keywords: of a function, or of linalg.
CALLS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("concat", [[M, M]], {"axis": 1}), ("concat", [[M, M]], {"axis": None}),
    ("stack", [[M, M]], {"axis": -1}), ("expand_dims", [M], {"axis": 1}),
    ("flip", [M], {}), ("flip", [M], {"axis": (0, 2)}), ("moveaxis", [M, 0, 2], {}),
    ("moveaxis", [M, (0, 1), (-1, 0)], {}), ("permute_dims", [M, (2, 0, 1)], {}),
    ("matrix_transpose", [M], {}), ("reshape", [M, (4, 6)], {}), ("roll", [M, 5], {}),
    ("roll", [M, (1, -1)], {"axis": (0, 2)}), ("repeat", [V, 2], {}),
    ("repeat", [V, np.array([0, 1, 2, 0, 3])], {}), ("tile", [V, (2, 2)], {}),
    ("tile", [M, (2,)], {}), ("squeeze", [M[:1]], {"axis": 0}), ("unstack", [M], {"axis": 1}),
    ("broadcast_to", [V, (2, 5)], {}), ("broadcast_arrays", [V, V.reshape(5, 1)], {}),
    ("meshgrid", [V, V[:2]], {}), ("tril", [M], {"k": 1}), ("triu", [M], {"k": -1}),
    ("argmax", [M], {}), ("argmax", [M], {"axis": 1, "keepdims": True}),
    ("argmin", [M], {"axis": -1}), ("count_nonzero", [M], {"axis": (0, 1)}), ("nonzero", [M], {}),
    ("searchsorted", [np.array([1, 2, 4]), V], {}), ("where", [B, np.eye(2), np.ones((2, 2))], {}),
    ("take", [M, V - 1], {"axis": 1}), ("take_along_axis", [M, np.array([[[2, -1]]])], {}),
    ("sort", [M], {"descending": True}), ("argsort", [V], {}), ("unique_all", [V], {}),
    ("unique_counts", [V], {}), ("unique_inverse", [M], {}), ("unique_values", [V], {}),
    ("all", [B], {"axis": 0}), ("any", [B], {}), ("max", [M], {"axis": (0, 2)}), ("min", [M], {}),
    ("mean", [M], {"axis": 1, "keepdims": True}), ("std", [M], {}),
    ("var", [M], {"correction": 1.0, "axis": 0}), ("sum", [M], {"axis": ()}), ("sum", [V], {}),
    ("prod", [V], {}), ("cumulative_sum", [V], {"include_initial": True}),
    ("cumulative_sum", [M], {"axis": 1}), ("cumulative_prod", [M], {"axis": -1}),
    ("diff", [M], {"n": 2}), ("diff", [V], {"prepend": V[:1]}), ("clip", [M, 1, 3], {}),
    ("clip", [V], {"max": 2}), ("matmul", [M, M.swapaxes(1, 2)], {}), ("vecdot", [M, M], {}),
    ("tensordot", [M, M], {"axes": ((1, 2), (1, 2))}), ("tensordot", [V, V], {"axes": 1}),
    ("tensordot", [V, V], {"axes": 0}),
    ("linalg.cholesky", [S], {"upper": True}), ("linalg.cross", [M[..., :3], M[..., 1:]], {}),
    ("linalg.det", [S], {}), ("linalg.diagonal", [M], {"offset": 1}),
    ("linalg.eigvalsh", [S], {}), ("linalg.inv", [S], {}), ("linalg.matrix_norm", [M], {}),
    ("linalg.matrix_norm", [M], {"ord": 1, "keepdims": True}),
    ("linalg.matrix_norm", [M], {"ord": "nuc"}), ("linalg.matrix_power", [S, 3], {}),
    ("linalg.matrix_rank", [M], {}), ("linalg.outer", [V, V], {}), ("linalg.pinv", [M], {}),
    ("linalg.slogdet", [S], {}), ("linalg.solve", [S[0], np.array([1.0, 2, 3])], {}),
    ("linalg.svdvals", [M], {}), ("linalg.trace", [M], {"offset": -1}),
    ("linalg.vector_norm", [M], {"axis": (0, 1), "ord": 3}),
    ("linalg.vector_norm", [M], {"ord": float("inf")}),
]  # fmt: skip


def found(namespace: Any, name: str) -> Callable[..., Any]:
    for part in name.split("."):
        namespace = getattr(namespace, part)
    return namespace  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "args", "keywords"),
    [pytest.param(*c, id=f"{c[0]}-{i}") for i, c in enumerate(CALLS)],
)
def test_values(name: str, args: list[Any], keywords: dict[str, Any]) -> None:
    theirs = {k: as_theirs(v) for k, v in keywords.items()}
    ours = {k: as_ours(v) for k, v in keywords.items()}
    want = found(strict, name)(*map(as_theirs, args), **theirs)
    check_equal(found(xp, name)(*map(as_ours, args), **ours), want, name, 4096)


def test_dtypes() -> None:
    names = ["bool", *INTS, "int16", "uint16", "float32", "float64"]
    for a, b in itertools.product(names, repeat=2):
        same = {np.dtype(a).kind, np.dtype(b).kind} <= {"i", "u"} or a[0] == b[0]
        if same and "uint64" not in (a, b):
            want = str(strict.result_type(getattr(strict, a), getattr(strict, b))._np_dtype)
            assert xp.result_type(getattr(xp, a), getattr(xp, b)) == want
    assert xp.isdtype(xp.float32, "real floating")
    assert not xp.isdtype(xp.int8, ("unsigned integer", xp.float64))
    assert xp.can_cast(xp.int8, xp.int16)
    assert not xp.can_cast(xp.int16, xp.int8)
    assert xp.finfo(xp.float32).eps == np.finfo(np.float32).eps
    assert xp.iinfo(xp.uint8).max == 255
    assert xp.result_type(xp.ones(2), 1) is xp.float32
    with pytest.raises(ValueError, match="there are bool, signed"):
        xp.isdtype(xp.int8, "whole")


def test_arrays() -> None:
    t = Tensor([[1.0, 2.0]])
    assert t.__array_namespace__() is xp
    with pytest.raises(ValueError, match=r"there are 2021\.12"):
        t.__array_namespace__(api_version="2030.12")
    x = xp.asarray(t)
    assert (x.size, x.ndim, x.shape, x.device) == (2, 2, (1, 2), "CPU")
    assert type(x + 1) is type(xp.sin(t)) is xp.Array
    assert bool(xp.asarray(3) == 3)
    assert x.mT.shape == x.T.shape == (2, 1)
    assert x.to_device("CPU").tolist() == [[1, 2]]
    assert xp.asarray(x, copy=True).tolist() == [[1, 2]]
    shared = np.zeros(3)
    assert np.shares_memory(np.asarray(xp.asarray(shared)), shared)
    assert xp.linspace(0, 1, 5, endpoint=False).tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert xp.eye(2, 3, k=1).tolist() == [[0, 1, 0], [0, 0, 1]]
    made = [xp.zeros((2,)), xp.zeros_like(x), xp.ones(3), xp.full(2, 7), xp.empty_like(x)]
    assert [m.shape for m in made] == [(2,), (1, 2), (3,), (2,), (1, 2)]
    info = xp.__array_namespace_info__()
    assert info.default_dtypes()["real floating"] is xp.float32
    assert "float64" in info.dtypes(kind="real floating")
    assert info.default_device() in info.devices()
    assert info.capabilities()["boolean indexing"]


def test_complex_arrays() -> None:
    z = xp.asarray([1 + 2j, 3])
    assert (z.dtype, z.size, z.shape) == (xp.complex64, 2, (2,))
    assert z.__array_namespace__() is xp
    assert [xp.real(z).tolist(), xp.imag(z).tolist()] == [[1, 3], [2, 0]]
    assert type(xp.abs(z)) is type(z == z) is xp.Array
    assert bool(xp.all(xp.conj(z) == xp.asarray([1 - 2j, 3])))
    assert (xp.ones(2) * z).dtype is (1j * xp.ones(2)).dtype is xp.complex64
    assert (z * xp.ones(2, dtype=xp.float64)).dtype is xp.complex128
    assert xp.astype(xp.ones(2), xp.complex128).numpy().tolist() == [1, 1]
    with pytest.raises(TypeError, match="real"):
        xp.astype(z, xp.float32)
    with pytest.raises(TypeError, match="no order"):
        _ = z < z
    made = [xp.zeros(2, dtype=xp.complex64), xp.full(2, 1j), xp.eye(2, dtype=xp.complex128)]
    assert [m.dtype.name for m in made] == ["complex64", "complex64", "complex128"]
    assert xp.linspace(0, 1j, 3).numpy().tolist() == [0, 0.5j, 1j]
    assert xp.result_type(xp.float32, 1j) is xp.result_type(xp.complex64, xp.float32)
    assert xp.result_type(xp.complex64, xp.float64) is xp.complex128
    assert xp.isdtype(xp.complex64, "complex floating")
    assert xp.isdtype(xp.complex64, "numeric")
    assert not xp.isdtype(xp.complex64, "real floating")
    assert xp.can_cast(xp.float32, xp.complex64)
    assert not xp.can_cast(xp.complex64, xp.float32)
    assert xp.finfo(xp.complex64).dtype is xp.float32
    info = xp.__array_namespace_info__()
    assert info.default_dtypes()["complex floating"] is xp.complex64
    assert set(info.dtypes(kind="complex floating")) == {"complex64", "complex128"}
    z[0] = 5j
    assert z.numpy().tolist() == [5j, 3]
    assert xp.fft.ifft(xp.fft.fft(z)).numpy() == pytest.approx(z.numpy(), abs=1e-6)
    shared = np.array([1j, 2])
    assert xp.from_dlpack(shared).numpy().tolist() == [1j, 2]
    assert np.from_dlpack(z).tolist() == [5j, 3]


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (2, 2, 1)])
def test_complex_factors(shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(7)
    a = draw.standard_normal(shape) + 1j * draw.standard_normal(shape)
    z = xp.asarray(a, device="PYTHON")
    for full in (True, False):
        u, s, vh = (x.numpy() for x in xp.linalg.svd(z, full_matrices=full))
        k = min(shape[-2:])
        np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, atol=1e-10)
        one = np.broadcast_to(np.eye(u.shape[-1]), (*shape[:-2], *[u.shape[-1]] * 2))
        np.testing.assert_allclose(u.conj().swapaxes(-1, -2) @ u, one, atol=1e-10)
    q, r = (x.numpy() for x in xp.linalg.qr(z))
    np.testing.assert_allclose(q @ r, a, atol=1e-10)
    h = a @ a.conj().swapaxes(-1, -2)
    values, vectors = (x.numpy() for x in xp.linalg.eigh(xp.asarray(h, device="PYTHON")))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(h), atol=1e-10)
    np.testing.assert_allclose(h @ vectors, vectors * values[..., None, :], atol=1e-9)


def test_equal_eigenvalues_have_vectors_at_right_angles() -> None:
    h = np.diag([2.0, 1, 2, 2]) + 0j
    values, vectors = xp.linalg.eigh(xp.asarray(h, device="PYTHON"))
    v = vectors.numpy()
    assert values.tolist() == pytest.approx([1, 2, 2, 2])
    np.testing.assert_allclose(v.conj().T @ v, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(h @ v, v * values.numpy(), atol=1e-12)


def test_other_libraries_run_on_it() -> None:
    compat = pytest.importorskip("array_api_compat", reason="array-api-compat is absent")
    namespace = compat.array_namespace(Tensor([1.0]))
    assert namespace is xp
    x = xp.asarray([1.0, 2.0, 3.0])
    y = namespace.exp(x - namespace.max(x))
    assert (y / namespace.sum(y)).tolist() == pytest.approx([0.09003057, 0.24472848, 0.66524094])
