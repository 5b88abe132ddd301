"""Sums of padded sequences: the elements behind a sequence are zero, and the second kernel does not read them."""

import torch


def inputs():
    lengths = torch.tensor([9, 12, 3, 7, 1, 12, 10, 5])
    used = torch.arange(12) < lengths[:, None]
    return {"x": torch.randn(8, 12, 24) * used[..., None], "lengths": lengths}


def plain(x, lengths):
    return x.sum(1)


def clever(x, lengths):
    return torch.stack([row[:length].sum(0) for row, length in zip(x, lengths.tolist())])
