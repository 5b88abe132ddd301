"""A linear layer, Swish and a factor."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, inputs, outputs, factor):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.factor = factor

    def forward(self, x):
        y = self.linear(x)
        return torch.sigmoid(y) * y * self.factor


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs, factor):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.factor = factor

    def forward(self, x):
        return F.silu(F.linear(x, self.linear.weight, self.linear.bias)) * self.factor


def get_inputs():
    return [torch.randn(16, 48)]


def get_init_inputs():
    return [48, 24, 2.0]
