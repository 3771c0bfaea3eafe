"""Golden cases of movement, joining, indexing, gather and scatter, and writes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.core.golden.vectors import Case, Input, case, plain

MOVES: list[tuple[tuple[int, ...], list[str]]] = [
    ((), ["a.reshape(1, 1)", "a.reshape(1).expand(3)", "a.unsqueeze(0)",
          "a.flatten()", "a.view(1)"]),
    ((6,), ["a.reshape(2, 3)", "a.reshape(-1, 2)", "a.flip(0)", "a.pad((1, 2))",
    "a.shrink(((1, 5),))",
            "a.unsqueeze(1)", "a.repeat(2)", "a.repeat(2, 3)", "a.roll(2)", "a.unfold(0, 3, 2)",
            "a[1:4]", "a[::2]", "a[::-1]", "a[-2:]", "a[4:1:-1]", "a[2]", "a[-1]", "a[None]",
            "a[..., None]", "a.pad((2, 0), value=3)", "a.pad((2, 1), mode='reflect')",
            "a.pad((2, 1), mode='replicate')", "a.pad((2, 1), mode='circular')", "a.diag()",
            "a.chunk(2)", "a.split(4)", "a.repeat_interleave(2)", "a.pad((-1, 2))", "a[6:]",
            "a[3:3]",
            "a.unflatten(0, (2, 3))", "a.expand(2, 6)", "a.contiguous() + 1"]),
    ((3, 4), ["a.permute(1, 0)", "a.transpose()", "a.T", "a.flip(1)", "a.flip((0, 1))",
    "a.flip(-1)",
              "a.reshape(2, 6)", "a.reshape(12)", "a.reshape(4, 3).permute(1, 0)", "a.flatten()",
              "a.pad(((1, 0), (0, 2)))", "a.pad((1, 1, 2, 0))", "a.pad(((1, 2), None), value=-1)",
              "a.shrink(((0, 2), (1, 3)))", "a.shrink((None, (1, 4)))", "a.expand(2, 3, 4)",
              "a.unsqueeze(1).expand(3, 2, 4)", "a.repeat(2, 2)", "a.repeat(1, 2, 1)", "a.tril()",
              "a.triu()", "a.tril(1)", "a.triu(-1)", "a.tril(-1)", "a.triu(2)", "a.roll(1, 0)",
              "a.roll((1, -1), (0, 1))", "a.roll(5)", "a[1]", "a[1, 2]", "a[:, 1]", "a[1:, ::2]",
              "a[::-1, 1:3]", "a[-1, ...]", "a[:, None, 1:]", "a[0:1]", "a[2:0:-1]", "a[..., -1]",
              "a.split(2, 1)", "a.split([1, 2], 0)", "a.chunk(3, 1)", "a.unfold(1, 2, 1)",
              "a.pad((1, 1), mode='reflect')", "a.pad((1, 2, 2, 1), mode='replicate')",
              "a.pad((1, 1, 1, 1), mode='circular')", "a.rearrange('h w -> w h')",
              "a.rearrange('h (w k) -> h w k', k=2)", "a.rearrange('h w -> (h w)')",
              "a.repeat_interleave(2, 1)", "a.repeat_interleave(3)", "a.unflatten(1, (2, 2))",
              "a[:, :3].diagonal()", "a.shrink_to(2, 3)", "a.pad_to(4, 5)",
              "a.reshape(3, 2, 2).permute(2, 0, 1).reshape(6, 2)", "a.T.reshape(3, 4).T",
              "a.pad(((0, 1), (1, 0))).flip(0).permute(1, 0)", "a.pad((-1, 1, 0, 1))",
              "a.T.flip(0)[1:3].reshape(-1)"]),
    ((2, 3, 4), ["a.permute(2, 0, 1)", "a.transpose(0, 2)", "a.transpose(-1, -2)",
    "a.reshape(4, 6)",
                 "a.flatten(1)", "a.flatten(0, 1)", "a.flip((0, 2))", "a.pad((1, 0, 0, 1))",
                 "a.shrink(((0, 1), (1, 3), (0, 4)))", "a[:, 1]", "a[..., 2]", "a[1, :, ::3]",
                 "a[:, ::-2]", "a[None, :, 0, None]", "a.unsqueeze(-1).squeeze(-1)", "a.roll(1, 1)",
                 "a.unfold(2, 2, 2)", "a.repeat(1, 2, 2)", "a.tril()", "a.triu(1)", "a.split(2, 1)",
                 "a.rearrange('b h w -> b (w h)')", "a.rearrange('b h w -> w 1 b h')",
                 "a.chunk(2, 2)", "a.expand(2, 2, 3, 4)", "a.rearrange('... w -> w ...')"]),
    ((2, 1, 3, 1), ["a.squeeze()", "a.squeeze(1)", "a.squeeze(0)", "a.expand(2, 4, 3, 2)",
                    "a.permute(3, 1, 2, 0)", "a.reshape(3, 2)", "a.flatten(2)",
                    "a.pad((1, 1, 0, 0))",
                    "a.repeat(1, 2, 1, 3)", "a[:, 0, :, 0]"]),
    ((2, 0, 3), ["a.reshape(0, 6)", "a.permute(1, 0, 2)", "a.flip(2)",
    "a.pad(((0, 0), (1, 1), (0, 0)))",
                 "a.expand(4, 2, 0, 3)", "a[:, :, 1:]", "a.unsqueeze(0)", "a.flatten()"]),
    ((2, 1, 2, 1, 3), ["a.permute(4, 2, 0, 1, 3)", "a.squeeze()", "a.reshape(4, 3)",
                       "a.expand(2, 2, 2, 2, 3)", "a.flip((0, 4))", "a[:, 0, 1, :, ::2]"]),
]  # fmt: skip
INDEXED = [
    "a[b]", "a[b, 1]", "a[:, b]", "a[b, b]", "a[b[:2], 1:3]", "a[b.reshape(3, 1), b]",
    "a[b][:, ::2]",
    "a[..., b]", "a[b, None]", "a[b].sum(0)", "a[1:, b]", "a[b] + a[b.flip(0)]", "a[[0, 2]]",
    "a[[2, 0], [1, 1]]", "a[:, [0, -1]]", "a[b, ..., 0]", "a[(b, 0)]", "a[b.reshape(1, 3)]",
]  # fmt: skip
WRITTEN = [
    "a[1] = 5", "a[:, 0] = 2", "a[0] = b", "a[1:, ::2] = 3", "a[..., -1] = 0", "a[::-1] = b",
    "a[0, 0] = 9", "a[:] = b * 2", "a[[0, 2]] = 7", "a[[1, 0], [2, 2]] = -1", "a[:2] += 1",
    "a[1] = a[0]", "a[:, 1:] = a[:, :-1]", "a[:, [0, 3]] = 4",
]  # fmt: skip


def moved() -> Iterator[Case]:
    """Movement with its gradient; a sine keeps the weights from standing alone."""
    for shape, texts in MOVES:
        for text in texts:
            yield case(text, plain(*shape))
    for dtype in ("int32", "bool", "uint8", "float16", "bfloat16", "int64"):
        for text in ("a.permute(1, 0)", "a.pad((1, 1))", "a[::-1, 1:]", "a.T.reshape(-1)",
        "a.roll(1, 1)",
                     "a.repeat(2, 1)", "a.tril()"):  # fmt: skip
            yield case(text, plain(3, 4, dtype=dtype, low=0, high=9))
    for layout in ("permute", "flip", "shrink", "stride", "pad", "expand"):
        for text in ("a.reshape(12)", "a.permute(1, 0).sin()", "a[1:, ::2]", "a.pad((1, 0))",
        "a.sum(0)",
                     "a.flip(0) * a", "a.expand(2, 3, 4).sum(0)", "a.contiguous().T"):  # fmt: skip
            yield case(text, Input((3, 4), layout=layout))


def joined() -> Iterator[Case]:
    """cat and stack."""
    for text in ("a.stack(a.exp())", "Tensor.stack(a, a * 2, dim=1)", "Tensor.stack(a, a, dim=-1)"):
        yield case(text, plain(2, 3))
        yield case(text, Input((2, 3), layout="permute"))
    for text in ("a.cat(b)", "Tensor.cat(a, b, dim=0)", "a.cat(b, a)", "Tensor.cat(a, b).sum(0)",
                 "a.cat(b.flip(1))", "Tensor.cat(a, b, a.sin())[1:4]"):  # fmt: skip
        yield case(text, plain(2, 3), plain(3, 3))
        yield case(text, Input((2, 3), layout="permute"), Input((1, 3), layout="flip"))
    yield case("a.cat(b, dim=1)", plain(2, 3), plain(2, 1))
    yield case("a.cat(b, dim=-1)", plain(2, 2, 0), plain(2, 2, 3))
    yield case("a.cat(b)", plain(2, dtype="int32"), plain(3))
    yield case("a.cat(b)", plain(2, dtype="uint8", low=0), plain(3, dtype="int8"))
    for text in ("Tensor.meshgrid(a, b)", "Tensor.meshgrid(a, b, indexing='xy')"):
        yield case(text, plain(3), plain(2))
    yield case("a.cat(b, c, dim=1)", plain(2, 1, 3), plain(2, 2, 3), plain(2, 3, 3))


def indexed() -> Iterator[Case]:
    """Indexing by tensors and lists, gather, scatter, one_hot."""
    for text in INDEXED:
        yield case(text, plain(4, 5), plain(3, dtype="int32", low=-4, high=4))
        yield case(text, plain(4, 4, 3), plain(3, dtype="int64", low=0, high=3))
        yield case(text, Input((4, 4), layout="permute"), plain(3, dtype="int32", low=0, high=4))
    for i, j, axis in (
        (plain(5), plain(4, dtype="int32", low=0, high=5), 0),
        (plain(4, 3), plain(2, 3, dtype="int32", low=0, high=4), 0),
        (plain(4, 3), plain(4, 5, dtype="int64", low=0, high=3), 1),
        (Input((3, 4), layout="permute"), plain(3, 2, dtype="int32", low=0, high=4), -1),
        (plain(2, 3, 4), plain(2, 1, 4, dtype="int32", low=0, high=3), 1),
    ):  # fmt: skip
        yield case(f"a.gather({axis}, b)", i, j)
        yield case(f"a.gather({axis}, b).square()", i, j)
        yield case(f"a.gather({axis}, b)", Input(i.shape, "int32", -9, 9, i.layout), j)
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for include in (True, False):
            for shape, places, axis in (((5,), (7,), 0), ((4, 3), (2, 3), 0), ((3, 4), (3, 6), 1)):
                yield case(
                    f"a.scatter_reduce({axis}, b, c, '{reduce}', include_self={include})",
                    plain(*shape, low=0.5, high=2),
                    plain(*places, dtype="int32", low=0, high=shape[axis]),
                    plain(*places, low=0.5, high=2),
                    grads="" if reduce != "sum" else "ac",
                )
    for shape, places, axis in (((5,), (1,), 0), ((4, 3), (1, 3), 0), ((3, 4), (3, 1), 1)):
        index = plain(*places, dtype="int32", low=0, high=shape[axis])
        yield case(f"a.scatter({axis}, b, c)", plain(*shape), index, plain(*places))
        yield case(f"a.scatter({axis}, b, 2.5)", plain(*shape), index, grads="")
        for reduce in ("add", "multiply"):
            yield case(f"a.scatter({axis}, b, 2.5, reduce='{reduce}')", plain(*shape), index)
    yield case(
        "a.scatter(0, b, c)", plain(6), plain(9, dtype="int32", low=0, high=6), plain(9), grads=""
    )
    for classes in (4, 6):
        yield case(f"a.one_hot({classes})", plain(5, dtype="int32", low=0, high=4))
        yield case(f"a.one_hot({classes})", plain(2, 3, dtype="uint8", low=0, high=4))
    for i in (plain(7), plain(3, 4), Input((3, 4), layout="permute")):
        yield case("a.masked_select(a > 0)", i, grads="")
    yield case("a.masked_fill(b, -1.5)", plain(3, 4), plain(3, 4, dtype="bool"))


def written() -> Iterator[Case]:
    """Writes to parts of a tensor."""
    for text in WRITTEN:
        if "+=" in text:
            place = text.split(" ")[0].removeprefix("a")
            call = f"a.__setitem__({slices(place)}, a{place} + 1)"
        else:
            place, value = text.removeprefix("a").split(" = ")
            call = f"a.__setitem__({slices(place)}, {value})"
        for dtype in ("float32", "int32"):
            yield case(f"[a := (a + 0).contiguous().realize(), {call}] and a",
                       plain(3, 4, dtype=dtype), plain(4, dtype=dtype), grads="")  # fmt: skip


def slices(place: str) -> str:
    """`[1:, 0]` as the tuple that __setitem__ takes."""
    body = place[1:-1]
    if body.startswith("[") and body.endswith("]") and "], [" not in body:
        return body
    parts = [body] if "[" not in body else split_lists(body)
    if "[" not in body:
        parts = body.split(",")
    made = []
    for part in (p.strip() for p in parts):
        if ":" in part:
            ends = [e.strip() or "None" for e in part.split(":")]
            made.append(f"slice({', '.join(ends)})")
        else:
            made.append(part)
    return f"({', '.join(made)},)"


def split_lists(body: str) -> list[str]:
    """Splits at commas that stand outside of brackets."""
    parts, depth = [""], 0
    for letter in body:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
