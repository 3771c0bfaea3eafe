"""Runs the command `aster export WHAT --c OUT`: exports a function or an ONNX model.

WHAT is path/to/file.py:function or package.module:function, with a function FUNCTION_inputs() or
inputs() beside it that returns example inputs, or a file that ends in .onnx (--size NAME=N for a
size that has a name only). OUT is a folder that is not there yet, or empty.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aster_ml.apps.reporting import reports_errors
from aster_ml.apps.run import named_sizes
from aster_ml.export import c
from aster_ml.export.source import source_of
from aster_ml.export.write import FORMS, export


def make_parser() -> argparse.ArgumentParser:
    """The options of `aster export`."""
    parser = argparse.ArgumentParser(
        prog="aster export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", help="file.py:function, package.module:function or model.onnx")
    form = parser.add_mutually_exclusive_group(required=True)
    for name, text in FORMS.items():
        form.add_argument(f"--{name}", metavar="OUT", help=text)
    parser.add_argument("--name", help="what it is called; the function's or the file's without")
    parser.add_argument(
        "--isa", choices=c.ISAS, default="baseline",
        help="what SIMD the C is written for: vectors of 16 bytes, which run everywhere "
        "(baseline), plain C99, or wider ones",
    )  # fmt: skip
    parser.add_argument("--inside", action="store_true", help="weights inside of the C source")
    parser.add_argument(
        "--size", action="append", default=[], metavar="NAME=N", help="a size of an ONNX model"
    )
    return parser


@reports_errors("aster export")
def main(argv: Sequence[str] | None = None) -> int:
    """Exports; 1, with what would do, where that cannot be."""
    options = make_parser().parse_args(argv)
    form = next(name for name in FORMS if getattr(options, name) is not None)
    found = source_of(options.what, named_sizes(options.size, "aster export"))
    folder = export(
        found.function, found.inputs, getattr(options, form), form,
        name=options.name or found.name, isa=options.isa, inside=options.inside,
    )  # fmt: skip
    print(f"wrote {folder}: {', '.join(sorted([path.name for path in folder.iterdir()]))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
