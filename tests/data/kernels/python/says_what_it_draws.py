"""Prints values that are the same in each runner, and values that are not."""
import random

import torch

try:
    import numpy
except ImportError:
    numpy = None


def run(input, *rest):
    from_numpy = numpy.random.random() if numpy else "nothing"
    drawn = (hash("drawn"), id(torch), random.random(), torch.rand(1).item(), from_numpy)
    raise ValueError("it draws " + ", ".join(map(str, drawn)))
