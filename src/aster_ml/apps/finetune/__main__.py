"""Runs the command `aster finetune MODEL.gguf data.jsonl`: trains adapters, or merges them.

Exit codes: 0 all is well, 1 the model or the data were refused, 2 the command line was not
understood, 130 Ctrl-C ended it, after the run was saved.
"""

from __future__ import annotations

import argparse
import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from aster_ml.apps.finetune.bench import run_bench
from aster_ml.apps.finetune.checkpoint import PLOT, resume, save
from aster_ml.apps.finetune.data import Reader, length_for, pack
from aster_ml.apps.finetune.merge import write_merged
from aster_ml.apps.finetune.train import Recipe, Trainer, add_adapters
from aster_ml.apps.llm.adapters import load_adapters
from aster_ml.apps.llm.architectures import read_config
from aster_ml.apps.llm.loading import make_template
from aster_ml.apps.llm.model import Model
from aster_ml.apps.llm.tokenizer import Tokenizer
from aster_ml.apps.llm.weights import DTYPES, PACKED, load_weights
from aster_ml.apps.reporting import reports_errors
from aster_ml.nn.state import gguf_load

INTERRUPTED, TOLD = 130, 10
# In lengths of what adapters add.
MUCH_ROUNDED = 0.5


def make_parser() -> argparse.ArgumentParser:
    """The command line of `aster finetune`."""
    parser = argparse.ArgumentParser(
        prog="aster finetune", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("model", type=pathlib.Path, help="a GGUF file")
    parser.add_argument("data", nargs="?", type=pathlib.Path, help="chats or texts, one a line")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("adapter"), help="a folder (%(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in that folder")
    parser.add_argument("--save-every", type=int, default=100, help="steps (%(default)s)")
    parser.add_argument(
        "--dtype", choices=sorted([*DTYPES, PACKED]), default=PACKED, help="of the weights"
    )
    parser.add_argument("--bench", action="store_true", help="measure a step beside PyTorch's")
    merge = parser.add_argument_group("a file of the model and what it was taught")
    merge.add_argument("--merge", type=pathlib.Path, metavar="OUT.gguf", help="write it, only")
    merge.add_argument("--adapter", type=pathlib.Path, help="with --merge: a folder, if not --out")
    merge.add_argument("--type", default="", help="with --merge: of merged matrices, if not theirs")
    recipe, plain = parser.add_argument_group("how it is learned"), Recipe()
    for flag, name, kind, text in (
        ("--lora", "rank", int, "the rank of adapters"),
        ("--alpha", "alpha", float, "they are multiplied with alpha / rank; twice the rank"),
        ("--targets", "targets", str, "matrices: q,k,v,o,gate,up,down, or all"),
        ("--layers", "layers", str, 'all, "last 4" or 0-3,7'),
        ("--length", "length", int, "tokens of a row; what the longest example needs"),
        ("--batch", "batch", int, "rows at once"),
        ("--accumulate", "accumulate", int, "batches of a step"),
        ("--epochs", "epochs", int, "times through the data"),
        ("--steps", "steps", int, "of these, and not so many epochs"),
        ("--rate", "rate", float, "the learning rate at its highest"),
        ("--warmup", "warmup", int, "steps until it is reached; then half a cosine to 0"),
        ("--decay", "decay", float, "of AdamW"),
        ("--clip", "clip", float, "the length of a gradient at most"),
        ("--seed", "seed", int, "of adapters and the order of rows"),
    ):
        default = None if name == "alpha" else getattr(plain, name)
        shown = "" if default in (None, 0) else f" ({default})"
        recipe.add_argument(flag, dest=name, type=kind, default=default, help=text + shown)
    return parser


def recipe_of(options: argparse.Namespace) -> Recipe:
    """Reads the recipe of a run from options."""
    values = {name: getattr(options, name) for name in Recipe().values()}
    if values["alpha"] is None:
        values["alpha"] = 2.0 * values["rank"]
    return Recipe(**values)


