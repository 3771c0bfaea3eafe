"""Writes a run: adapters in PEFT's layout, the state it goes on from, a plot of its losses.

Receives a `Trainer` and a folder. A run that goes on from there has the losses, bit by bit, that it
would have had without the break; one of other settings, another model or other rows is refused.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from aster_ml import Tensor
from aster_ml.apps.finetune.data import Array
from aster_ml.apps.finetune.plot import draw_losses
from aster_ml.apps.finetune.train import Trainer
from aster_ml.apps.llm.adapters import save_adapters
from aster_ml.downloads import write_atomically
from aster_ml.errors import FormatError
from aster_ml.formats.fileio import show_value
from aster_ml.formats.safetensors import safe_load_metadata
from aster_ml.nn.state import safe_load, safe_save

STATE, PLOT, SETTINGS = "checkpoint.safetensors", "loss.svg", "aster"


def digest_of_rows(rows: Array) -> str:
    """Digest of the rows of a run."""
    return hashlib.blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=16).hexdigest()


def settings_of(trainer: Trainer, model: Mapping[str, Any]) -> dict[str, Any]:
    """All that a run that goes on has to have as well; `model` says which one it is."""
    return {**trainer.recipe.values(), **model, "rows": digest_of_rows(trainer.rows)}


def save(folder: pathlib.Path, trainer: Trainer, model: Mapping[str, Any]) -> None:
    """Writes the adapters, then the state, then the plot."""
    save_adapters(folder, trainer.model.config, trainer.adapters, str(model["model"]))
    losses = Tensor(np.array(trainer.losses, np.float64))
    settings = json.dumps(settings_of(trainer, model))
    safe_save({**trainer.state(), "losses": losses}, folder / STATE, {SETTINGS: settings})
    text = draw_losses(trainer.losses, f"{model['model']}: loss of each step").encode()
    write_atomically(folder / PLOT, lambda file: file.write(text))


def resume(folder: pathlib.Path, trainer: Trainer, model: Mapping[str, Any]) -> int:
    """Takes a run up where it was saved; returns how many steps it has made.

    Raises: FormatError where the folder has no run of these settings, and says which differs.
    """
    path = folder / STATE
    if not path.is_file():
        raise FormatError(f"{STATE} is absent; a run that was saved has it", str(folder))
    found = safe_load(path)
    header = safe_load_metadata(path)[2].get("__metadata__", {})
    try:
        before = json.loads(header[SETTINGS])
        items = dict(before).items()
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FormatError("it is no state of aster finetune", str(path)) from error
    for key, value in settings_of(trainer, model).items():
        if dict(items).get(key) != value:
            raise FormatError(
                f"{key} was {show_value(dict(items).get(key))} and is {show_value(value)} now; a "
                "run goes on with what it began with",
                str(path),
            )
    state = trainer.state()
    for name, t in state.items():
        other = found.get(name)
        if other is None or other.shape != t.shape or other.dtype != t.dtype:
            raise FormatError(f"{show_value(name)} is absent or of another shape", str(path))
        t.assign(other.to(t.device))
    Tensor.realize(*state.values())
    trainer.losses = [float(x) for x in found["losses"].numpy()]
    return len(trainer.losses)
