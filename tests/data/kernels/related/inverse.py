"""A division by scales, whose inverses are given too. Both kernels read the scales."""

import torch


def inputs():
    scale = torch.rand(48, 1) + 0.5
    return {"x": torch.randn(48, 40), "scale": scale, "inverse": 1 / scale}


def plain(x, scale, inverse):
    return torch.tanh(x / scale) + scale


def clever(x, scale, inverse):
    return torch.tanh(x * inverse) + scale
