"""Quantises numbers to blocks of bytes, as tensor ops, lazily.

`ggml_quantize` takes a tensor and the name of a type and gives a `QuantTensor`. Q8_0, Q4_0 and Q4_1
give the bytes of ggml's own reference; Q4_K and Q6_K search for the scales of the least squared
error. What the bytes mean is in `formats/ggml/blocks`.
"""

from __future__ import annotations

from collections.abc import Callable

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError
from aster_ml.extend import check_tensor
from aster_ml.formats.ggml.blocks import NAMED, format_named
from aster_ml.formats.quantised import QuantTensor
from aster_ml.helpers import prod


def bytes_of(t: Tensor) -> Tensor:
    """The float16 nearest to each number, as bytes.

    Shapes: t [n, k] -> [n, 2 * k].
    """
    return t.cast(dtypes.float16).bitcast(dtypes.uint8)


def inverse(scale: Tensor) -> Tensor:
    """1 / scale, and 0 for 0."""
    return (scale == 0).where(0.0, 1 / scale)


def round_away(x: Tensor) -> Tensor:
    """The nearest whole number, of two the one further from 0."""
    size = x.abs()
    whole = size.floor()
    return x.sign() * (whole + ((size - whole) * 2).floor())


def largest(x: Tensor) -> Tensor:
    """The number of the largest size along the last axis, with its sign; the first of several.

    Shapes: x [*b, n] -> [*b, 1].
    """
    return x.gather(-1, x.abs().argmax(-1, keepdim=True))


def to_codes(x: Tensor, low: int, high: int) -> Tensor:
    """Numbers as bytes, after clipping to [low, high]; negative ones in two's complement."""
    return x.clip(low, high).cast(dtypes.int8).bitcast(dtypes.uint8)


