"""Runs WebGPU devices, through wgpu."""
