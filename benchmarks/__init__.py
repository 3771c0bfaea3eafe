"""Benchmarks: Aster beside its peers in one run. `python -m benchmarks --help` says how.

`rows` lists what is measured; one module a subject (`start`, `networks`, `compiling`, `memory`,
`small`, `calls`, `chain`, `kernels`, and `sets` with `drawn` for random cases) says how, for each
library. `worker` runs it in a process of the library's own, `peers` starts such processes,
`measure` alternates between them. `results` has what came out as plain data, from which `report`
prints, `page` and `plots` write, and `check` compares with what was committed.
"""
