"""Compiles a graph that Dynamo has captured.

Receives modules of torch.fx; returns functions of PyTorch's tensors. AOTAutograd makes graphs of
ATen operators of them, one for inference, or one forwards and one backwards.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from aster_ml.errors import ArgumentError, UnsupportedError
from aster_ml.torch_backend.partition import left_to_torch, partitioned, tell
from aster_ml.torch_backend.program import Program

# Operators that core ATen takes apart, and Aster had better have whole.
WHOLE = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "embedding_dense_backward",
    "_unsafe_index",
    "_unsafe_index_put",
)


def torch_package() -> Any:
    """The package torch. Raises: UnsupportedError, which says what installs it."""
    try:
        import torch
    except ImportError as error:
        raise UnsupportedError(
            "the backend of torch.compile wants the package torch, which is absent: "
            "pip install 'aster-ml[torch]'"
        ) from error
    return torch


def aster(module: Any, example_inputs: list[Any], **options: Any) -> Callable[..., Any]:
    """The backend: `torch.compile(model, backend="aster")`.

    Raises: ArgumentError for options, of which there are none.
    """
    if options:
        raise ArgumentError(
            f"torch.compile: options {sorted(options)} given; the backend aster has none"
        )
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    compiler = aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        inference_compiler=compile_graph,
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )
    with whole_lstm_only_for_inference(module):
        found: Callable[..., Any] = compiler(module, example_inputs)
    return found


@contextlib.contextmanager
def whole_lstm_only_for_inference(module: Any) -> Iterator[None]:
    """Under it PyTorch takes an LSTM apart where there may be gradients.

    PyTorch looks only at the input, not at the weights, when it decides whether oneDNN's LSTM for
    inference will do; that one has no gradients, and saves None for the way back.
    """
    torch = torch_package()
    was_enabled = torch._C._get_mkldnn_enabled()
    has_lstm = any(getattr(n.target, "__name__", "") == "lstm" for n in module.graph.nodes)
    torch._C._set_mkldnn_enabled(was_enabled and not (has_lstm and torch.is_grad_enabled()))
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


@functools.cache
def decompositions() -> dict[Any, Any]:
    """Operators in terms of core ATen, but for those that are wanted whole."""
    torch = torch_package()
    from torch._decomp import core_aten_decompositions

    table = dict(core_aten_decompositions())
    for name in WHOLE:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    return table


def compile_graph(module: Any, example_inputs: list[Any]) -> Callable[..., Any]:
    """A graph of ATen operators as a function of a list of tensors."""
    torch = torch_package()
    left = left_to_torch(module)
    if not left:
        return Program(module, torch)
    tell(left)
    whole = partitioned(module)
    for name, part in list(whole.named_children()):
        if name.startswith("fused_"):
            program = Program(part, torch)
            part.forward = functools.partial(call_part, program)

    def run(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return whole(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def call_part(program: Program, *args: Any) -> Any:
    """A part of a graph, called as a module."""
    return program(list(args))
