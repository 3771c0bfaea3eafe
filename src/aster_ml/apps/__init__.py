"""Programs built on Aster: each a module to run with `python -m`."""
