"""A folder for PYTHONPATH: in processes that a program starts, `import tinygrad` is found here."""
