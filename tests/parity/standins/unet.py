"""Stand-in for `extra.models.unet`: the residual block with a time embedding."""

from __future__ import annotations

from aster_ml import Tensor, nn


class ResBlock:
    """Two normalised convolutions with an embedding added between them, around a short cut.

    Source: Dhariwal and Nichol 2021, the residual block of their U-Net.
    """

    def __init__(
        self, channels: int, emb_channels: int, out_channels: int, groups: int = 8
    ) -> None:
        self.in_layers = [
            nn.GroupNorm(groups, channels),
            Tensor.silu,
            nn.Conv2d(channels, out_channels, 3, padding=1),
        ]
        self.emb_layers = [Tensor.silu, nn.Linear(emb_channels, out_channels)]
        self.out_layers = [
            nn.GroupNorm(groups, out_channels),
            Tensor.silu,
            nn.Conv2d(out_channels, out_channels, 3, padding=1),
        ]
        self.skip = nn.Conv2d(channels, out_channels, 1) if channels != out_channels else None

    def __call__(self, x: Tensor, emb: Tensor) -> Tensor:
        h = x.sequential(self.in_layers)
        e = emb.sequential(self.emb_layers)
        h = (h + e.reshape(*e.shape, 1, 1)).sequential(self.out_layers)
        return (x if self.skip is None else self.skip(x)) + h
