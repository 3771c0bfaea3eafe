"""Stand-in for `extra.models.resnet`: the network of 18 layers."""

from __future__ import annotations

from aster_ml import Tensor, nn


class BasicBlock:
    """Two convolutions of 3 x 3 around a short cut, which is a convolution where sizes change."""

    def __init__(self, in_planes: int, planes: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = []
        if stride != 1 or in_planes != planes:
            cut = nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False)
            self.downsample = [cut, nn.BatchNorm2d(planes)]

    def __call__(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (out + x.sequential(self.downsample)).relu()


class ResNet18:
    """Four pairs of blocks behind a convolution of 7 x 7.

    Source: He et al. 2015.
    """

    def __init__(self, num_classes: int = 1000) -> None:
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        planes = (64, 64, 128, 256, 512)
        self.layers = [
            [
                BasicBlock(planes[i], planes[i + 1], 1 if i == 0 else 2),
                BasicBlock(planes[i + 1], planes[i + 1], 1),
            ]
            for i in range(4)
        ]
        self.fc = nn.Linear(512, num_classes)

    def __call__(self, x: Tensor) -> Tensor:
        out = self.bn1(self.conv1(x)).relu().pad((1, 1, 1, 1)).max_pool2d((3, 3), 2)
        for pair in self.layers:
            out = out.sequential(pair)
        return self.fc(out.mean([2, 3]))
