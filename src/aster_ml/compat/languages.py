"""Classes of renderers that tests ask a device's renderer for: what language it writes."""

from __future__ import annotations

from typing import Any


class LanguageMeta(type):
    """`isinstance(renderer, cls)` asks what language the device is compiled from."""

    languages: tuple[str, ...] = ()

    def __instancecheck__(cls, renderer: Any) -> bool:
        return getattr(renderer, "language", None) in cls.languages


class CStyleLanguage(metaclass=LanguageMeta):
    """C and what is like it."""

    languages = ("c", "opencl", "cuda")


class ClangRenderer(metaclass=LanguageMeta):
    """C for a CPU."""

    languages = ("c",)


class OpenCLRenderer(metaclass=LanguageMeta):
    """OpenCL C."""

    languages = ("opencl",)


class LLVMRenderer(metaclass=LanguageMeta):
    """LLVM IR."""

    languages = ("llvm",)


class PythonRenderer(metaclass=LanguageMeta):
    """The interpreter."""

    languages = ("python",)
