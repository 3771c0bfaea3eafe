"""What devices are made of, one module each; `aster_ml.device` looks them up by name."""
