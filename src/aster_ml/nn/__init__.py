"""Offers neural-network layers under the names that users know: `nn.Linear`, `nn.Conv2d`, ...

The layers live in `nn.layers` and `nn.norms`; `nn.optim`, `nn.schedule`, `nn.state` and
`nn.datasets` are modules of their own.
"""

from __future__ import annotations

from aster_ml.nn import datasets, optim, schedule, state
from aster_ml.nn.elsewhere import no_layer as __getattr__  # noqa: F401 (Python calls it)
from aster_ml.nn.layers import (
    Conv1d,
    Conv2d,
    ConvTranspose1d,
    ConvTranspose2d,
    Embedding,
    Linear,
    LSTMCell,
)
from aster_ml.nn.norms import (
    BatchNorm,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LayerNorm2d,
    RMSNorm,
)

__all__ = [
    "BatchNorm",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Embedding",
    "GroupNorm",
    "InstanceNorm",
    "LSTMCell",
    "LayerNorm",
    "LayerNorm2d",
    "Linear",
    "RMSNorm",
    "datasets",
    "optim",
    "schedule",
    "state",
]
# Recordings of functions watch what code of these modules reads: models are made of them.
__guarded__ = True
