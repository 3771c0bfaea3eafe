"""Runs graphs of ONNX and writes them; users import `aster_ml.nn.onnx`."""
