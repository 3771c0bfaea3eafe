"""Runs kernels on the CPU: native code in this process, and a pool of threads."""
