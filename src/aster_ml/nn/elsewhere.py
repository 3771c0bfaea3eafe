"""Names, for layers that PyTorch has and Aster lacks, what does the same here."""

from __future__ import annotations

from typing import NoReturn

from aster_ml.extend import hint

PLAIN_CLASS = "a plain class: nn.state.get_parameters(model) finds its tensors"

LAYERS = {
    "AvgPool2d": "x.avg_pool2d(...)",
    "BatchNorm1d": "nn.BatchNorm",
    "BCELoss": "x.binary_crossentropy(y)",
    "BCEWithLogitsLoss": "x.binary_crossentropy_logits(y)",
    "Conv3d": "x.conv2d(weight, bias) with a weight of five axes",
    "CrossEntropyLoss": "x.sparse_categorical_crossentropy(labels)",
    "Dropout": "x.dropout(p), which acts under Tensor.train()",
    "Flatten": "x.flatten(1)",
    "GELU": "x.gelu()",
    "GRUCell": "nn.Linear twice; nn.LSTMCell is there",
    "GRU": "nn.Linear twice, in a loop; nn.LSTMCell is there",
    "LSTM": "nn.LSTMCell in a loop over time",
    "MSELoss": "(x - y).square().mean()",
    "MaxPool2d": "x.max_pool2d(...)",
    "Module": PLAIN_CLASS,
    "ModuleDict": "a dict; nn.state.get_parameters goes into it",
    "ModuleList": "a list; nn.state.get_parameters goes into it",
    "MultiheadAttention": "q.scaled_dot_product_attention(k, v) between nn.Linear layers",
    "Parameter": "Tensor(..., requires_grad=True)",
    "ReLU": "x.relu()",
    "Sequential": "a list and x.sequential(list)",
    "SiLU": "x.silu()",
    "Sigmoid": "x.sigmoid()",
    "Softmax": "x.softmax(axis)",
    "Tanh": "x.tanh()",
    "functional": "methods of tensors: x.relu(), x.conv2d(...)",
    "utils": "tensors: gradients are clipped by assigning to x.grad",
}


def no_layer(name: str) -> NoReturn:
    """The `__getattr__` of the module of layers. Raises: AttributeError, always."""
    raise AttributeError(hint(name, "module 'aster_ml.nn'", LAYERS), name=name)
