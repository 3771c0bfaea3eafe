"""Writes docs/how-to/interop.md: memory shared with other packages, ordinary lines, figures.

Lines are those of `tests/library/interop/test_lines.py`; figures are what
`python -m tests.library.interop.figures` printed last into `tests/library/interop/figures.txt`.
`--check` says whether the page is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.library.interop.test_lines import LINES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "interop.md"
FIGURES = ROOT / "tests" / "library" / "interop" / "figures.txt"

HEAD = """# Beside other packages

Memory is shared by DLPack, both ways, and not copied:

```python
import numpy as np
from aster_ml import Tensor

array = np.zeros(3, np.float32)
t = Tensor.from_dlpack(array)  # the same memory; Tensor(array) copies
array[0] = 1
t[1] = 2
t.realize()
assert array.tolist() == t.tolist() == [1, 2, 0]
assert np.shares_memory(np.asarray(t), array)
```

`torch.from_dlpack(t)`, `np.from_dlpack(t)`, `np.asarray(t)` compute `t` first. What one side writes
the other sees: a write of Aster's own when it is realized, and a value that was computed before
stays as it is, while the same expression, written again, is computed anew. Views are shared where
strides can show them; what is flipped, repeated, on several devices or in a file is copied, and a
`BufferError` with `copy=False`. A tensor that requires a gradient is exported by `t.detach()`.
Read-only memory is read in place and copied when it is written to.

What another package keeps beside the bytes is carried out or refused by name, never left out.
Carried out are PyTorch's marks (negated, conjugated, all zeros: `z.conj().imag`), byte order,
strides of any sign, and subclasses that mean nothing more. Refused, with what would do: elements
that are missing (masks of NumPy and `torch.masked`, nulls of Arrow, polars and pandas' own
types), sparse, nested, quantised and meta tensors, those inside of `vmap` or a `FakeTensorMode`,
types that Aster has not (4 bits, fnuz, dates, text, objects). `tests/fuzz/test_fuzz_foreign.py`
draws arrays and views and holds tensors to the producer's `tolist`.

NumPy's functions by element give tensors where a method means the same (`np.exp(t)`), all others
give arrays. `repr` and a notebook show values of what has been computed and compute nothing.
Dtypes equal their names and those of NumPy and PyTorch, and these are accepted as dtypes.

`aster_ml.array_api` is the array API standard, version 2024.12, with `linalg` and `fft`; functions
take and give `Array`, a Tensor, and ComplexTensors of these. It is held to array-api-strict by
name, signature and value, over random calls too. `make array-api` runs the standard's own suite
where that is installed.

Complex numbers are `aster_ml.complex.ComplexTensor`, a pair of tensors `real` and `imag`
(complex64, complex128): made of complex arrays of NumPy and PyTorch, given back by `numpy()` and
DLPack, which copy. They stand beside tensors and numbers in either order (`t * z`, `1j * t`), have
the elementary functions at all edges that C99 names, products, decompositions, and gradients
through their parts; a jitted function takes and returns them. `aster_ml.fft` has the functions of
`numpy.fft`.

## Ordinary lines

Each is a test by this name.
"""


def page() -> str:
    """The whole page."""
    lines = [HEAD, "| line | packages | gives |", "|---|---|---|"]
    for line in LINES:
        gives = f"{line.error.__name__}" if line.error is not None else "its value"
        name = line.name.replace("|", "\\|")
        lines.append(f"| `{name}` | {', '.join(line.packages)} | {gives} |")
    lines += ["", "## Figures", "", "As `make interop` printed them:", "", "```"]
    lines += [FIGURES.read_text(encoding="utf-8").rstrip(), "```"]
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
