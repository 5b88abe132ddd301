"""A normalisation with saved figures, which the first kernel computes itself."""

import torch


def inputs():
    x = torch.randn(48, 40)
    return {"x": x, "weight": torch.randn(40), "rate": (x.square().mean(1, keepdim=True) + 1e-6).rsqrt()}


def plain(x, weight, rate):
    return x * (x.square().mean(1, keepdim=True) + 1e-6).rsqrt() * weight


def clever(x, weight, rate):
    return x * rate * weight
