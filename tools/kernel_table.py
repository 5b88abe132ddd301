"""The kernels of emulator/tests/data/kernels that device_kernels.py compares with torch.

A job consists of an op of torch, a function that makes one random call of the op, and kernels that compute the op.
"""

import torch
import torch.nn.functional as F

FORMATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

N = "out.numel"
WIDTH = "input.shape[-1]"
ROWS = f"input.numel / {WIDTH}"


def launch(symbol, grid, block, *args, shared_mem=0):
    """Returns a launch. If a grid or block has more than one axis, semicolons separate the expressions for the axes."""

    def axes(text):
        return text.split(";") if isinstance(text, str) and ";" in text else text

    return {
        "symbol": symbol,
        "grid": axes(grid),
        "block": axes(block),
        "shared_mem": shared_mem,
        "args": [arg for text in args for arg in text.split(", ")],
    }


def kernel(file, *launches, workspace=None):
    """Returns a kernel, named after its last launch. `workspace` is the name and the number of bytes of a buffer."""
    return {
        "name": launches[-1]["symbol"],
        "file": file,
        "launch": list(launches),
        "workspace": [dict(zip(("name", "bytes"), workspace))] if workspace else [],
    }


def each(file, symbol, inputs="input", block=128):
    """Returns a kernel with one thread per element of its output."""
    return kernel(file, launch(symbol, f"ceil_div({N}, {block})", block, inputs, "out", N))


def of_rows(file, symbol, inputs="input", more=(), block=32, shared_mem=0):
    """Returns a kernel with one block per row of its input."""
    return kernel(file, launch(symbol, ROWS, block, inputs, "out", f"{WIDTH}:i32", *more, shared_mem=shared_mem))


def tiles(file, symbol, inputs, width, height, block, inner):
    """Returns a kernel with one block per tile of its output. `inner` is the length of the sums."""
    grid = f"ceil_div(out.shape[1], {width});ceil_div(out.shape[0], {height})"
    return kernel(file, launch(symbol, grid, block, inputs, "out", f"out.shape[0]:i32, out.shape[1]:i32, {inner}:i32"))


def shape(rng, width=300, narrowest=2):
    return rng.randint(1, 9), rng.randint(narrowest, width)


def on_rows(function, scale=1.0, width=300, dtype=torch.float32, narrowest=2):
    """Returns a function that calls `function` with a random matrix."""
    return lambda rng: function((scale * torch.randn(shape(rng, width, narrowest))).to(dtype))


def matmul(dtype, largest=40):
    def call(rng):
        m, k, n = (rng.randint(1, largest) for _ in range(3))
        torch.matmul(torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype))

    return call


