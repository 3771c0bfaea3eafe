"""docs/how-to/onnx.md is what the tables of operators and the kept figures make it."""

from __future__ import annotations

import onnx

from aster_ml.onnx.ops.registry import OPERATORS, lookup
from tools.make_onnx_doc import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tools/make_onnx_doc.py"


def test_functions_know_the_attributes_of_their_operators() -> None:
    wrong = []
    for schema in onnx.defs.get_all_schemas():
        row = lookup(OPERATORS, schema.domain, schema.name, schema.since_version)
        if row is not None:
            unknown = schema.attributes.keys() - row.keywords - set(row.positional)
            wrong += [f"{schema.name}: {', '.join(sorted(unknown))}"] if unknown else []
    assert not wrong
