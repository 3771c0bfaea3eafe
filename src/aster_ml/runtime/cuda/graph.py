"""Replays recorded launches of an NVIDIA device as one CUDA graph.

Receives calls; returns a graph that replays them with one call of the driver. A kernel whose memory
or variables change reads them from a table in device memory, so all changes together cost one small
copy, and the graph stays. A node is updated for another number of blocks, another alignment within
16 bytes, and for other memory of a tensor map (TMA), which is an argument with the address. The
nodes are a chain, so the graph is equivalent to sequential launches for any memory.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from aster_ml.backend import Call, Graph, Grid, Launch
from aster_ml.errors import InternalError
from aster_ml.runtime.cuda.context import first_of
from aster_ml.runtime.cuda.memory import CudaAllocator, CudaHandle


class Node:
    """A launch of the graph; its row of the table has `width` numbers from `row` on."""

    def __init__(self, call: Call, row: int) -> None:
        if not isinstance(call.launch, Grid):
            raise InternalError(f"{call.program.name}: CUDA has blocks, given {call.launch}")
        self.program: Any = call.program
        self.launch = call.launch
        self.row, self.width = row, len(call.handles) + len(call.vars)
        self.handles = len(call.handles)
        self.handle: Any = None
        self.function: Any = None
        self.reads_table = False
        self.is_enabled = True


class CudaGraph(Graph):
    """Launches of one device that replay as one."""

    def __init__(self, allocator: CudaAllocator, calls: Sequence[Call]) -> None:
        self.allocator = allocator
        self.device = allocator.cuda
        self.lock = threading.Lock()
        # Keeps recorded memory alive.
        self.calls = list(calls)
        self.nodes: list[Node] = []
        values: list[int] = []
        for call in calls:
            self.nodes.append(Node(call, len(values)))
            values += [*[h.address for h in call.handles], *call.vars]
        self.table = (ctypes.c_int64 * len(values))(*values)
        self.device_table: CudaHandle | None = None
        # Whether the device's table differs from that of the host.
        self.is_changed = False
        self.build()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if finalizing():
            return
        if self.device_table is not None:
            self.allocator.free(self.device_table, ctypes.sizeof(self.table))
        if hasattr(self, "executable") and self.device.may_free():
            self.device.cu.cuGraphExecDestroy(self.executable)
            self.device.cu.cuGraphDestroy(self.graph)

    def build(self) -> None:
        """Builds the driver's graph."""
        device = self.device
        cu = device.cu
        device.enter()
        self.graph = device.check(cu.cuGraphCreate(0), "making a graph")
        before: list[Any] = []
        for node in self.nodes:
            params, _alive = self.parameters(node)
            what = self.graph, before, len(before), params
            made = cu.cuGraphAddKernelNode(*what)
            made = device.once_more(made, cu.cuGraphAddKernelNode, *what)
            if made[0]:
                raise node.program.failure(int(made[0]), *node.launch)
            node.handle = made[1]
            before = [node.handle]
        made = cu.cuGraphInstantiate(self.graph, 0)
        made = device.once_more(made, cu.cuGraphInstantiate, self.graph, 0)
        self.executable = device.check(made, f"a graph of {len(self.nodes)} kernels")
        for node in self.nodes:
            self.enable(node)

    def parameters(self, node: Node) -> tuple[Any, Any]:
        """The driver's parameters of a launch, and objects that it needs alive until the call."""
        params = self.device.cu.CUDA_KERNEL_NODE_PARAMS()
        # The node of an empty launch is disabled.
        x, y, z = [max(n, 1) for n in first_of(node.launch.blocks)]
        params.func = node.function = self.function_of(node)
        params.gridDimX, params.gridDimY, params.gridDimZ = x, y, z
        params.blockDimX, params.blockDimY, params.blockDimZ = first_of(node.launch.items)
        params.sharedMemBytes = node.program.shared
        start = ctypes.addressof(self.table) + 8 * node.row
        places = [start + 8 * i for i in range(node.width)]
        table = ctypes.c_int64(0)
        if node.reads_table:
            assert self.device_table is not None
            table.value = self.device_table.address + 8 * node.row
        tensors = node.program.tensors
        row = self.table[node.row : node.row + node.width]
        forms = [] if tensors is None else tensors.forms(row)
        places += [ctypes.addressof(table), *[ctypes.addressof(form) for form in forms]]
        pointers = (ctypes.c_void_p * len(places))(*places)
        params.kernelParams = ctypes.addressof(pointers)
        return params, (table, pointers, forms)

    def function_of(self, node: Node) -> Any:
        """The driver's function of a launch, for the alignment of its buffers."""
        return node.program.function_at(self.table[node.row : node.row + node.handles])

    def update(self, node: Node) -> None:
        """Updates the node of a launch to its present parameters."""
        device = self.device
        device.enter()
        params, _alive = self.parameters(node)
        result = device.cu.cuGraphExecKernelNodeSetParams(self.executable, node.handle, params)
        if result[0]:
            raise node.program.failure(int(result[0]), *node.launch)

    def enable(self, node: Node) -> None:
        """Disables the node of an empty launch, and enables it again."""
        wanted = 0 not in node.launch.blocks
        if wanted is not node.is_enabled:
            cu = self.device.cu
            result = cu.cuGraphNodeSetEnabled(self.executable, node.handle, int(wanted))
            self.device.check(result, "changing a graph")
            node.is_enabled = wanted

    def exchange(self, call: int, place: int, value: int) -> None:
        """Changes a value in the table, which the kernel reads from the first change on."""
        node = self.nodes[call]
        with self.lock:
            if self.table[node.row + place] == value:
                return
            self.table[node.row + place] = value
            self.is_changed = True
            if not node.reads_table:
                if self.device_table is None:
                    self.device_table = self.allocator.alloc(ctypes.sizeof(self.table))
                node.reads_table = True
                self.update(node)
            elif (node.program.tensors is not None and place in node.program.tensors.slots) or (
                node.program.looking is not None and self.function_of(node) is not node.function
            ):
                self.update(node)

    def set_handle(self, call: int, slot: int, handle: CudaHandle) -> None:
        """Changes the memory of a call's argument."""
        self.exchange(call, slot, handle.address)

    def set_var(self, call: int, slot: int, value: int) -> None:
        """Changes the value of a call's variable number `slot`."""
        self.exchange(call, len(self.calls[call].handles) + slot, value)

    def set_launch(self, call: int, launch: Launch) -> None:
        """Changes the launch sizes of a call."""
        node = self.nodes[call]
        if not isinstance(launch, Grid):
            raise InternalError(f"{node.program.name}: CUDA has blocks, given {launch}")
        if node.launch == launch:
            return
        with self.lock:
            node.launch = launch
            self.update(node)
            self.enable(node)

    def run(self) -> None:
        """Enqueues all launches. Raises: DeviceError when the device is lost."""
        device = self.device
        device.enter()
        with self.lock:
            if self.is_changed and self.device_table is not None:
                size = ctypes.sizeof(self.table)
                start = ctypes.addressof(self.table)
                self.allocator.staging.copyin(self.device_table.address, start, size)
                self.is_changed = False
            result = device.cu.cuGraphLaunch(self.executable, device.stream)
            if result[0]:
                what = self.executable, device.stream
                result = device.once_more(result, device.cu.cuGraphLaunch, *what)
        if result[0]:
            raise device.fault(int(result[0]), f"a graph of {len(self.nodes)} kernels")

    def entry(self) -> Callable[[], object]:
        """`run`, which is at most two calls of the driver."""
        return self.run
