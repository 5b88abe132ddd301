"""Cross entropy with class indices."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, predictions, targets):
        return F.cross_entropy(predictions, targets)


class ModelNew(nn.Module):
    def forward(self, predictions, targets):
        chosen = predictions.gather(1, targets[:, None])
        return (predictions.logsumexp(1, keepdim=True) - chosen).mean()


def get_inputs():
    return [torch.randn(32, 10), torch.randint(0, 10, (32,))]


def get_init_inputs():
    return []
