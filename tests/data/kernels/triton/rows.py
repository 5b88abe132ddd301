"""Softmax over the last dimension, with one program for each row and a configuration chosen by autotuning."""

import torch
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({}, num_warps=4), triton.Config({}, num_warps=8)], key=["columns"])
@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    values = tl.load(x + row * columns + offsets, mask=mask, other=float("-inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * columns + offsets, values / tl.sum(values, axis=0), mask=mask)


def run(input, dim, stacklevel, dtype):
    device = triton.runtime.driver.active.get_active_torch_device()
    output = torch.empty_like(input, device=device)
    columns = input.shape[-1]
    softmax[lambda meta: (input.numel() // columns,)](input, output, columns, BLOCK=triton.next_power_of_2(columns))
    return output
