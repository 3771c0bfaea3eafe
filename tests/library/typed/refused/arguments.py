"""Gives arguments that methods of tensors do not have."""

from aster_ml import Tensor

x = Tensor([[1.0, 2.0]])
x.relu(1)  # mypy: call-arg  # pyright: reportCallIssue
x.conv2d()  # mypy: call-arg  # pyright: reportCallIssue
x.softmax(axes=1)  # mypy: call-arg  # pyright: reportCallIssue
x.sum(keepdims=True)  # mypy: call-arg  # pyright: reportCallIssue
x.cross_entropy(x, reduction="average")  # mypy: arg-type  # pyright: reportArgumentType
x.transpose("a", "b")  # mypy: arg-type  # pyright: reportArgumentType
x.gather("0", x)  # mypy: arg-type  # pyright: reportArgumentType
