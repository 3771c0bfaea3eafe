"""Holds the devices, one module each; `aster_ml.device` looks them up by name."""
