"""Calls kernels in a pool of processes without isolation. `bench python` compares the product with this pool.

Arguments: the number of processes, the folder of kernels, captures. Loads every kernel from its file, calls it twice on
every capture, and compares its output with the recorded one. Prints the number of kernels that are right.
"""

import importlib.util
import multiprocessing
import sys
from pathlib import Path

import torch

REPEATS = 2


def is_right(job):
    kernel, captures = job
    spec = importlib.util.spec_from_file_location(kernel.stem, kernel)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    right = True
    for capture in captures:
        call = torch.load(capture, weights_only=True)
        for _ in range(REPEATS):
            output = module.run(*call["args"], **call["kwargs"])
            right &= torch.allclose(output, call["output"], equal_nan=True)
    return right


def main():
    processes, kernels, *captures = sys.argv[1:]
    torch.set_num_threads(1)
    jobs = [(kernel, captures) for kernel in sorted(Path(kernels).glob("*.py"))]
    # The processes are copies of this process, which has already imported torch.
    with multiprocessing.get_context("fork").Pool(int(processes)) as pool:
        print(sum(pool.map(is_right, jobs, chunksize=1)))


if __name__ == "__main__":
    main()
