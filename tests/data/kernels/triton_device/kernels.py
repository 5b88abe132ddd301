"""Correct Triton kernels."""

import triton
import triton.language as tl


@triton.jit
def relu(x, y, n, BLOCK: tl.constexpr = 128):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, tl.where(value < 0, 0.0, value), mask=at < n)


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr = 64):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=float("-inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * columns + at, values / tl.sum(values, axis=0), mask=inside)


@triton.jit
def layer_norm(x, weight, bias, y, columns, eps, BLOCK: tl.constexpr = 64):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    result = centred * scale * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
    tl.store(y + row * columns + at, result, mask=inside)


@triton.jit
def gelu(x, y, n, BLOCK: tl.constexpr = 256):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476)), mask=at < n)


@triton.jit
def gelu_tanh(x, y, n, BLOCK: tl.constexpr = 256):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
    tl.store(y + at, value * tl.sigmoid(2.0 * inner), mask=at < n)


@triton.jit
def matmul(a, b, c, M, N, K, BLOCK: tl.constexpr = 16):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        left = tl.load(
            a + rows[:, None] * K + inner[None, :], mask=(rows[:, None] < M) & (inner[None, :] < K), other=0.0
        )
        right = tl.load(
            b + inner[:, None] * N + columns[None, :],
            mask=(inner[:, None] < K) & (columns[None, :] < N),
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(
        c + rows[:, None] * N + columns[None, :], total, mask=(rows[:, None] < M) & (columns[None, :] < N)
    )


@triton.jit
def linear(x, weight, y, M, N, K, BLOCK: tl.constexpr = 32):
    """A product in bfloat16, which tensor cores compute."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        left = tl.load(
            x + rows[:, None] * K + inner[None, :], mask=(rows[:, None] < M) & (inner[None, :] < K), other=0.0
        )
        right = tl.load(
            weight + columns[None, :] * K + inner[:, None],
            mask=(inner[:, None] < K) & (columns[None, :] < N),
            other=0.0,
        )
        total = tl.dot(left, right, total)
    tl.store(
        y + rows[:, None] * N + columns[None, :],
        total.to(tl.bfloat16),
        mask=(rows[:, None] < M) & (columns[None, :] < N),
    )


@triton.jit
def embedding(indices, weight, y, columns, BLOCK: tl.constexpr = 64):
    place = tl.program_id(0)
    index = tl.load(indices + place)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    tl.store(y + place * columns + at, tl.load(weight + index * columns + at, mask=inside), mask=inside)


@triton.jit
def attention(q, k, v, y, queries, keys, scale, SIZE: tl.constexpr = 64, KEYS: tl.constexpr = 64):
    """One row of one head's output."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    at = tl.arange(0, SIZE)
    places = tl.arange(0, KEYS)
    inside = places < keys
    query = tl.load(q + (head * queries + row) * SIZE + at)
    grid = (head * keys + places[:, None]) * SIZE + at[None, :]
    scores = tl.sum(tl.load(k + grid, mask=inside[:, None], other=0.0) * query[None, :], axis=1) * scale
    scores = tl.where(inside, scores, float("-inf"))
    shares = tl.exp(scores - tl.max(scores, axis=0))
    shares = shares / tl.sum(shares, axis=0)
    values = tl.load(v + grid, mask=inside[:, None], other=0.0)
    tl.store(y + (head * queries + row) * SIZE + at, tl.sum(values * shares[:, None], axis=0))
