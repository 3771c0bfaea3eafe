"""Small work, where what is measured is everything but the arithmetic.

One eager op that was seen before, and the replay of a recorded chain of tiny dependent kernels.
"""

from __future__ import annotations

from typing import Any

from benchmarks.draws import draw_input, summary
from benchmarks.libraries import Lazy, Library
from benchmarks.row import Case, Row, Wanted

SUBJECT = "small work"
LINKS = 100


def build_eager(library: Library) -> Case:
    """`(a @ b + 2).relu()` on 64x64, built and realized anew each time."""
    a = library.tensor(draw_input("a", (64, 64)))
    b = library.tensor(draw_input("b", (64, 64)))
    if isinstance(library, Lazy):

        def run() -> Any:
            result = (a @ b + 2).relu().realize()
            library.wait()
            return result
    elif library.name == "jax":
        relu = library.module.nn.relu

        def run() -> Any:
            return relu(a @ b + 2).block_until_ready()
    elif library.name == "numpy":
        maximum = library.module.maximum

        def run() -> Any:
            return maximum(a @ b + 2, 0)
    else:
        call = library.compiled(lambda a, b: (a @ b + 2).relu())

        def run() -> Any:
            return call(a, b)

    return Case(run, lambda: summary(library.array(run())))


def build_replay(library: Library) -> Case:
    """A hundred dependent kernels of 64 elements; eager libraries run one op for each."""
    x = library.tensor(draw_input("x", (64,)))

    def chain(x: Any) -> Any:
        for _ in range(LINKS):
            # Turned round, so that no two links can be one kernel; an even number of turns is none.
            x = (x.flip(0) + 1).contiguous() if isinstance(library, Lazy) else x + 1
        return x

    call = library.compiled(chain) if isinstance(library, Lazy) else chain

    def run() -> Any:
        result = call(x)
        if library.name == "jax":
            result.block_until_ready()
        else:
            library.wait()
        return result

    def facts() -> dict[str, float]:
        before = library.kernels()
        run()
        after = library.kernels()
        return {} if before is None or after is None else {"kernels": after - before}

    def check() -> list[float]:
        result = summary(library.array(run()))
        if library.name == "aster" and facts() != {"kernels": LINKS}:
            raise RuntimeError(f"the chain of {LINKS} links ran as {facts()}")
        return result

    return Case(run, check, facts)


def rows() -> list[Row]:
    """Both, with the limits that they have to keep."""
    return [
        Row(
            "(a @ b + 2).relu() eager, 64x64, seen before",
            SUBJECT,
            "small eager",
            "us",
            Wanted(150),
        ),
        Row(
            "replay of 100 dependent kernels of 64, each",
            SUBJECT,
            "replay",
            "us",
            Wanted(2, one_thread=1),
            work=LINKS,
            one_thread_too=True,
            libraries=("torch", "jax", "numpy", "tinygrad"),
        ),
    ]


CASES = {"small eager": build_eager, "replay": build_replay}
