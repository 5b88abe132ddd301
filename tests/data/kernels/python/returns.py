"""Correct: returns its output."""
import torch


def run(input, dim, *rest):
    return torch.softmax(input, dim)
