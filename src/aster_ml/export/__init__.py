"""Exports functions of Tensors as programs: C, WebAssembly, a page that runs on WebGPU."""
