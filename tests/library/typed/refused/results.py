"""Takes results for something else than they are."""

from aster_ml import Tensor, nn

x = Tensor([1.0])
total: float = x.sum()  # mypy: assignment  # pyright: reportAssignmentType
rows: list[Tensor] = x.split(1)  # mypy: assignment  # pyright: reportAssignmentType
x.qr().sum()  # mypy: attr-defined  # pyright: reportAttributeAccessIssue
x.grad.tolist()  # mypy: union-attr  # pyright: reportOptionalMemberAccess
text: str = nn.Linear(1, 1)(x)  # mypy: assignment  # pyright: reportAssignmentType
nn.Linear("1", 1)  # mypy: arg-type  # pyright: reportArgumentType
x.max_pool2d(1, return_indices=True).sum()  # mypy: attr-defined  # pyright: reportAttributeAccessIssue
total = Tensor.einsum("i->", x)  # mypy: assignment  # pyright: reportAssignmentType
x.shape = (1,)  # mypy: misc  # pyright: reportAttributeAccessIssue
