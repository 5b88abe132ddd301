"""A product with a transposed matrix, which is not contiguous."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a.T, b)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return (b.T @ a).T.contiguous()


def get_inputs():
    return [torch.randn(64, 24), torch.randn(64, 40)]


def get_init_inputs():
    return []
