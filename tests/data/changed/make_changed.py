"""Records calls that change their arguments. The first argument names a new folder for the captures. The package
`opt_captures` must be installed, or PYTHONPATH must name the folder `python`."""

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


if __name__ == "__main__":
    main()
