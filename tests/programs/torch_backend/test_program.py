"""Programs: whose memory is read and written, and how many recordings there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aster_ml.torch_backend.compiler import compile_graph, decompositions
from aster_ml.torch_backend.program import MOST_RECORDED, Program

torch = pytest.importorskip("torch", reason="what is compiled are graphs of PyTorch")
pytestmark = pytest.mark.torch


def program_of(function: Callable[..., Any], *args: Any) -> Program:
    """The graph of a function."""
    from torch.fx.experimental.proxy_tensor import make_fx

    module = make_fx(function, decompositions(), tracing_mode="fake")(*args)
    found = compile_graph(module, list(args))
    assert isinstance(found, Program)
    return found


def test_from_the_third_call_on_memory_of_others_is_used_in_place() -> None:
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    program = program_of(lambda x, w: torch.tanh(x @ w.T), x, w)
    for _ in range(2):
        program([x, w])
    (recorded,) = program.recorded.values()
    replay = recorded.on_memory
    assert replay is not None
    found = program([x, w])
    assert replay.addresses == [x.data_ptr(), w.data_ptr(), found.data_ptr()]
    w.mul_(0)
    other = program([x, w])
    assert not other.any()
    assert found.any()


def test_arguments_are_taken_out_of_the_list() -> None:
    x = torch.ones(2)
    program = program_of(lambda x: x + 1, x)
    for _ in range(4):
        given = [x]
        program(given)
        assert given == []


def test_a_recording_for_each_combination_of_shapes() -> None:
    x = torch.randn(3, 4)
    program = program_of(lambda x: x.sum(1), x)
    program.is_dynamic = True
    program.graph.steps = [(n, lambda v, w: v[program.arguments[0]].sum(1)) for n in program.wanted]
    for n in range(1, MOST_RECORDED + 4):
        y = torch.randn(n, 4)
        assert torch.allclose(program([y]), y.sum(1), atol=1e-5)
    assert len(program.recorded) == MOST_RECORDED


def test_memory_that_was_given_back_is_taken_again() -> None:
    x = torch.randn(64, 64)
    program = program_of(lambda x: torch.softmax(x @ x, 1) @ x, x)
    wanted = torch.softmax(x @ x, 1) @ x
    for call in range(5):
        assert torch.allclose(program([x]), wanted, atol=1e-4)
        if call == 3:
            (recorded,) = program.recorded.values()
            assert recorded.on_memory is not None
            recorded.on_memory.replay.free_intermediates()


def test_a_graph_whose_result_is_no_tensor_of_ours() -> None:
    x = torch.randn(2, 3)
    program = program_of(lambda x: (x.T, x), x)
    first, second = program([x])
    assert first.data_ptr() == second.data_ptr() == x.data_ptr()
    assert not program.recorded
