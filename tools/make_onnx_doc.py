"""Writes docs/how-to/onnx.md: operators and versions, the node tests, the models of wheels.

Figures of the node tests are those of `tests/programs/onnx/figures.toml`, which `make onnx` counts
and holds the project to; those of models are what `python -m tests.programs.onnx.real_models`
printed last into `tests/programs/onnx/models.txt`. `--check` says whether the page is up to date.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import onnx

import aster_ml.nn.onnx  # noqa: F401  (fills the table of operators)
from aster_ml.onnx.ops.registry import HOST, OPERATORS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "onnx.md"
TESTS = ROOT / "tests" / "programs" / "onnx"
BY_DEFINITION, ON_HOST, TENSORS = "by ONNX's definition", "on the host", "yes"

HEAD = """# ONNX

`pip install 'aster-ml[onnx]'`. `to_onnx` writes a function, `OnnxRunner` runs a model:

```python
from aster_ml import Tensor, nn
from aster_ml.nn.onnx import OnnxRunner, to_onnx

layer = nn.Linear(4, 3)
model = to_onnx(lambda x: layer(x).relu(), Tensor.ones(2, 4))  # a third argument names a file
runner = OnnxRunner(model)  # or the path of a file
print(runner.graph_inputs, runner.graph_outputs)
result = runner({"x": Tensor.ones(2, 4)})["output0"]
```

and from the command line with `aster run model.onnx --size batch=4 --compare onnxruntime`.

A file is checked whole before anything runs: an operator that is absent is named, with the nodes
that want it; what is damaged is a `FormatError` with path, place and reason. Shapes, axes and
conditions are computed on the host, so chains like Shape, Gather, Concat, Reshape make no kernels.
What comes of constants alone is computed once; a weight that would grow by that (int8 that is
unpacked) stays as it is in the file. Where no number needs to be looked at on the way, the third
run with the same shapes replays one native graph, and a run like the last one copies its arrays
into memory that this reads. Axes with a name, or without a size, may change: the first two
combinations of sizes have recordings of their own, and for all others there is one with variables,
which go from a power of two to another and grow with what is asked; its first outputs are held to
those of a plain run. Where an operator cannot do with a variable size (a loop over an axis, a
fraction of one), `runner.why_not_dynamic` says so, and sizes are recorded one by one. Initialisers
are read when they are first used, and data beside the model is mapped into memory, never from
outside of its folder.

An operator means what it means in the version of the file:
`tests/programs/fuzz/test_fuzz_opsets.py` draws each at every version at which its schema changed,
beside onnxruntime; `tests/programs/fuzz/test_fuzz_contributed.py` draws what onnxruntime adds. A
form that is not computed is an `UnsupportedError` with the operator's name. What `onnx.checker`
refuses is refused, but for values without a shape and operators that are deprecated, which other
readers take. `LOOP_LIMIT` is how many turns the loops of one run make. `to_onnx` writes opset 18,
with the element types that
onnxruntime has kernels for: narrower ones are carried by wider ones.
"""


def how(schema: onnx.defs.OpSchema) -> str:
    """How an operator is run, "" for not at all."""
    key = schema.domain, schema.name
    if any(row.since <= schema.since_version for row in OPERATORS.get(key, ())):
        return TENSORS
    if any(row.since <= schema.since_version for row in HOST.get(key, ())):
        return ON_HOST
    if schema.has_function or schema.has_context_dependent_function:
        return BY_DEFINITION
    return ""


def operator_table(domain: str) -> list[str]:
    """A line for each operator of a domain: its versions, and those that run."""
    by_name: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == domain:
            by_name.setdefault(schema.name, []).append(schema)
    lines = ["| operator | versions | runs |", "|---|---|---|"]
    for name, schemas in sorted(by_name.items()):
        schemas.sort(key=lambda schema: schema.since_version)
        versions = ", ".join([str(schema.since_version) for schema in schemas])
        last = how(schemas[-1])
        absent = [str(schema.since_version) for schema in schemas if not how(schema)]
        note = f"{last}, but for version {', '.join(absent)}" if last and absent else last or "no"
        lines.append(f"| {name} | {versions} | {note} |")
    return lines


def node_tests() -> list[str]:
    """The figures of the node tests, and the cases that come out otherwise."""
    figures = tomllib.loads((TESTS / "figures.toml").read_text(encoding="utf-8"))["parts"]
    cases, ours, right = (sum([row[i] for row in figures]) for i in range(3))
    table = tomllib.loads((TESTS / "differs.toml").read_text(encoding="utf-8"))["differs"]
    lines = [
        "## Node tests", "",
        f"The package onnx {onnx.__version__} carries {cases:,} cases. Aster has the dtypes of "
        f"{ours:,} of them, and gives",
        f"the expected output of {right:,}: "
        f"{100 * right / ours:.1f}%. `make onnx` counts them. Those that differ:", "",
        "| cases | why |", "|---|---|",
    ]  # fmt: skip
    for row in table:
        names = ", ".join([f"`{name.removeprefix('test_')}`" for name in row["cases"]])
        lines.append(f"| {names} | {row['why']} |")
    return lines


def models() -> list[str]:
    """The table of models that was printed last."""
    text = (TESTS / "models.txt").read_text(encoding="utf-8").rstrip()
    return [
        "## Models", "",
        "Models of wheels of PyPI, beside onnxruntime, one thread each, in turns in one",
        "process: the largest difference of an output over its largest value, the best processor",
        "time of a run with NumPy arrays as inputs, and how many times onnxruntime takes.", "",
        "```", text, "```",
    ]  # fmt: skip


def page() -> str:
    """The whole page."""
    lines = [HEAD, *models(), "", *node_tests(), "", "## Operators", ""]
    lines += [
        '"By ONNX\'s definition": the operator runs as the graph of other operators by which ONNX '
        "defines it.", "", "### ai.onnx", "", *operator_table(""), "", "### ai.onnx.ml", "",
        *operator_table("ai.onnx.ml"), "", "### com.microsoft", "",
    ]  # fmt: skip
    known = sorted([name for domain, name in OPERATORS if domain == "com.microsoft"])
    lines += [", ".join(known) + ".", ""]
    lines += ["### ai.onnx.preview, ai.onnx.preview.training", ""]
    lines += [*operator_table("ai.onnx.preview"), "", *operator_table("ai.onnx.preview.training")]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes the page, or compares it."""
    text = page()
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
