#!/usr/bin/env python3
"""Record the captures of the demo (`configs/demo.toml`): calls of three ops with the output of torch. They are larger
than the golden fixtures, so that kernels differ measurably in speed, and small enough to be checked in.

    python make_demo.py [--out DIR]     # in an environment with torch and numpy; DIR is this folder by default

This script chooses the calls, and `fixture_lib.capture` records them. It does not overwrite captures: remove the old
`torch_nn_functional_*` folders first.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from fixture_lib import capture  # noqa: E402

SEED = 20_261_121

EMBEDDING = "torch.nn.functional.embedding"
LAYER_NORM = "torch.nn.functional.layer_norm"
SOFTMAX = "torch.nn.functional.softmax"


def calls() -> dict[str, list]:
    """The calls in the order of their entries. Both embedding calls use the same table of weights, as in a model, and
    each file contains the whole table."""
    table = torch.randn(1200, 64)
    return {
        EMBEDDING: [
            lambda: capture(EMBEDDING, torch.randint(0, 1200, (1, 512)), table),
            lambda: capture(EMBEDDING, torch.randint(0, 1200, (4, 96)), table),
        ],
        LAYER_NORM: [
            lambda: capture(LAYER_NORM, 2 + 3 * torch.randn(48, 1024), (1024,), torch.randn(1024), torch.randn(1024)),
            lambda: capture(LAYER_NORM, torch.randn(4, 32, 384), (384,), torch.randn(384), None, 1e-6),
        ],
        SOFTMAX: [
            lambda: capture(SOFTMAX, 4 * torch.randn(96, 512), dim=-1),
            lambda: capture(SOFTMAX, torch.randn(2, 6, 56, 60), dim=3),
        ],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=HERE)
    out = arguments.parse_args().out
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    for op, entries in calls().items():
        folder = out / op.replace(".", "_")
        folder.mkdir(parents=True)
        for number, call in enumerate(entries):
            path = folder / f"entry_{number:06d}.pt"
            torch.save(call(), str(path))
            print(f"{path.stat().st_size:>9} {path.relative_to(out)}")
    print(f"recorded by torch {torch.__version__}")


if __name__ == "__main__":
    main()
