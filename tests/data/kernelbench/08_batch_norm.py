"""Batch normalisation with running statistics."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return self.norm(x)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        scale = self.norm.weight * (self.norm.running_var + self.norm.eps).rsqrt()
        shift = self.norm.bias - self.norm.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


def get_inputs():
    return [torch.randn(2, 6, 12, 12)]


def get_init_inputs():
    return [6]
