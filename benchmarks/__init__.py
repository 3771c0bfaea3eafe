"""Benchmarks: Aster beside its peers in one run. `python -m benchmarks --help` says how.

`rows` lists what is measured, one module a subject (`start`, `networks`, `small`, `calls`, `chain`,
`kernels`) says how, for each library; `worker` runs it in a process of the library's own, `peers`
starts such processes, `measure` alternates between them, `report` prints and writes what came out.
"""
