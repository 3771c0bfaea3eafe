"""Writes a plan as a page: an ES module with shaders and launches, weights, a page to try it.

Receives a `Plan` for a target of the language "wgsl"; returns texts and bytes by file name. All
that does not change from call to call is worked out here: which bytes each binding shows, the
uniforms, numbers of blocks. What runs it stands in `web/webgpu.js`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from aster_ml.errors import UnsupportedError
from aster_ml.export.module import (
    check_dtypes,
    described,
    module_text,
    page_files,
    script,
    tensor_files,
)
from aster_ml.export.plan import Copy, Launch, Place, Plan
from aster_ml.export.weights import digest_of
from aster_ml.extend import (
    BINDING_NBYTES,
    MAX_BLOCKS,
    WORD_NBYTES,
    LaunchFacts,
    WgslRenderer,
    shader_variant,
    webgpu_target,
)
from aster_ml.helpers import round_up
from aster_ml.target import Target

# What every browser with WebGPU gives (W3C, WebGPU, 3.6.2 Limits).
DEFAULT_LIMITS = {
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-storage-size": 16384,
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-workgroups-per-dimension": 65535,
}
MOST_BUFFERS, MOST_BINDING, MOST_BUFFER = 8, 1 << 27, 1 << 28


def web_target() -> Target:
    """The least that a browser with WebGPU has."""
    return webgpu_target(DEFAULT_LIMITS, False, "browser")


class Page:
    """Works out what a page does."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        check_dtypes([*plan.inputs, *plan.outputs])
        self.buffers: list[dict[str, object]] = []
        self.sizes: list[int] = []
        self.first: dict[str, int] = {}
        for region, sizes in (
            ("input", [v.nbytes for v in plan.inputs]),
            ("output", [v.nbytes for v in plan.outputs]),
            ("weight", [len(b.data) for b in plan.weights]),
            ("state", [len(b.data) for b in plan.states]),
            ("arena", [plan.arena_nbytes]),
        ):
            self.first[region] = len(self.buffers)
            self.buffers += [{"nbytes": nbytes} for nbytes in sizes]
            self.sizes += sizes
        for region, blobs in (("weight", plan.weights), ("state", plan.states)):
            for i, blob in enumerate(blobs, self.first[region]):
                self.buffers[i]["tensor"] = blob.name
        self.shaders: list[tuple[str, list[str]]] = []
        self.shader_of: dict[tuple[int, bool, bool], int] = {}
        renderer = WgslRenderer(plan.target)
        self.sources = [renderer.render(linear) for linear in plan.kernels]
        self.facts = [LaunchFacts.parse(source) for source in self.sources]
        self.steps: list[dict[str, object]] = []
        self.limits: dict[str, int] = {}

    def files(self) -> dict[str, str | bytes]:
        """All files by name."""
        plan = self.plan
        for step in plan.steps:
            if isinstance(step, Copy):
                self.copy(step)
            elif 0 not in step.blocks:
                self.launch(step)
        self.need("maxBufferSize", max(self.sizes, default=0) + 32, MOST_BUFFER)
        files = tensor_files(plan.name, [*plan.weights, *plan.states])
        fields = {
            "name": plan.name,
            "inputs": described(plan.inputs),
            "outputs": described(plan.outputs),
            "files": {file: digest_of(data) for file, data in files.items()},
            "limits": self.limits,
            "buffers": self.buffers,
            "steps": self.steps,
        }
        shaders = "".join(
            [
                f"  {{ kinds: {json.dumps(kinds)}, code: `{escaped(code)}` }},\n"
                for code, kinds in self.shaders
            ]
        )
        rest = [f"const SHADERS = [\n{shaders}];", "", script(plan, "webgpu.js")]
        about = f"A function of tensors on WebGPU: {len(plan.steps)} launches."
        return {
            f"{plan.name}.js": module_text(plan, fields, rest),
            **files,
            **page_files(plan, about),
        }

    def need(self, limit: str, wanted: int, default: int) -> None:
        """Asks for a limit where the one that all browsers have is less."""
        if wanted > default:
            self.limits[limit] = max(wanted, self.limits.get(limit, 0))

    def buffer(self, place: Place) -> int:
        """The number of the buffer that a place is in."""
        return self.first[place.region] + place.number

    def copy(self, step: Copy) -> None:
        """Copies between buffers, in whole words; within one, by way of another."""
        to, source = step.target, step.source
        if to.offset % 4 or source.offset % 4:
            raise UnsupportedError(
                "export: bytes that begin inside of a word are copied, which WebGPU does not; a "
                "clone() in the function is computed instead"
            )
        nbytes = int(round_up(source.nbytes, 4))
        a, b = self.buffer(to), self.buffer(source)
        if a == b:
            between = len(self.buffers)
            self.buffers.append({"nbytes": nbytes})
            self.sizes.append(nbytes)
            self.steps.append({"copy": [between, 0, b, source.offset, nbytes]})
            self.steps.append({"copy": [a, to.offset, between, 0, nbytes]})
        else:
            self.steps.append({"copy": [a, to.offset, b, source.offset, nbytes]})

    def launch(self, step: Launch) -> None:
        """A dispatch: shader, bindings, uniform, blocks."""
        facts = self.facts[step.kernel]
        bound = []
        for place in step.places:
            begin = place.offset // BINDING_NBYTES * BINDING_NBYTES
            nbytes = max(place.offset - begin + place.nbytes, 1)
            size = int(round_up(nbytes, WORD_NBYTES))
            self.need("maxStorageBufferBindingSize", size, MOST_BINDING)
            bound.append((self.buffer(place), begin, size))
        self.need("maxStorageBuffersPerShaderStage", len(bound), MOST_BUFFERS)
        written = [is_written for _, is_written in facts.buffers]
        is_shared = check_shared(self.plan.kernels[step.kernel].name, bound, written)
        offsets = [place.offset % BINDING_NBYTES for place in step.places]
        data = facts.arguments(offsets, step.variables)
        words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]
        blocks = (*step.blocks, 1, 1, 1)[:3]
        if max(blocks) > MAX_BLOCKS:
            raise UnsupportedError(
                f"export: kernel {self.plan.kernels[step.kernel].name} has {blocks} blocks; WebGPU "
                f"has at most {MAX_BLOCKS} in a dimension; smaller inputs would do"
            )
        self.steps.append(
            {
                "shader": self.shader(step.kernel, is_shared, facts.are_aligned(offsets)),
                "bind": [list(b) for b in bound],
                "words": words,
                "blocks": list(blocks),
            }
        )

    def shader(self, kernel: int, is_shared: bool, is_aligned: bool) -> int:
        """The number of a shader: of a kernel, as its buffers are bound and where they begin."""
        key = kernel, is_shared, is_aligned
        if key not in self.shader_of:
            source, facts = self.sources[kernel], self.facts[kernel]
            kinds = [
                "storage" if written or is_shared else "read-only-storage"
                for _, written in facts.buffers
            ]
            self.shader_of[key] = len(self.shaders)
            text = one_variant(shader_variant(source, is_shared, is_aligned))
            self.shaders.append((text, kinds))
        return self.shader_of[key]


def one_variant(source: str) -> str:
    """The source of a shader without the lines of others, which a page has no use for."""
    lines = [line for line in source.split("\n") if not line.startswith("//| ")]
    return "\n".join([line.removesuffix(" //-") for line in lines])


def check_shared(name: str, bound: Sequence[tuple[int, int, int]], written: Sequence[int]) -> bool:
    """Whether a buffer is bound both as read and as written.

    Raises: UnsupportedError where such bindings overlap.
    """
    is_shared = False
    for i, (a, start, size) in enumerate(bound):
        for j, (b, other, length) in enumerate(bound[:i]):
            if a != b or not (written[i] or written[j]):
                continue
            is_shared |= not (written[i] and written[j])
            if start < other + length and other < start + size:
                raise UnsupportedError(
                    f"export: kernel {name} reads and writes overlapping bytes of one buffer, "
                    "which WebGPU forbids; a clone() of what is read would do"
                )
    return is_shared


def escaped(code: str) -> str:
    """Source as it stands in a template of JavaScript."""
    return code.replace("\\", "\\\\").replace("`", "\\`").replace("${", "\\${")
