"""Turns a tensor graph into an ordered list of kernels; knows no devices and renders nothing."""
