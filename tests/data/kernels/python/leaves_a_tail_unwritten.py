import torch


def run(input, dim, _stacklevel, dtype, output):
    output.view(-1)[:-32] = torch.softmax(input, dim).view(-1)[:-32]
