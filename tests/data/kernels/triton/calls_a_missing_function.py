"""Calls a function that Triton does not have."""

import triton
import triton.language as tl


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    values = tl.load(x + row * columns + offsets, mask=mask, other=float("-inf"))
    values = tl.exponential(values - tl.max(values, axis=0))
    tl.store(y + row * columns + offsets, values / tl.sum(values, axis=0), mask=mask)


def run(input, dim, stacklevel, dtype, output):
    columns = input.shape[-1]
    softmax[lambda meta: (input.numel() // columns,)](input, output, columns, BLOCK=triton.next_power_of_2(columns))
