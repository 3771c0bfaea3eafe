"""Imports all families of operators, which fills the table of `registry`."""

from __future__ import annotations

from types import ModuleType

from aster_ml.onnx.ops import (
    control,
    host,
    image,
    math,
    ml,
    nets,
    quantise,
    quantised_layers,
    random,
    recurrent,
    reduce,
    sequence,
    shape,
    signal,
    svm,
    text,
    training,
    transformer,
    trees,
)

FAMILIES: tuple[ModuleType, ...] = (
    control, host, image, math, ml, nets, quantise, quantised_layers, random, recurrent, reduce,
    sequence, shape, signal, svm, text, training, transformer, trees,
)  # fmt: skip
