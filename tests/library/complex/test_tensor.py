"""Complex numbers as pairs of tensors, beside NumPy's."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, dtypes
from aster_ml.complex import ComplexTensor, complex64, complex128
from aster_ml.complex.dtype import to_complex_dtype
from aster_ml.errors import DTypeError, ShapeError, UnknownDTypeError

RNG = np.random.default_rng(31)


def drawn(*shape: int, dtype: str = "complex64") -> Any:
    return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(dtype)


A, B, R = drawn(3, 4), drawn(3, 4), RNG.standard_normal((3, 4)).astype(np.float32)
# The same expression on both sides; `xp` has what is no operator.
EXPRESSIONS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "add": lambda a, b, r, xp: a + b,
    "add real": lambda a, b, r, xp: a + r,
    "sub": lambda a, b, r, xp: a - b,
    "number minus": lambda a, b, r, xp: (2 + 1j) - a,
    "mul": lambda a, b, r, xp: a * b,
    "mul real": lambda a, b, r, xp: a * r,
    "mul number": lambda a, b, r, xp: a * (1 - 2j),
    "div": lambda a, b, r, xp: a / b,
    "div real": lambda a, b, r, xp: a / r,
    "div number": lambda a, b, r, xp: a / (1 + 2j),
    "number by": lambda a, b, r, xp: 1j / a,
    "array on the left": lambda a, b, r, xp: A * b,
    "broadcast": lambda a, b, r, xp: a[:1] * b[:, :1] + r[0],
    "real plus": lambda a, b, r, xp: r + a,
    "real minus": lambda a, b, r, xp: r - a,
    "real times": lambda a, b, r, xp: r * a,
    "real by": lambda a, b, r, xp: r / a,
    "real to the power": lambda a, b, r, xp: abs(r) ** a,
    "real equal": lambda a, b, r, xp: r == a,
    "real not equal": lambda a, b, r, xp: r != a,
    "real at": lambda a, b, r, xp: r @ a.T,
    "real and a number": lambda a, b, r, xp: (1 - 2j) * r + 1j,
    "real minus a number": lambda a, b, r, xp: r - np.complex64(1j),
    "power": lambda a, b, r, xp: a**b,
    "root": lambda a, b, r, xp: a**0.5,
    "number to the power": lambda a, b, r, xp: 2**a,
    "reciprocal": lambda a, b, r, xp: 1 / a,
    "cube": lambda a, b, r, xp: a**3,
    "inverse square": lambda a, b, r, xp: a**-2,
    "power 0": lambda a, b, r, xp: a**0,
    "negative": lambda a, b, r, xp: -a,
    "conj": lambda a, b, r, xp: a.conj(),
    "abs": lambda a, b, r, xp: abs(a),
    "equal": lambda a, b, r, xp: a == xp.cat([a[:2], b[2:]]),
    "not equal": lambda a, b, r, xp: a != b,
    "matmul": lambda a, b, r, xp: a @ b.T,
    "matmul real": lambda a, b, r, xp: a @ r.T,
    "index": lambda a, b, r, xp: a[1:, ::2],
    "reshape": lambda a, b, r, xp: a.reshape(2, 6),
    "transpose": lambda a, b, r, xp: a.T,
    "sum": lambda a, b, r, xp: a.sum(1),
    "mean": lambda a, b, r, xp: a.mean(),
    "exp": lambda a, b, r, xp: xp.exp(a),
    "log": lambda a, b, r, xp: xp.log(a),
    "angle": lambda a, b, r, xp: xp.angle(a),
    "stack": lambda a, b, r, xp: xp.stack([a, b], 1),
    "flip": lambda a, b, r, xp: xp.flip(a, 1),
}  # fmt: skip


class Theirs:
    """What NumPy calls otherwise."""

    cat, stack = staticmethod(np.concatenate), staticmethod(np.stack)
    exp, log, angle, flip = np.exp, np.log, staticmethod(np.angle), staticmethod(np.flip)


class Ours:
    """Functions that are methods here."""

    cat, stack = staticmethod(ComplexTensor.cat), staticmethod(ComplexTensor.stack)
    exp, log, angle = ComplexTensor.exp, ComplexTensor.log, ComplexTensor.angle
    flip = ComplexTensor.flip


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_are_those_of_numpy(name: str) -> None:
    wanted = EXPRESSIONS[name](A, B, R, Theirs)
    got = EXPRESSIONS[name](ComplexTensor(A), ComplexTensor(B), Tensor(R), Ours).numpy()
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_arrays_come_back_bit_by_bit(dtype: str) -> None:
    for array in (drawn(2, 3, dtype=dtype), drawn(0, 2, dtype=dtype), drawn(dtype=dtype)):
        z = ComplexTensor(array)
        assert (z.dtype, z.shape, z.ndim) == (dtype, array.shape, array.ndim)
        assert z.numpy().tobytes() == array.tobytes()
        assert np.asarray(z).tobytes() == array.tobytes()
        assert pickle.loads(pickle.dumps(z)).numpy().tobytes() == array.tobytes()


def test_the_size_of_numbers_does_not_overflow() -> None:
    array = np.array([3e30 + 4e30j, 3e-30 + 4e-30j, 0, np.inf + 1j], np.complex64)
    np.testing.assert_allclose(ComplexTensor(array).abs().numpy(), np.abs(array), rtol=1e-6)
    quotient = ComplexTensor(array[:2]) / ComplexTensor(array[:2])
    np.testing.assert_allclose(quotient.numpy(), [1, 1], rtol=1e-6)


def test_exp_overflows_only_where_the_result_does() -> None:
    array = np.array([89 + 1.5707j, 1 + 0j, -200 + 1j, 89 - 1.57j], np.complex64)
    wanted = np.exp(array.astype(np.complex128)).astype(np.complex64)
    got = ComplexTensor(array).exp().numpy()
    np.testing.assert_array_equal(np.isfinite(got.real), np.isfinite(wanted.real))
    np.testing.assert_allclose(got.real, wanted.real, rtol=1e-3)


def test_python_numbers_take_the_default_float() -> None:
    assert ComplexTensor([1 + 2j, 3]).dtype == "complex64"
    assert ComplexTensor(np.array([1.0])).dtype == "complex128"
    assert [ComplexTensor(2j).item(), complex(ComplexTensor(1 - 1j))] == [2j, 1 - 1j]


def test_repr_shows_the_values() -> None:
    assert "1.+2.j" in repr(ComplexTensor([1 + 2j]))
    assert "complex64" in repr(ComplexTensor(1j))


def test_gradients_pass_through_the_parts() -> None:
    real, imag = Tensor(A.real.copy(), requires_grad=True), Tensor(A.imag.copy())
    z = ComplexTensor(real, imag) * ComplexTensor(B)
    (z.abs() ** 2).sum().backward()
    assert real.grad is not None
    wanted = 2 * A.real * np.abs(B) ** 2
    np.testing.assert_allclose(real.grad.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_what_is_not_there_says_what_would_do() -> None:
    z = ComplexTensor(A)
    with pytest.raises(AttributeError, match=r"apply it to \.real and \.imag"):
        _ = z.relu
    with pytest.raises(TypeError, match="no order"):
        _ = z < z
    with pytest.raises(TypeError, match="real"):
        float(z[0, 0])
    with pytest.raises(DTypeError, match="complex64 and complex128"):
        to_complex_dtype("float32")
    with pytest.raises(DTypeError, match="complex64 or complex128 is wanted"):
        z.cast("float32")
    for data in (A, [1j], torch_like(A)):
        with pytest.raises(DTypeError, match="ComplexTensor"):
            Tensor(data)
    with pytest.raises(UnknownDTypeError, match="ComplexTensor"):
        Tensor([1.0]).cast("complex64")
    with pytest.raises(BufferError, match="copy"):
        z.__dlpack__(copy=False)
    with pytest.raises(DTypeError, match="dtype of numbers"):
        ComplexTensor("abc")
    with pytest.raises(ShapeError, match="equal"):
        ComplexTensor(Tensor([1.0]), Tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match="copy"):
        np.array(z, copy=False)


def torch_like(array: Any) -> Any:
    """An array as another package would hand it out, by DLPack alone."""

    class Foreign:
        def __dlpack__(self, **kwargs: Any) -> Any:
            return array.__dlpack__()

        def __dlpack_device__(self) -> Any:
            return array.__dlpack_device__()

    return Foreign()


def test_dtypes_are_those_of_others() -> None:
    assert complex64 == "complex64" == ComplexTensor(A).dtype == np.complex64
    assert complex128 == np.dtype("complex128") != complex64
    assert np.empty(1, complex64).dtype == "complex64"
    assert to_complex_dtype(complex) is complex64
    assert pickle.loads(pickle.dumps(complex128)) is complex128
    assert (complex64.itemsize, complex64.bits, complex64.kind) == (8, 64, "complex")
    assert complex64.part is dtypes.float32
    assert ComplexTensor(A).cast(complex128).dtype is complex128


def test_jitted_functions_take_and_return_them() -> None:
    @TinyJit
    def function(z: ComplexTensor, t: Tensor) -> tuple[ComplexTensor, Tensor]:
        return z * t + 1j, z.abs()

    for i in range(5):
        z, t = A * (i + 1), R + i
        got, size = function(ComplexTensor(z), Tensor(t))
        np.testing.assert_allclose(got.numpy(), z * t + 1j, rtol=1e-5)
        np.testing.assert_allclose(size.numpy(), np.abs(z), rtol=1e-5)
    assert function.captured is not None
    again = pickle.loads(pickle.dumps(function))
    np.testing.assert_allclose(again(ComplexTensor(A), Tensor(R))[0].numpy(), A * R + 1j, 1e-5)


def test_elements_are_written() -> None:
    z, array = ComplexTensor(A), A.copy()
    for place, value in ((0, 1j), ((slice(1, 3), 2), 5), (-1, B[0])):
        z[place] = value
        array[place] = value
    np.testing.assert_array_equal(z.numpy(), array)
    z += 1
    np.testing.assert_array_equal(z.numpy(), array + 1)


def test_numpy_and_text() -> None:
    z = ComplexTensor(A)
    assert isinstance(np.exp(z), ComplexTensor)
    assert isinstance(np.add(A, z), ComplexTensor)
    np.testing.assert_allclose(np.sum(z), A.sum(), rtol=1e-5)
    np.testing.assert_allclose(np.conj(z).numpy(), A.conj())
    np.testing.assert_allclose(np.abs(z).numpy(), np.abs(A), rtol=1e-6)
    np.testing.assert_array_equal(np.from_dlpack(z), A)
    np.testing.assert_array_equal(ComplexTensor.from_dlpack(A).numpy(), A)
    np.testing.assert_array_equal(np.where(Tensor([True]), z, 0)[0, 0], A[0, 0])
    assert f"{ComplexTensor(1 + 2j):.1f}" == "1.0+2.0j"
    assert A[0, 0] in z
    assert 77 not in z
    assert "complex64" in z._repr_html_()
    chosen = (Tensor(R) > 0).where(z, 0).numpy()
    np.testing.assert_array_equal(chosen, np.where(R > 0, A, 0))


def test_powers_of_zero() -> None:
    z = ComplexTensor(np.array([0j, 0j, 0j]))
    got = (z ** ComplexTensor(np.array([0, 2.5, -1]))).numpy()
    assert got[:2].tolist() == [1, 0]
    assert np.isnan(got[2].real)
