"""Records calls that change their arguments, and calls of scatter. The first argument names a new folder for the
captures. The package `opt_captures` must be installed, or PYTHONPATH must name the folder `python`."""

import pathlib
import sys

import torch

from opt_captures import record


def main() -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(16)
    torch.nn.init.uniform_(norm.weight)
    with torch.no_grad(), record(sys.argv[1], ["batch_norm", "torch.add"], per_class=2, in_place=True):
        for size in (3, 9):
            norm(torch.randn(4, 16, size, size) + 3)
        x = torch.randn(50, 40)
        for width in (7, 40):
            x[:, :width].add_(torch.randn(width), alpha=2)
    # The change is smaller than the tolerance of the values.
    with torch.no_grad(), record(pathlib.Path(sys.argv[1]) / "small", ["torch.add"], in_place=True):
        x.add_(1e-5 * torch.randn(40), alpha=1)
    # The change is about as large as the error of rounding.
    with torch.no_grad(), record(pathlib.Path(sys.argv[1]) / "tiny", ["torch.mul"], in_place=True):
        torch.randn(64, 64).bfloat16().mul_(0.994)
    # In each row, the indices are distinct.
    with record(pathlib.Path(sys.argv[1]) / "scatter", ["torch.scatter"]):
        index = torch.stack([torch.randperm(30)[:25] for _ in range(20)])
        torch.scatter(torch.zeros(20, 30), 1, index, torch.randn(20, 25))
    # The pairs of rows and columns are distinct.
    with record(pathlib.Path(sys.argv[1]) / "index_put", ["torch.index_put"]):
        at = torch.randperm(40 * 30)[:300]
        torch.index_put(torch.zeros(40, 30), (at // 30, at % 30), torch.randn(300))


if __name__ == "__main__":
    main()
