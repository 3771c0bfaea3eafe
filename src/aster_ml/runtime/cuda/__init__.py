"""NVIDIA devices: memory, streams, graphs and compiling, through the driver and NVRTC."""
