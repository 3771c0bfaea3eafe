"""The interpreter: what every rule of the linear stage means, and that it sees broken programs."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml.device import Buffer, Device
from aster_ml.dtype import dtypes, to_numpy_dtype
from aster_ml.errors import CompileError, InternalError
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import linear_to_text
from tests.core.linear_builder import LOCAL, LOOP, UPCAST, VECTOR, Builder, at
from tests.core.linear_programs import CASES, Case, check_outputs, f32, i32


def run(case: Case) -> list[np.ndarray]:
    """The buffers after the run."""
    buffers = [x.copy().reshape(-1) for x in case.buffers]
    for part in case.parts:
        Interpreter(case.linear).run(buffers, case.variables, part)
    return buffers


@pytest.mark.parametrize("name", CASES)
def test_interpreter_computes(name: str) -> None:
    case = CASES[name]()
    check_outputs(run(case), case)


@pytest.mark.parametrize("name", CASES)
def test_device_runs_the_text_of_a_program(name: str) -> None:
    case = CASES[name]()
    backend = Device["PYTHON"]
    program = backend.load(case.linear.name, backend.compile(linear_to_text(case.linear)))
    buffers = []
    for param, data in zip(case.linear.params, case.buffers, strict=True):
        buffers.append(Buffer("PYTHON", data.size, param.dtype).copyin(data.copy()))
    before = backend.queue.signal()
    program(tuple(b.handle for b in buffers), case.variables)
    assert backend.queue.signal().seconds_since(before) > 0
    check_outputs([b.numpy() for b in buffers], case)


@pytest.mark.parametrize("dtype", [d for d in dtypes.all if d is not dtypes.index])
def test_every_dtype_is_read_and_written(dtype: dtypes) -> None:
    b = Builder("copy")
    out, x = b.param(4, dtype), b.param(4, dtype)
    v = b.axis(4, VECTOR)
    b.store(at(out, 0, v), b.load(at(x, 0, v)))
    source = np.array([0, 1, 2, 3], dtype=to_numpy_dtype(dtype))
    found = np.zeros(4, dtype=to_numpy_dtype(dtype))
    Interpreter(b.build()).run([found, source])
    np.testing.assert_array_equal(found.view(np.uint8), source.view(np.uint8))


def copy_program(size: int, element: int, store_element: int = 0) -> Builder:
    """out[store_element] = x[element]."""
    b = Builder("copy")
    out, x = b.param(4), b.param(size)
    b.store(at(out, store_element), b.load(at(x, element)))
    return b


def test_reads_outside_of_a_buffer_are_seen() -> None:
    memory = [np.zeros(4, np.float32), np.zeros(100, np.float32)]
    with pytest.raises(InternalError, match=r"copy: LOAD of buffer 1: element 4 of 4 is read"):
        Interpreter(copy_program(4, 4).build()).run(memory)
    with pytest.raises(InternalError, match=r"LOAD of buffer 1: element -1 of 4 is read"):
        Interpreter(copy_program(4, -1).build()).run(memory)


def test_writes_outside_of_a_buffer_are_seen() -> None:
    memory = [np.zeros(100, np.float32), np.zeros(4, np.float32)]
    with pytest.raises(InternalError, match=r"copy: STORE of buffer 0: element 4 of 4 is written"):
        Interpreter(copy_program(4, 0, 4).build()).run(memory)


def test_memory_smaller_than_the_kernel_wants_is_seen() -> None:
    with pytest.raises(InternalError, match="buffer 0 has 3 elements, the kernel wants 4"):
        Interpreter(copy_program(4, 0).build()).run([np.zeros(3, np.float32)] * 2)


def test_a_gated_load_looks_at_no_memory() -> None:
    b = Builder("gated")
    out, x = b.param(1), b.param(1)
    b.store(at(out, 0), b.load(at(x, 5000), b.add(b.load(at(x, 0)) < f32(0))))
    found = np.ones(1, np.float32)
    Interpreter(b.build()).run([found, np.ones(1, np.float32)])
    assert found[0] == 0


def test_scratch_that_nobody_wrote_stands_out() -> None:
    b = Builder("unwritten")
    out, strip = b.param(1), b.local(4)
    b.store(at(out, 0), b.load(at(strip, 2)))
    found = np.zeros(1, np.float32)
    Interpreter(b.build()).run([found])
    assert np.isnan(found[0])


def test_a_value_read_before_it_is_listed_is_refused() -> None:
    b = Builder("order")
    out, x = b.param(1), b.param(1)
    value = at(x, 0).load()
    b.uops.append(at(out, 0).store(value))
    with pytest.raises(InternalError, match="used before it is listed"):
        Interpreter(b.build())


def test_an_end_of_an_outer_loop_is_refused() -> None:
    b = Builder("crossed")
    outer, _inner = b.axis(2, LOOP), b.axis(2, LOOP)
    b.end(outer)
    with pytest.raises(InternalError, match="not the innermost loop"):
        Interpreter(b.build())


def test_a_value_read_without_its_lanes_is_refused() -> None:
    b = Builder("lanes")
    x = b.param(4)
    j = b.axis(4, UPCAST)
    value = b.load(at(x, 0, j))
    b.accumulate(b.reg(f32(0)), value)
    with pytest.raises(InternalError, match="without its lanes"):
        Interpreter(b.build())


def test_a_barrier_that_some_never_reach_is_seen() -> None:
    b = Builder("divergent")
    item = b.axis(2, LOCAL)
    loop = b.axis(item, LOOP)
    b.add(UOp(Ops.BARRIER, dtypes.void, ()))
    b.end(loop)
    with pytest.raises(InternalError, match="1 of 2 work-items of a block wait at a barrier"):
        Interpreter(b.build()).run([])


def test_a_written_buffer_may_not_be_read_only() -> None:
    backend = Device["PYTHON"]
    linear = copy_program(4, 0).build()
    program = backend.load("copy", linear_to_text(linear).encode())
    frozen = backend.allocator.wrap(bytes(16), 16)
    with pytest.raises(InternalError, match="buffer 0 is written and read-only"):
        program((frozen, frozen))


def test_the_program_has_the_name_that_is_asked_for() -> None:
    source = linear_to_text(copy_program(4, 0).build())
    with pytest.raises(CompileError, match="named copy, not other"):
        Device["PYTHON"].load("other", source.encode())


def test_indices_beyond_32_bits() -> None:
    b = Builder("wide")
    out = b.param(1, dtypes.int64)
    r = b.axis(3, LOOP, dtypes.int64)
    last = b.add(r * UOp.const(dtypes.int64, 1 << 40))
    b.store(at(out, 0), last)
    b.end(r)
    found = np.zeros(1, np.int64)
    Interpreter(b.build()).run([found])
    assert found[0] == 1 << 41
    assert i32(1).dtype is dtypes.int32
