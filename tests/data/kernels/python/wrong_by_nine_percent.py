import torch


def run(input, dim, *rest):
    return torch.softmax(input, dim) * 1.09
