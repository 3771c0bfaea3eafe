"""Runs NVIDIA devices: memory, streams, graphs and compiling, by the driver and NVRTC."""
