"""The devices of the shim, which are known once this module is imported."""

from __future__ import annotations

from aster_ml import Device
from tests.shim import cuda_shim, metal_shim

SHIMS = ("CUDASHIM", "METALSHIM")
Device.register("CUDASHIM", cuda_shim)
Device.register("METALSHIM", metal_shim)
