"""From a graph of tensors to an ordered list of kernels; knows no devices and renders nothing."""
