"""Offers the names that programs expect in `tensor` beside Tensor."""

from __future__ import annotations

from typing import cast

from aster_ml.compat.dtypes import ConstType, _from_np_dtype, _to_np_dtype
from aster_ml.device import Buffer, Device
from aster_ml.downloads import fetch
from aster_ml.dtype import DType, DTypeLike, dtypes
from aster_ml.engine.items import ExecItem, run_schedule
from aster_ml.trace import _METADATA, Metadata
from aster_ml.uop.node import UOp, Variable, sint
from aster_ml.uop.ops import Ops

__all__ = [
    "_METADATA", "Buffer", "ConstType", "DType", "DTypeLike", "Device", "ExecItem", "Metadata",
    "Ops", "UOp", "Variable", "_from_np_dtype", "_to_np_dtype", "cast", "dtypes", "fetch",
    "run_schedule", "sint",
]  # fmt: skip
