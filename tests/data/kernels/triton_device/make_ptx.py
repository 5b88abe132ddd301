"""Compiles the kernels of this folder to `ptx/`, so that tests can run them on machines without Triton.

Usage: PYTHON make_ptx.py, where PYTHON has Triton. Made with Triton 3.9.0.
"""

import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
COMPILE = HERE.parents[3] / "worker/src/toolchain/triton_compile.py"
F32, BF16, INDEX = "*fp32", "*bf16", "*i64"

# File, kernel, types and threads of a block, the same as in the launches of `tests/it/triton_device.rs`.
KERNELS = [
    ("kernels", "relu", [F32, F32, "i32"], 128),
    ("kernels", "softmax", [F32, F32, "i32"], 32),
    ("kernels", "layer_norm", [F32, F32, F32, F32, "i32", "fp32"], 64),
    ("kernels", "gelu", [F32, F32, "i32"], 128),
    ("kernels", "gelu_tanh", [F32, F32, "i32"], 128),
    ("kernels", "matmul", [F32, F32, F32, "i32", "i32", "i32"], 64),
    ("kernels", "linear", [BF16, BF16, BF16, "i32", "i32", "i32"], 128),
    ("kernels", "embedding", [INDEX, F32, F32, "i32"], 32),
    ("kernels", "attention", [F32, F32, F32, F32, "i32", "i32", "fp32"], 128),
    ("mistakes", "forgets_the_mask", [F32, F32, "i32"], 128),
    ("mistakes", "forgets_the_maximum_of_the_sum", [F32, F32, "i32"], 32),
    ("mistakes", "skips_the_last_element", [F32, F32, "i32"], 128),
    ("mistakes", "writes_into_its_input", [F32, F32, "i32"], 128),
]

for file, symbol, types, threads in KERNELS:
    request = {"kernels": [{"symbol": symbol, "types": types, "threads": threads, "shared": 0}], "constants": {}, "folders": [], "card": None}
    output = HERE / f"ptx/{symbol}.ptx"
    command = [sys.executable, "-I", COMPILE, f"{file}.py", output, json.dumps(request)]
    subprocess.run(command, cwd=HERE, check=True)
    # Remove the folders of this machine.
    text = re.sub(r'(\.file\s+\d+) "[^"]*/([^"/]+)"', r'\1 "\2"', output.read_text())
    output.write_text(text)
