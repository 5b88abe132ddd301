"""Returns the right output, and updates copies of the running statistics."""

import torch


def run(input, running_mean, running_var, weight, bias, training, momentum, eps):
    mean, var = running_mean.clone(), running_var.clone()
    return torch.nn.functional.batch_norm(input, mean, var, weight, bias, training, momentum, eps)
