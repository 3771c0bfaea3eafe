"""Defines the errors that users see, and InternalError for faults of Aster itself.

Every user error is also an instance of the built-in class that a Python programmer would expect
(`ValueError`, `TypeError`, ...), so existing `except` clauses keep working. Errors of shapes,
dtypes, arguments and gradients are `AssertionError`s too, as programs written for tinygrad expect.
A message says what was given, what was wanted and what would do.
"""

from __future__ import annotations


class AsterError(RuntimeError):
    """Base of every error that Aster raises on purpose.

    It is a RuntimeError, which users of PyTorch catch for nearly everything.
    """


class ShapeError(AsterError, ValueError, AssertionError):
    """Shapes, axes or sizes that do not fit together."""


class DTypeError(AsterError, TypeError, AssertionError):
    """A dtype that does not exist, does not mix, or is not supported by an operation."""


class UnknownDTypeError(DTypeError, AttributeError):
    """A name that no dtype has: `dtypes.typo` and `dtype="typo"` are the same mistake."""


class FloatWantedError(DTypeError, ValueError):
    """A dtype that is not a float where one is wanted; a ValueError too."""


class NodeDTypeError(DTypeError):
    """A requested dtype that differs from the dtype of a node."""


class NumberRangeError(DTypeError, OverflowError):
    """A Python number outside of the range of the dtype that should store it."""


class NumberRangeWarning(UserWarning):
    """Numbers of a list were wrapped to the requested int dtype."""


class ArgumentError(AsterError, ValueError, AssertionError):
    """An argument whose value makes no sense for the operation."""


class SymbolicSizeError(ShapeError):
    """A size that is symbolic where its number is needed."""


class BindError(ArgumentError):
    """A variable without a value, with a value out of bounds, or with two values."""


class PreconditionError(ShapeError, ArgumentError):
    """An argument that does not fit a shape."""


class SignatureError(ArgumentError, TypeError):
    """Arguments of types that do not fit together."""


class FieldError(ArgumentError):
    """A name that no field of a node has."""


class UnsupportedError(AsterError, NotImplementedError):
    """A variant of an operation that is not implemented."""


class IndexRangeError(AsterError, IndexError):
    """A static index outside its axis."""


class DeviceError(AsterError, RuntimeError):
    """A device that is unknown, absent, or not able to do what was asked."""


class OutOfMemoryError(AsterError, MemoryError):
    """A device has no room for an allocation."""


class GradientError(AsterError, AssertionError):
    """A gradient of a value that has none."""


class UnreducedError(GradientError):
    """A gradient of a value of several elements, where one element is wanted."""


class IndexShapeError(ShapeError, IndexRangeError):
    """Indices whose shapes do not fit together; an IndexError too."""


class CompileError(AsterError, RuntimeError):
    """A backend compiler refused generated source."""


class KernelOptError(ArgumentError):
    """An Opt that cannot be applied to a kernel, or not on its device."""


class JitError(AsterError, RuntimeError):
    """A jitted function that cannot be replayed as it was called."""


class JitShapeError(JitError, ShapeError):
    """Shapes of a call that do not fit the recording of a jitted function."""


class FormatError(AsterError, ValueError):
    """A file that is damaged or not of the format it claims.

    `reason` is what is wrong, `place` where in the file (a member, a tensor, an offset), `path` the
    file's name; both are empty where there is none. The message has all three.
    """

    def __init__(self, reason: str, place: str = "", path: str = "") -> None:
        super().__init__(reason)
        self.reason, self.place, self.path = reason, place, path

    def __str__(self) -> str:
        return ": ".join([part for part in (self.path, self.place, self.reason) if part])


class FileMissingError(FormatError, FileNotFoundError):
    """A file to read that is not there."""

    __str__ = FormatError.__str__


class FileKindError(FormatError, IsADirectoryError):
    """A folder, device or pipe where a file is to be read."""

    __str__ = FormatError.__str__


class DiskError(FormatError, DeviceError):
    """A file used as memory that is missing, not a regular file, or shorter than a read."""


class DownloadError(AsterError, OSError):
    """Data could not be fetched and no cached copy exists."""


class InternalError(AsterError, AssertionError):
    """Aster broke one of its own rules; the message names the pass and the node."""
