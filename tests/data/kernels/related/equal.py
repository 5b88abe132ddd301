"""A residual that equals the input: the second kernel reads only one of the two."""

import torch


def inputs():
    x = torch.randn(32, 40)
    return {"x": x, "residual": x.clone()}


def plain(x, residual):
    return torch.tanh(x) + residual


def clever(x, residual):
    return torch.tanh(x) + x