def pack_fields(t: Tensor, width: int) -> Tensor:
    """Fields of `width` bits, lowest first, put together along the axis before the last.

    Shapes: t [*b, 8 // width, m] -> [*b, m].
    """
    total = t[..., 0, :]
    for i in range(1, 8 // width):
        total = total | (t[..., i, :] << (i * width))
    return total


def encode_q8_0(x: Tensor) -> Tensor:
    """The largest size becomes 127."""
    d = x.abs().max(-1, keepdim=True) / 127
    return bytes_of(d).cat(to_codes(round_away(x * inverse(d)), -128, 127), dim=1)


def encode_q4_0(x: Tensor) -> Tensor:
    """The number of the largest size becomes -8."""
    d = largest(x) / -8
    q = to_codes((x * inverse(d) + 8.5).trunc(), 0, 15)
    return bytes_of(d).cat(pack_fields(q.reshape(-1, 2, 16), 4), dim=1)


def encode_q4_1(x: Tensor) -> Tensor:
    """The least becomes 0, the greatest 15."""
    least = x.min(-1, keepdim=True)
    d = (x.max(-1, keepdim=True) - least) / 15
    q = to_codes(((x - least) * inverse(d) + 0.5).trunc(), 0, 15)
    return bytes_of(d).cat(bytes_of(least), pack_fields(q.reshape(-1, 2, 16), 4), dim=1)


# Ways to divide a range that are tried for each group, around the one that just covers it.
Q4_K_TRIES = [15 + 0.1 * i for i in range(-20, 11)]
# How far codes of a scale and a minimum may move; of the best the first is taken.
NEIGHBOURS = [(0, 0), (0, -1), (0, 1), (-1, 0), (1, 0), (-1, -1), (-1, 1), (1, -1), (1, 1)]
Q6_K_TRIES = [32 + 0.1 * i for i in range(-24, 10)]


def best_of(values: Tensor, error: Tensor) -> Tensor:
    """The value with the least error along the last axis.

    Shapes: values [*b, n], error [*b, n] -> [*b].
    """
    return values.gather(-1, error.argmin(-1, keepdim=True)).squeeze(-1)


def fit_q4_k(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and minimum for each group of 32, such that scale * q - minimum is near, q in 0 to 15.

    Of each way to divide the range, the codes; of codes, the line of least squares.

    Shapes: x [n, 8, 32] -> a pair of [n, 8].
    """
    least = x.min(-1, keepdim=True).minimum(0)
    steps = Tensor(Q4_K_TRIES, device=x.device, dtype=dtypes.float32)
    density = inverse(x.max(-1, keepdim=True) - least) * steps
    each, weight = x.unsqueeze(-2), weights(x).unsqueeze(-2)
    q = ((each - least.unsqueeze(-1)) * density.unsqueeze(-1)).round().clip(0, 15)
    sum_q, sum_q2, sum_qx = [(weight * v).sum(-1) for v in (q, q * q, q * each)]
    count, sum_x = weight.sum(-1), (weight * each).sum(-1)
    width = inverse(sum_q2 * count - sum_q * sum_q)
    scale = (sum_qx * count - sum_q * sum_x) * width
    offset = (sum_q2 * sum_x - sum_q * sum_qx) * width
    # What is taken off is not negative, and codes that are all alike make no line.
    lined = (width > 0) & (offset < 0)
    scale = lined.where(scale, sum_qx * inverse(sum_q2))
    offset = lined.where(offset, (sum_q2 > 0).where(0.0, least))
    away = scale.unsqueeze(-1) * q + offset.unsqueeze(-1) - each
    error = (weight * away * away).sum(-1)
    return best_of(scale, error), -best_of(offset, error)


def weights(x: Tensor) -> Tensor:
    """Weights of errors: larger where numbers are large, as ggml has it.

    Shapes: x [*b, n] -> [*b, n].
    """
    return x.abs() + x.square().mean(-1, keepdim=True).sqrt()


def near(t: Tensor, by: list[int]) -> Tensor:
    """Codes of 6 bits moved by each of some steps.

    Shapes: t [n, 8] -> [n, 8, len(by)].
    """
    return (t.unsqueeze(-1) + Tensor(by, device=t.device, dtype=dtypes.float32)).clip(0, 63)


def encode_q4_k(x: Tensor) -> Tensor:
    """Scales and minima of eight groups, in 6 bits each, against the largest of them.

    Rounding them to 6 bits costs more than anything before it, so of each pair the neighbours are
    tried too.
    """
    x = x.reshape(-1, 8, 32)
    scale, minimum = fit_q4_k(x)
    d, dmin = scale.max(-1, keepdim=True) / 63, minimum.max(-1, keepdim=True) / 63
    scales = near((scale * inverse(d)).round(), [a for a, _ in NEIGHBOURS])
    minima = near((minimum * inverse(dmin)).round(), [b for _, b in NEIGHBOURS])
    error = code_q4_k(x.unsqueeze(-2), d.unsqueeze(-1), scales, dmin.unsqueeze(-1), minima)[1]
    scales, minima = best_of(scales, error), best_of(minima, error)
    d, dmin = refit_q4_k(x, d, scales, dmin, minima)
    q, _ = code_q4_k(x, d, scales, dmin, minima)
    packed = pack_fields(to_codes(q, 0, 15).reshape(-1, 4, 2, 32), 4).flatten(1)
    scales, minima = to_codes(scales, 0, 63), to_codes(minima, 0, 63)
    first, second = scales[:, :4], scales[:, 4:]
    low, high = minima[:, :4], minima[:, 4:]
    six = [first | (second >> 4 << 6), low | (high >> 4 << 6), (second & 15) | ((high & 15) << 4)]
    return Tensor.cat(bytes_of(d), bytes_of(dmin), *six, packed, dim=1)


def refit_q4_k(
    x: Tensor, d: Tensor, scales: Tensor, dmin: Tensor, minima: Tensor
) -> tuple[Tensor, Tensor]:
    """The two factors of a block that fit its codes by least squares; as given where none do.

    Shapes: x [n, 8, 32], d [n, 1], scales [n, 8] -> a pair of [n, 1].
    """
    q, _ = code_q4_k(x, d, scales, dmin, minima)
    weight, a, b = weights(x), scales.unsqueeze(-1) * q, -minima.unsqueeze(-1)
    aa, ab, bb, ax, bx = [
        (weight * v).sum((1, 2)).unsqueeze(-1) for v in (a * a, a * b, b * b, a * x, b * x)
    ]
    width = inverse(aa * bb - ab * ab)
    first, second = (ax * bb - bx * ab) * width, (bx * aa - ax * ab) * width
    fits = (width > 0) & (first > 0) & (second > 0)
    return fits.where(first, d), fits.where(second, dmin)


def code_q4_k(
    x: Tensor, d: Tensor, scales: Tensor, dmin: Tensor, minima: Tensor
) -> tuple[Tensor, Tensor]:
    """The codes of groups by scales and minima as they are stored, and their squared error.

    Shapes: x [*b, 32], scales [*b] -> a pair of [*b, 32] and [*b].
    """
    step = (stored(d) * scales).unsqueeze(-1)
    taken = (stored(dmin) * minima).unsqueeze(-1)
    q = ((x + taken) * inverse(step)).round().clip(0, 15)
    away = step * q - taken - x
    return q, (weights(x) * away * away).sum(-1)


def stored(t: Tensor) -> Tensor:
    """Rounds a scale to float16."""
    return t.cast(dtypes.float16).float()


def fit_q6_k(x: Tensor) -> Tensor:
    """The scale for each group of 16, such that scale * q is near, q in -32 to 31.

    Shapes: x [n, 16, 16] -> [n, 16].
    """
    steps = Tensor(Q6_K_TRIES, device=x.device, dtype=dtypes.float32)
    density = inverse(largest(x)) * -steps
    each = x.unsqueeze(-2)
    q = (each * density.unsqueeze(-1)).round().clip(-32, 31)
    sum_qx, sum_q2 = (q * each).sum(-1), (q * q).sum(-1)
    # With the scale of least squares, this much of the squared error is gone.
    scale = sum_qx * inverse(sum_q2)
    return best_of(scale, -(scale * sum_qx))


def encode_q6_k(x: Tensor) -> Tensor:
    """Scales of sixteen groups, in 8 bits each, against the one of the largest size."""
    x = x.reshape(-1, 16, 16)
    scale = fit_q6_k(x)
    d = largest(scale) / -128
    scales = to_codes((scale * inverse(d)).round(), -128, 127)
    step = stored(d) * scales.bitcast(dtypes.int8).float()
    q = (x * inverse(step).unsqueeze(-1)).round().clip(-32, 31) + 32
    runs = to_codes(q, 0, 63).reshape(-1, 2, 4, 32)
    low = pack_fields((runs & 15).reshape(-1, 2, 2, 64), 4).flatten(1)
    return Tensor.cat(low, pack_fields(runs >> 4, 2).flatten(1), scales, bytes_of(d), dim=1)


ENCODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q8_0": encode_q8_0,
    "Q4_0": encode_q4_0,
    "Q4_1": encode_q4_1,
    "Q4_K": encode_q4_k,
    "Q6_K": encode_q6_k,
}


def ggml_quantize(t: Tensor, type: str) -> QuantTensor:
    """The values of a tensor as blocks of a type: Q8_0, Q4_0, Q4_1, Q4_K, Q6_K, F16, BF16 or F32.

    Types that are stored as they are, such as F16, take values by `cast`.

    Raises: ArgumentError for another type, values that are no numbers of floating point, and rows
    that are no whole number of blocks.
    """
    row = format_named(type, "ggml_quantize")
    check_tensor(t, "ggml_quantize")
    shape = t.shape
    if row.elements == 1:
        data = t.cast(row.dtype).reshape(*shape[:-1], *shape[-1:], 1)
        return QuantTensor(type, data.bitcast(dtypes.uint8))
    if type not in ENCODERS:
        plain = [name for name, known in NAMED.items() if known.elements == 1]
        raise ArgumentError(
            f"ggml_quantize: {type} is read and not written; written are "
            f"{', '.join([*ENCODERS, *plain])}"
        )
    if not dtypes.is_float(t.dtype):
        raise ArgumentError(f"ggml_quantize: {t.dtype} {list(shape)}; {type} takes floating point")
    if not shape or shape[-1] % row.elements:
        raise ArgumentError(
            f"ggml_quantize: the last axis of {list(shape)} is no multiple of {row.elements}, the "
            f"elements of a block of {type}"
        )
    packed = (*shape[:-1], shape[-1] // row.elements, row.nbytes)
    if 0 in shape:
        return QuantTensor(type, Tensor.empty(*packed, dtype=dtypes.uint8, device=t.device))
    blocks = t.float().reshape(prod(packed[:-1]), row.elements)
    return QuantTensor(type, ENCODERS[type](blocks).reshape(packed))
