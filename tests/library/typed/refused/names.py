"""Uses names that tensors do not have."""

from aster_ml import Tensor

x = Tensor([1.0])
x.relux()  # mypy: attr-defined  # pyright: reportAttributeAccessIssue
x.shapes.count(1)  # mypy: attr-defined  # pyright: reportAttributeAccessIssue
Tensor.zeroes(2)  # mypy: attr-defined  # pyright: reportAttributeAccessIssue
