"""Lists the extras of the package, what each brings, and what of it is installed.

Receives nothing; returns lines for `aster doctor`. The table repeats that of `pyproject.toml`,
which no installed package has; a test compares the two.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from typing import NamedTuple

PACKAGE = "aster-ml"


class Extra(NamedTuple):
    """Purpose of an extra, the packages that it brings, and other extras that it brings."""

    what: str
    packages: tuple[str, ...]
    extras: tuple[str, ...] = ()


REQUIRED = ("numpy", "llvmlite", "ml-dtypes", "tqdm")
EXTRAS: dict[str, Extra] = {
    "opencl": Extra("the OPENCL device", ("pyopencl",)),
    "webgpu": Extra("the WEBGPU device", ("wgpu",)),
    "cuda": Extra(
        "the CUDA device", ("cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime")
    ),
    "llm": Extra("aster llm, finetune, embed", ("jinja2", "tokenizers")),
    "serve": Extra("aster llm --serve", ("llguidance", "starlette", "uvicorn"), ("llm",)),
    "demo": Extra("the picture of aster demo", ("pillow",)),
    "onnx": Extra("aster run, nn.onnx", ("onnx",)),
    "torch": Extra('torch.compile(model, backend="aster")', ("torch",)),
    "viz": Extra("tests of the pages of VIZ=1 in a browser", ("playwright",)),
    "interop": Extra(
        "what make interop runs beside Aster",
        (
            "array-api-strict", "beartype", "einops", "jaxtyping", "joblib", "matplotlib",
            "pandas", "polars", "scikit-learn", "scipy", "tensorboard", "xarray",
        ),
        ("parity",),
    ),
    "test": Extra(
        "the tests of a clone",
        (
            "gguf", "openai", "onnx", "array-api-strict", "einops", "pytest", "pytest-xdist",
            "pytest-timeout", "hypothesis", "safetensors", "z3-solver",
        ),
        ("demo", "serve"),
    ),
    "llama": Extra("aster llm --bench beside llama.cpp", ("xllamacpp",)),
    "peft": Extra("tests of adapters beside PEFT", ("peft", "transformers")),
    "parity": Extra("what results are compared with", ("torch", "transformers")),
    "bench": Extra("a peer for make bench", ("torch",)),
    "docs": Extra("make docs-site", ("mkdocs-material", "mkdocstrings")),
    "lint": Extra("make lint", ("ruff", "mypy")),
}  # fmt: skip


def version_of(name: str) -> str | None:
    """The installed version of a package; None where there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def packages_of(name: str) -> tuple[str, ...]:
    """All packages that an extra brings, those of other extras first."""
    names, found = [name], list[str]()
    while names:
        extra = EXTRAS[names.pop()]
        names += extra.extras
        found = [*extra.packages, *found]
    return tuple(found)


def extra_lines() -> Iterator[str]:
    """A line an extra: whether it is there, what it is for, its packages, and what brings it."""
    for name, extra in EXTRAS.items():
        versions = {package: version_of(package) for package in packages_of(name)}
        lacking = [package for package, version in versions.items() if version is None]
        if not lacking:
            there = ", ".join([f"{package} {version}" for package, version in versions.items()])
            yield f"  {name:8} there   {extra.what}: {there}"
            continue
        state = "absent" if len(lacking) == len(versions) else "in part"
        yield (
            f"  {name:8} {state:7} {extra.what}: {', '.join(lacking)} "
            f"{'is' if len(lacking) == 1 else 'are'} absent; pip install '{PACKAGE}[{name}]'"
        )
