"""Golden cases of products, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Iterator

from tests.core.golden.vectors import Case, Input, case, plain

PRODUCTS = [
    ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((3, 4), (4, 5)), ((2, 3, 4), (4, 2)),
    ((2, 3, 4), (2, 4, 3)), ((1, 3, 4), (5, 4, 2)), ((2, 1, 3, 4), (3, 4, 2)), ((1, 1), (1, 1)),
    ((17, 9), (9, 33)), ((3, 0), (0, 2)), ((0, 3), (3, 2)), ((8, 64), (64, 8)),
]  # fmt: skip
EINSUMS = [
    ("ij,jk->ik", (3, 4), (4, 2)), ("ij,kj->ik", (3, 4), (2, 4)), ("bij,bjk->bik", (2, 3, 4), (2,
    4, 2)),
    ("i,j->ij", (3,), (4,)), ("ij,ij->", (3, 4), (3, 4)), ("ij,ij->i", (3, 4), (3, 4)),
    ("bhqd,bhkd->bhqk", (1, 2, 3, 4), (1, 2, 5, 4)), ("ij,jk", (3, 4), (4, 2)),
    ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 2)),
]  # fmt: skip
ALONE = [
    ("ij->ji", (3, 4)),
    ("ii->i", (4, 4)),
    ("ii->", (4, 4)),
    ("ijk->k", (2, 3, 4)),
    ("ij->", (3, 4)),
]
CONVS = [
    "", "padding=1", "stride=2", "padding=2, stride=2", "dilation=2, padding=2",
    "padding=(1, 0)", "padding=(1, 0, 2, 1)", "stride=(2, 1), padding=1", "dilation=(1, 2)",
]  # fmt: skip
POOLS = ["", "2", "(2, 3)", "3, stride=1", "2, stride=3", "3, padding=1", "3, stride=2, padding=1",
         "2, ceil_mode=True", "3, stride=2, ceil_mode=True",
         "3, stride=2, padding=1, ceil_mode=True",
         "2, dilation=2", "3, padding=(1, 0, 1, 1)"]  # fmt: skip


def products() -> Iterator[Case]:
    """Matrix products in all ranks, layouts and dtypes."""
    for first, second in PRODUCTS:
        yield case("a @ b", plain(*first), plain(*second))
        yield case("a.matmul(b).relu()", plain(*first), plain(*second))
    for layout in ("permute", "flip", "shrink", "stride", "pad"):
        yield case("a @ b", Input((5, 6), layout=layout), Input((6, 4), layout="permute"))
        yield case("a @ b", Input((6, 6)), Input((6, 6), layout=layout))
        yield case("a @ b + b.sum(0)", Input((3, 4, 5), layout=layout), plain(5, 3))
    for dtype in ("float16", "bfloat16", "float64", "int32", "int8", "uint8", "int64"):
        low = 0 if dtype == "uint8" else -3
        yield case(
            "a @ b",
            plain(3, 5, dtype=dtype, low=low, high=4),
            plain(5, 2, dtype=dtype, low=low, high=4),
        )
        yield case(
            "a.dot(b)",
            plain(7, dtype=dtype, low=low, high=4),
            plain(7, dtype=dtype, low=low, high=4),
        )
    yield case(
        "a.dot(b, dtype='float32')", plain(3, 5, dtype="float16"), plain(5, 2, dtype="float16")
    )
    yield case("a.matmul(b, dtype='int32')", plain(3, 5, dtype="int8"), plain(5, 2, dtype="int8"))
    yield case("a.matmul(b, reverse=True)", plain(5, 2), plain(3, 5))
    yield case("a @ b", plain(3, 5, dtype="int32"), plain(5, 2))
    for text, first, second in EINSUMS:
        yield case(f"Tensor.einsum('{text}', a, b)", plain(*first), plain(*second))
    for text, shape in ALONE:
        yield case(f"Tensor.einsum('{text}', a)", plain(*shape))
    yield case("Tensor.einsum('ij,jk,kl->il', a, b, c)", plain(2, 3), plain(3, 4), plain(4, 2))
    for text in (
        "a.linear(b)",
        "a.linear(b, c)",
        "a.linear(b, c).relu()",
        "(a @ b + c).tanh() @ b.T",
    ):
        yield case(
            text,
            plain(4, 5),
            plain(5, 3),
            plain(3),
            grads="abc" if "c" in text.replace("linear", "") else "ab",
        )
    yield case("a.linear(b)", plain(4, 5), plain(5))
    for mask in ("", ", attn_mask=(Tensor.ones(3, 3).tril() > 0)", ", is_causal=True",
                 ", attn_mask=Tensor.ones(3, 3).tril() * 0.5"):  # fmt: skip
        yield case(
            f"a.scaled_dot_product_attention(b, c{mask})",
            plain(2, 3, 4),
            plain(2, 3, 4),
            plain(2, 3, 4),
        )
        yield case(
            f"a.scaled_dot_product_attention(b, c{mask})",
            plain(1, 2, 3, 4),
            plain(1, 2, 3, 4),
            plain(1, 2, 3, 4),
        )
    yield case(
        "a.scaled_dot_product_attention(b, c, enable_gqa=True)",
        plain(1, 4, 3, 4),
        plain(1, 2, 5, 4),
        plain(1, 2, 5, 4),
    )


def convolutions() -> Iterator[Case]:
    """Convolutions in one, two and three dimensions, and transposed ones."""
    for arguments in CONVS:
        yield case(f"a.conv2d(b, {arguments})", plain(2, 3, 6, 5), plain(4, 3, 3, 2))
        yield case(f"a.conv2d(b, c, {arguments})", plain(1, 2, 7, 6), plain(2, 2, 2, 3), plain(2))
        yield case(f"a.conv2d(b, groups=2, {arguments})", plain(1, 4, 6, 5), plain(6, 2, 3, 2))
    for arguments in ("", "padding=1", "stride=2", "dilation=2", "groups=2"):
        shape = (4, 1, 3) if "groups" in arguments else (4, 2, 3)
        yield case(f"a.conv2d(b, {arguments})", plain(2, 2, 8), plain(*shape))
        yield case(f"a.conv_transpose2d(b, {arguments})", plain(1, 4, 5), plain(4, 2, 3))
    for arguments in ("", "padding=1", "stride=2"):
        yield case(f"a.conv2d(b, {arguments})", plain(1, 2, 4, 4, 3), plain(2, 2, 2, 2, 2))
    for arguments in ("", "padding=1", "stride=2", "stride=2, output_padding=1", "dilation=2",
    "groups=2",
                      "stride=(2, 1), padding=(1, 0)",
                      "stride=2, padding=1, output_padding=1"):  # fmt: skip
        yield case(f"a.conv_transpose2d(b, {arguments})", plain(2, 4, 4, 3), plain(4, 2, 3, 3))
    yield case("a.conv_transpose2d(b, c)", plain(1, 2, 3, 3), plain(2, 3, 2, 2), plain(3))
    for dtype in ("float16", "bfloat16", "float64", "int32"):
        yield case(
            "a.conv2d(b, padding=1)", plain(1, 2, 4, 4, dtype=dtype), plain(2, 2, 3, 3, dtype=dtype)
        )
    for layout in ("permute", "flip", "shrink", "stride"):
        yield case(
            "a.conv2d(b)", Input((1, 2, 5, 4), layout=layout), Input((3, 2, 2, 2), layout=layout)
        )
    for shape in ((0, 2, 4, 4), (1, 1, 3, 3)):
        yield case("a.conv2d(b)", plain(*shape), plain(2, shape[1], 3, 3))
    yield case("a.conv2d(b, groups=4)", plain(1, 4, 5, 5), plain(4, 1, 3, 3))
    yield case("a.conv2d(b)", plain(2, 8, 3, 3), plain(8, 8, 1, 1))
    yield case(
        "a.conv2d(b, padding=1).relu().conv2d(c).sum((2, 3))",
        plain(1, 2, 5, 5),
        plain(3, 2, 3, 3),
        plain(2, 3, 2, 2),
    )


def pools() -> Iterator[Case]:
    """Pooling, its reverse, and resizing."""
    for arguments in POOLS:
        arguments = arguments or "kernel_size=(2, 2)"
        yield case(f"a.max_pool2d({arguments})", plain(1, 2, 6, 7))
        yield case(f"a.avg_pool2d({arguments})", plain(1, 2, 6, 7))
        if "dilation" not in arguments:
            yield case(f"a.avg_pool2d({arguments}, count_include_pad=False)", plain(1, 2, 7, 6))
    for name in ("max_pool2d", "avg_pool2d"):
        yield case(f"a.{name}(2)", Input((1, 2, 4, 6), layout="permute"))
        yield case(f"a.{name}(2)", plain(2, 3, 4))
        yield case(f"a.{name}((2, 2, 2))", plain(1, 2, 4, 4, 4))
        yield case(f"a.{name}(3, padding=1)", plain(1, 1, 5, 5, dtype="float16"))
    yield case("a.max_pool2d(2)", plain(1, 1, 4, 4, dtype="int32", low=-9, high=9))
    yield case("a.max_pool2d(3, padding=1)", plain(1, 1, 5, 5, dtype="uint8", low=0, high=9))
    yield case("a.max_pool2d(2, return_indices=True)", plain(1, 2, 4, 6), grads="")
    yield case(
        "a.max_pool2d(3, stride=2, padding=1, return_indices=True)", plain(1, 1, 7, 5), grads=""
    )
    yield case(
        "Tensor.max_unpool2d(*a.max_pool2d(2, return_indices=True))", plain(1, 2, 4, 6), grads=""
    )
    for mode in ("linear", "nearest", "nearest-exact"):
        for size in ((6, 5), (2, 3), (4, 4)):
            # The reference has no gradient of a nearest size that is smaller.
            grads = "" if (mode, size) == ("nearest", (2, 3)) else "a"
            yield case(f"a.interpolate(size={size}, mode='{mode}')", plain(1, 2, 4, 3), grads=grads)
    yield case("a.interpolate(size=(7, 6), mode='linear', align_corners=True)", plain(1, 2, 4, 3))
    yield case("a.interpolate(size=(9,), mode='linear')", plain(1, 2, 5))
