import torch


def run(input, dim, *rest):
    for _ in range(64):
        print("y" * 4096)
    return torch.softmax(input, dim)
