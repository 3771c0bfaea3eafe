"""Devices of WebGPU, through wgpu."""
