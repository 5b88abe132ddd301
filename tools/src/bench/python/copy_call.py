"""Writes a capture with a copy of one float to the given file, and prints the time of such a copy in microseconds."""

import sys
import timeit

import torch

CALLS = 200_000

torch.set_num_threads(1)
value = torch.ones(1)
torch.save({"function_name": "torch.clone", "args": [value], "kwargs": {}, "output": torch.clone(value)}, sys.argv[1])
output = torch.empty(1)
print(min(timeit.repeat(lambda: output.copy_(value), number=CALLS, repeat=5)) / CALLS * 1e6)
