"""Sums of prefixes."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=1)


class ModelNew(nn.Module):
    def forward(self, x):
        return x @ torch.ones(x.shape[1], x.shape[1]).triu()


def get_inputs():
    return [torch.randn(8, 64)]


def get_init_inputs():
    return []
