"""Functions of Tensors as programs of their own: C, WebAssembly, a page that runs on WebGPU."""