def linear(dtype, has_bias=True, multiple=1):
    """Returns a function that makes a random call of linear. The number of inputs is a multiple of `multiple`."""

    def call(rng):
        count, inputs, outputs = rng.randint(1, 40), multiple * rng.randint(1, 80 // multiple), rng.randint(1, 40)
        bias = torch.randn(outputs).to(dtype) if has_bias else None
        F.linear(torch.randn(count, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype), bias)

    return call


def embedding(dtype):
    def call(rng):
        size, width = rng.randint(1, 90), rng.randint(1, 80)
        F.embedding(torch.randint(size, shape(rng, 30)), torch.randn(size, width).to(dtype))

    return call


def normalized(function, *shapes):
    """Returns a function that takes a dtype. It returns a function that makes a random call of `function`, with one
    further argument for each of `shapes`. This argument has the shape of a row."""

    def of(dtype):
        def call(rng):
            rows, width = shape(rng)
            further = [torch.randn(width).to(dtype) for _ in shapes]
            function(torch.randn(rows, width).to(dtype), (width,), *further, eps=1e-5)

        return call

    return of


layer_norm = normalized(F.layer_norm, "weight", "bias")
rms_norm = normalized(F.rms_norm, "weight")


def vectors_of_four(rng):
    F.relu(torch.randn(rng.randint(1, 9), 4 * rng.randint(1, 60)))


def added(dtype):
    return lambda rng: [torch.add(*torch.randn(2, *size).to(dtype)) for size in [shape(rng)]]


def of_tf32(rng):
    """Multiplies matrices of numbers that have 10 fraction bits, so that rounding to TF32 does not change them."""
    m, k, n = (rng.randint(1, 40) for _ in range(3))
    torch.matmul(torch.randn(m, k).half().float(), torch.randn(k, n).half().float())


def of_bytes(rng):
    m, k, n = (rng.randint(1, 70) for _ in range(3))
    torch.matmul(*(torch.randint(-128, 128, size, dtype=torch.int32) for size in [(m, k), (k, n)]))


def bmm(rng):
    batch, m, k, n = rng.randint(1, 4), *(rng.randint(1, 30) for _ in range(3))
    torch.bmm(torch.randn(batch, m, k), torch.randn(batch, k, n))


def conv2d(rng):
    channels, outputs, height, width = (rng.randint(1, high) for high in [4, 5, 12, 12])
    bias = torch.randn(outputs) if rng.random() < 0.5 else None
    weight = torch.randn(outputs, channels, rng.randint(1, 3), rng.randint(1, 3))
    F.conv2d(torch.randn(rng.randint(1, 2), channels, height, width), weight, bias, padding=1)


def max_pool(rng):
    F.max_pool2d(torch.randn(rng.randint(1, 2), rng.randint(1, 4), rng.randint(2, 15), rng.randint(2, 15)), 2)


def attention(rng):
    batch, heads, queries, keys = (rng.randint(1, high) for high in [2, 3, 20, 20])
    width = rng.randint(1, 64)
    key, value = torch.randn(2, batch, heads, keys, width)
    F.scaled_dot_product_attention(torch.randn(batch, heads, queries, width), key, value)


def gather(rng):
    rows, width = shape(rng)
    torch.gather(torch.randn(rows, width), 1, torch.randint(width, (rows, rng.randint(1, 40))))


def where(rng):
    size = shape(rng)
    torch.where(torch.randn(size) < 0, torch.randn(size), torch.randn(size))


def bincount(rng):
    torch.bincount(torch.randint(20, (rng.randint(1, 900),)), minlength=30)


def prod(rng):
    # The product of 300 normally distributed values can be too small for a normal float32. It then has only few correct
    # digits, so the values used here are near 1 or -1.
    size = shape(rng)
    torch.prod(torch.randn(size).sign() * torch.exp(torch.randn(size) / 8), dim=-1)


def cumsum(rng):
    torch.cumsum(torch.randint(-(1 << 40), 1 << 40, shape(rng)), dim=-1)


def jobs():
    """Yields the name of each job, its op, the function that makes a random call, and the kernels."""
    functional = "torch.nn.functional."
    for suffix, dtype in FORMATS.items():
        yield from in_format(functional, suffix, dtype)
    f32 = torch.float32
    plain = [
        ("silu", functional + "silu", F.silu, "elementwise"),
        ("sigmoid", "torch.sigmoid", torch.sigmoid, "elementwise"),
        ("softplus", functional + "softplus", F.softplus, "elementwise"),
    ]
    for name, op, function, file in plain:
        yield name, op, on_rows(function, 3), [each(file, f"{name}_f32")]
    vec4 = launch("relu_vec4_f32", f"ceil_div({N} / 4, 64)", 64, "input", "out", f"{N} / 4")
    yield "relu_vec4", functional + "relu", vectors_of_four, [kernel("elementwise", vec4)]

    softmax = launch("softmax_online_f32", f"ceil_div({ROWS}, 32)", 32, "input", "out", f"{ROWS}:i32, {WIDTH}:i32")
    by_warp = launch("softmax_warp_f32", f"ceil_div({ROWS}, 4)", 128, "input", "out", f"{ROWS}:i32, {WIDTH}:i32")
    kernels = [kernel("rows", softmax), kernel("rows", by_warp)]
    yield "softmax_variants", functional + "softmax", on_rows(lambda x: F.softmax(x, dim=-1), 4), kernels
    log_softmax = on_rows(lambda x: F.log_softmax(x, dim=-1), 4, dtype=torch.float64)
    yield "log_softmax_f64", functional + "log_softmax", log_softmax, [of_rows("rows", "log_softmax_f64")]

    # Reductions and scans.
    for name, function in [
        ("mean", torch.mean),
        ("logsumexp", torch.logsumexp),
        ("var", torch.var),
        ("argmax", torch.argmax),
    ]:
        call = on_rows(lambda x, function=function: function(x, dim=-1))
        yield name, f"torch.{name}", call, [of_rows("torch", f"{name}_rows_f32")]
    yield "prod", "torch.prod", prod, [of_rows("torch", "prod_rows_f32")]
    yield "max", "torch.amax", on_rows(lambda x: torch.amax(x, dim=-1)), [of_rows("torch", "max_rows_f32")]
    norm = on_rows(lambda x: torch.linalg.vector_norm(x, dim=-1))
    yield "norm", "torch.linalg.vector_norm", norm, [of_rows("torch", "norm_rows_f32")]
    sums = kernel(
        "torch",
        launch("sums_of_blocks", 4, 256, "input", "sums", "input.numel"),
        launch("sum_of_sums", 1, 32, "sums", "out", "4:i32"),
        workspace=("sums", "4 * 4"),
    )
    yield "sum", "torch.sum", on_rows(torch.sum), [sums]
    scan = of_rows("rows", "scan_f32", block=256)
    yield "cumsum", "torch.cumsum", on_rows(lambda x: torch.cumsum(x, dim=-1), width=256), [scan]
    yield "cumsum_i64", "torch.cumsum", cumsum, [of_rows("torch", "cumsum_i64")]

    # Histogram, sort, selection.
    zeros = launch("zeros_i64", f"ceil_div({N}, 64)", 64, "out", N)
    counts = launch("bincount_i64", "ceil_div(input.numel, 64)", 64, "input", "out", "input.numel")
    yield "bincount", "torch.bincount", bincount, [kernel("torch", zeros, counts)]
    sort = launch("sort_f32", 1, 256, "input", "out[0]", "out[1]", "input.numel:i32")
    yield "sort", "torch.sort", lambda rng: torch.sort(torch.randn(rng.randint(1, 256))), [kernel("torch", sort)]
    msort = launch("bitonic_sort_f32", 1, 256, "input", "out", "input.numel:i32", shared_mem="256 * 4")
    values = kernel("algorithms", msort)
    yield "msort", "torch.msort", lambda rng: torch.msort(torch.randn(rng.randint(1, 256))), [values]
    args = ["input", "index", "out", f"{WIDTH}:i32", "index.shape[1]:i32", N]
    yield "gather", "torch.gather", gather, [kernel("torch", launch("gather_f32", f"ceil_div({N}, 64)", 64, *args))]
    tril = launch("tril_f32", f"ceil_div({N}, 64)", 64, "input", "out", f"{WIDTH}:i32", N)
    yield "tril", "torch.tril", on_rows(torch.tril, width=20), [kernel("torch", tril)]
    yield "where", "torch.where", where, [each("torch", "where_f32", "condition, input, other")]
    flip = kernel("torch", launch("flip_rows_f32", ROWS, 32, "input", "out", f"{ROWS}:i32, {WIDTH}:i32"))
    yield "flip", "torch.flip", on_rows(lambda x: torch.flip(x, (0,))), [flip]

    # Products of matrices, convolution, pooling, attention.
    square = [tiles("matrices", "matmul_f64", "input, other", 16, 16, "16;16", WIDTH)]
    yield "matmul_f64", "torch.matmul", matmul(torch.float64), square
    blocked = [tiles("matrices", "matmul_blocked_f32", "input, other", 32, 32, "16;16", WIDTH)]
    yield "matmul_blocked", "torch.matmul", matmul(f32, largest=70), blocked
    tf32 = [tiles("tensor", "gemm_tf32", "input, other", 8, 16, 32, WIDTH)]
    yield "matmul_tf32", "torch.matmul", of_tf32, tf32
    integers = [tiles("torch", "matmul_mma_s8", "input, other", 8, 16, 32, WIDTH)]
    yield "matmul_s8", "torch.matmul", of_bytes, integers
    wide = [tiles("tensor", "linear_bf16", "input, weight", 8, 16, 32, WIDTH)]
    yield "linear_bf16_mma", functional + "linear", linear(torch.bfloat16, has_bias=False, multiple=8), wide
    grid = "ceil_div(out.shape[2], 8);ceil_div(out.shape[1], 8);out.shape[0]"
    sizes = f"out.shape[1]:i32, out.shape[2]:i32, {WIDTH}:i32"
    batched = kernel("torch", launch("bmm_f32", grid, "8;8", "input, mat2", "out", sizes))
    yield "bmm", "torch.bmm", bmm, [batched]
    grid = "ceil_div(out.shape[2] * out.shape[3], 64);out.shape[1];out.shape[0]"
    sizes = [f"{name}.shape[{axis}]:i32" for name, axis in [("input", 1), ("input", 2), ("input", 3)]]
    sizes += ["weight.shape[2]:i32", "weight.shape[3]:i32", "1:i32", "out.shape[2]:i32", "out.shape[3]:i32"]
    conv = kernel("torch", launch("conv2d_f32", grid, 64, "input, weight, bias", "out", *sizes))
    yield "conv2d", functional + "conv2d", conv2d, [conv]
    args = ["input", "out", "input.shape[2]:i32", "input.shape[3]:i32", N]
    pool = kernel("torch", launch("max_pool_f32", f"ceil_div({N}, 64)", 64, *args))
    yield "max_pool", functional + "max_pool2d", max_pool, [pool]
    sizes = ["out.shape[2]:i32", "key.shape[2]:i32", "out.shape[3]:i32"]
    grid = "ceil_div(out.shape[2], 32);out.shape[0] * out.shape[1]"
    flash = kernel("torch", launch("attention_f32", grid, 32, "query, key, value", "out", *sizes))
    yield "attention", functional + "scaled_dot_product_attention", attention, [flash]


def in_format(functional, suffix, dtype):
    """Yields the jobs of one format. Their kernels exist in all three formats."""

    def name(op):
        return f"{op}_{suffix}"

    def rows(function, scale=1.0, narrowest=2):
        return on_rows(function, scale, dtype=dtype, narrowest=narrowest)

    yield name("relu"), functional + "relu", rows(F.relu), [each("elementwise", name("relu"))]
    # torch's own results have absolute errors near 1e-6 where the input is about -4. The tolerance allows such errors
    # only in a tensor that also has larger elements. Rows have at least 40 elements, because a tensor with few elements
    # may have no larger ones.
    yield name("gelu"), functional + "gelu", rows(F.gelu, 3, 40), [each("elementwise", name("gelu"))]
    tanh = rows(lambda x: F.gelu(x, approximate="tanh"), 3, 40)
    yield name("gelu_tanh"), functional + "gelu", tanh, [each("elementwise", name("gelu_tanh"))]
    yield name("add"), "torch.add", added(dtype), [each("torch", name("add"), "input, other")]
    indexed = launch(name("embedding"), "input.numel", 32, "input, weight", "out", "weight.shape[1]:i32")
    yield name("embedding"), functional + "embedding", embedding(dtype), [kernel("rows", indexed)]
    norm = of_rows("rows", name("layer_norm"), "input, weight, bias", ["eps:f32"], block=64)
    yield name("layer_norm"), functional + "layer_norm", layer_norm(dtype), [norm]
    norm = of_rows("torch", name("rms_norm"), "input, weight", ["eps:f32"])
    yield name("rms_norm"), functional + "rms_norm", rms_norm(dtype), [norm]
    softmax = of_rows("rows", name("softmax"), block=64, shared_mem=f"{WIDTH} * 4")
    yield name("softmax"), functional + "softmax", rows(lambda x: F.softmax(x, dim=-1), 4), [softmax]
    # torch rounds to the format before its last subtraction, so its own results are inaccurate near 0.
    log_softmax = of_rows("torch", name("log_softmax"))
    yield name("log_softmax"), functional + "log_softmax", rows(lambda x: F.log_softmax(x, dim=-1), 0.25), [log_softmax]
    yield name("sum_rows"), "torch.sum", rows(lambda x: torch.sum(x, dim=-1)), [of_rows("torch", name("sum_rows"))]
    products = [
        tiles("matrices", name("matmul"), "input, other", 16, 8, "16;8", WIDTH),
        tiles("matrices", name("matmul_tiled"), "input, other", 16, 16, "16;16", WIDTH),
    ]
    layers = [tiles("matrices", name("linear"), "input, weight, bias", 32, 1, 32, WIDTH)]
    if dtype != torch.float32:
        products.append(tiles("torch", name("matmul_mma"), "input, other", 8, 16, 32, WIDTH))
        layers.append(tiles("torch", name("linear_mma"), "input, weight, bias", 8, 16, 32, WIDTH))
    yield name("matmul"), "torch.matmul", matmul(dtype), products
    yield name("linear"), functional + "linear", linear(dtype), layers
