"""Group normalisation."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        self.norm.weight.data.normal_()

    def forward(self, x):
        return self.norm(x)


class ModelNew(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.groups = groups
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        parts = x.reshape(x.shape[0], self.groups, -1)
        var, mean = torch.var_mean(parts, -1, keepdim=True, unbiased=False)
        y = ((parts - mean) * (var + self.norm.eps).rsqrt()).reshape(x.shape)
        return y * self.norm.weight[:, None, None] + self.norm.bias[:, None, None]


def get_inputs():
    return [torch.randn(2, 8, 10, 10)]


def get_init_inputs():
    return [8, 4]
