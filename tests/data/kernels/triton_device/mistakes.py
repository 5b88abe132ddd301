"""Triton kernels with one mistake each."""

import triton
import triton.language as tl


@triton.jit
def forgets_the_mask(x, y, n, BLOCK: tl.constexpr = 128):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, tl.where(value < 0, 0.0, value))


@triton.jit
def forgets_the_maximum_of_the_sum(x, y, columns, BLOCK: tl.constexpr = 64):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0)
    # The lanes beyond the row add exp(0) each.
    values = tl.exp(values)
    tl.store(y + row * columns + at, values / tl.sum(values, axis=0), mask=inside)


@triton.jit
def skips_the_last_element(x, y, n, BLOCK: tl.constexpr = 128):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, tl.where(value < 0, 0.0, value), mask=at < n - 1)


@triton.jit
def writes_into_its_input(x, y, n, BLOCK: tl.constexpr = 128):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    value = tl.where(value < 0, 0.0, value)
    tl.store(y + at, value, mask=at < n)
    tl.store(x + at, value, mask=at < n)


@triton.jit
def has_no_constant(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)
