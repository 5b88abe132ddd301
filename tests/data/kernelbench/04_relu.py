"""ReLU."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


class ModelNew(nn.Module):
    def forward(self, x):
        return x.clamp(min=0)


def get_inputs():
    return [torch.randn(16, 257)]


def get_init_inputs():
    return []
