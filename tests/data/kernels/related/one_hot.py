"""Rows of a table, chosen by rows of integers with a single 1. The second kernel looks for that 1."""

import torch


def inputs():
    chosen = torch.randint(0, 12, (48,))
    return {"chosen": torch.nn.functional.one_hot(chosen, 12), "table": torch.randn(12, 30)}


def plain(chosen, table):
    return chosen.to(table.dtype) @ table


def clever(chosen, table):
    return table[chosen.argmax(1)]
