"""Correct: a module, with a plan call."""
import torch

planned = []


def run_plan(input, *rest):
    planned.append(tuple(input.shape))


class ModelNew(torch.nn.Module):
    def forward(self, input, dim, *rest):
        assert tuple(input.shape) in planned and not self.training
        shifted = (input - input.amax(dim, keepdim=True)).exp_()
        return shifted / shifted.sum(dim, keepdim=True)
