"""The reference's own test files, run unchanged on Aster: `python -m tests.parity.run`."""
