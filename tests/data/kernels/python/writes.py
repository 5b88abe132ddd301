"""Correct: takes the output after the inputs."""
import torch


def run(input, dim, _stacklevel, dtype, output):
    torch.softmax(input, dim, out=output)
