"""Layer normalisation with weights."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm = nn.LayerNorm(shape)
        self.norm.weight.data.normal_()
        self.norm.bias.data.normal_()

    def forward(self, x):
        return self.norm(x)


class ModelNew(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm = nn.LayerNorm(shape)

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        scale = (x.var(-1, keepdim=True, unbiased=False) + self.norm.eps).rsqrt()
        return (x - mean) * scale * self.norm.weight + self.norm.bias


def get_inputs():
    return [torch.randn(8, 64)]


def get_init_inputs():
    return [(64,)]
