"""Kernels for graphics processors on a CPU: headers that a C++ compiler reads before a kernel."""