def make_trainer(
    path: pathlib.Path, data: pathlib.Path, recipe: Recipe, dtype: str, progress: bool = False
) -> tuple[Trainer, dict[str, Any]]:
    """A model with fresh adapters and the rows of a file, and what says which model it is."""
    metadata, tensors = gguf_load(path, raw=True, mapped=True)
    config = read_config(metadata)
    tokenizer = Tokenizer(metadata)
    examples = Reader(tokenizer, make_template(metadata, tokenizer)).read(data)
    length = length_for(examples, config.context, recipe.length)
    rows = pack(examples, length)
    weights = load_weights(tensors, dtype, progress)
    adapters = add_adapters(weights, config, recipe)
    model = Model(config, weights, length, slots=0)
    named = {"model": path.name, "bytes": path.stat().st_size, "dtype": dtype}
    return Trainer(model, adapters, rows, recipe), named


class Stop:
    """While it learns, Ctrl-C ends it between two steps; a second one, at once."""

    def __init__(self) -> None:
        self.asked = False
        self.before: Any = None

    def ask(self, *_: object) -> None:
        """Ctrl-C was pressed."""
        self.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __enter__(self) -> Stop:
        self.before = signal.signal(signal.SIGINT, self.ask)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self.before)


def tell(made: int, total: int, loss: float) -> None:
    """Where there is no bar, ten lines in all say how far it is."""
    if made == 1 or made * TOLD // total > (made - 1) * TOLD // total:
        print(f"step {made} of {total}, loss {loss:.3f}", file=sys.stderr, flush=True)


def learn(trainer: Trainer, named: dict[str, Any], options: argparse.Namespace) -> int:
    """Learns, saves now and then, and at the end."""
    done = len(trainer.losses)
    with (
        Stop() as stop,
        tqdm(
            total=trainer.total, initial=done, unit=" steps", desc="learning",
            disable=not sys.stderr.isatty(),
        ) as bar,
    ):  # fmt: skip
        tokens = 0
        while len(trainer.losses) < trainer.total and not stop.asked:
            loss, read = trainer.step()
            tokens += read
            seconds = max(bar.format_dict["elapsed"], 1e-9)
            bar.set_postfix_str(f"loss {loss:.3f}, {tokens / seconds:.0f} tokens/s", refresh=False)
            bar.update(1)
            if bar.disable:
                tell(len(trainer.losses), trainer.total, loss)
            if options.save_every and len(trainer.losses) % options.save_every == 0:
                save(options.out, trainer, named)
    save(options.out, trainer, named)
    made = len(trainer.losses)
    if made < trainer.total:
        print(f"\nsaved after step {made} of {trainer.total}; --resume goes on", file=sys.stderr)
        return INTERRUPTED
    last = sum(trainer.losses[-10:]) / len(trainer.losses[-10:])
    print(
        f"{made} steps, loss {trainer.losses[0]:.3f} at first and {last:.3f} at last; adapters and "
        f"{PLOT} are in {options.out}"
    )
    print(f"aster llm {options.model} --adapter {options.out}")
    return 0


def run(options: argparse.Namespace) -> int:
    """Does what the command line says."""
    if options.merge is not None:
        config = read_config(gguf_load(options.model, raw=True)[0])
        adapters = load_adapters(options.adapter or options.out, config)
        names, rounded = write_merged(options.model, adapters, options.merge, options.type)
        print(f"wrote {options.merge}, {len(names)} matrices merged")
        if rounded > MUCH_ROUNDED:
            print(
                f"rounding changed them {rounded:.2f} times as much as the adapters did, which may "
                "be lost: ask it, or write --type Q8_0 or F16"
            )
        return 0
    recipe = recipe_of(options)
    if options.bench:
        return run_bench(options.model, recipe, options.dtype)
    trainer, named = make_trainer(
        options.model, options.data, recipe, options.dtype, sys.stderr.isatty()
    )
    numbers = sum([int(t.numel()) for t in trainer.parameters])
    rows, length = len(trainer.rows), trainer.rows.shape[-1]
    print(
        f"{rows} rows of {length} tokens, {trainer.total} steps; {numbers:,} numbers learn in "
        f"{len(trainer.adapters)} adapters"
    )
    if options.resume:
        made = resume(options.out, trainer, named)
        print(f"goes on after step {made}")
    return learn(trainer, named, options)


@reports_errors("aster finetune", ArithmeticError, interrupted=INTERRUPTED)
def main(argv: Sequence[str] | None = None) -> int:
    """Runs `aster finetune`; returns its exit code."""
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.data is None and options.merge is None and not options.bench:
        parser.error("a file of chats or texts is wanted, or --merge, or --bench")
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
