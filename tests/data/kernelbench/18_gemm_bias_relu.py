"""A linear layer without bias, a bias and ReLU. The parameters of the two classes have different names."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(outputs))
        self.gemm = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x):
        return torch.relu(self.gemm(x) + self.bias)


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.shift = nn.Parameter(torch.empty(outputs))
        self.matrix = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x):
        return torch.addmm(self.shift, x, self.matrix.T).clamp_(min=0)


def get_inputs():
    return [torch.randn(16, 48)]


def get_init_inputs():
    return [48, 24]
