"""Normalisation by the root mean square over channels."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return x / (x.pow(2).mean(dim=1, keepdim=True) + self.eps).sqrt()


class ModelNew(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt((x * x).sum(1, keepdim=True) / x.shape[1] + self.eps)


def get_inputs():
    return [torch.randn(4, 16, 10, 10)]


def get_init_inputs():
    return [1e-5]
