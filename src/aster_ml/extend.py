"""Passes on what packages that build on tensors need beside the names of `aster_ml`.

With the modules that `layers.toml` lists as `interface` these are all that the library (`nn`,
`complex`, `fft`, `array_api`) uses of the core, and what packages of others can rely on.
"""

from __future__ import annotations

from aster_ml.elsewhere import hint
from aster_ml.mixin.complexes import COMPLEX_KINDS
from aster_ml.mixin.data import wrapped_node
from aster_ml.mixin.handle import check_tensor
from aster_ml.mixin.interop import BINARY, UNARY, as_numpy
from aster_ml.mixin.linalg import matrix_sizes, root_of_sum
from aster_ml.mixin.solve import epsilon, exchanged, largest_left
from aster_ml.runtime.disk import plain_file_size
from aster_ml.runtime.foreign import resolved
from aster_ml.runtime.object_cache import cache_folder
from aster_ml.uop.infer import show_shape

__all__ = [
    "BINARY", "COMPLEX_KINDS", "UNARY", "as_numpy", "cache_folder", "check_tensor", "epsilon",
    "exchanged", "hint", "largest_left", "matrix_sizes", "plain_file_size", "resolved",
    "root_of_sum", "show_shape", "wrapped_node",
]  # fmt: skip
