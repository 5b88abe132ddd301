"""Correct: torch's own function updates the running statistics in place."""

import torch


def run(input, running_mean, running_var, weight, bias, training, momentum, eps):
    return torch.nn.functional.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
