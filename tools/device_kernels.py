"""Compares the results of kernels on the emulated device, or on a GPU, with torch on the CPU, for random inputs.

    python tools/device_kernels.py target/debug/opt-supervisor --calls 6 [--seed 1] [--device cuda:0] [--keep FOLDER]

Needs torch. Records calls of each op, and runs the correct kernels of the CUDA demo and those of kernel_table.py on
these calls. Exits with 1 if a kernel does not pass, or does not support one of the calls. With `--keep`, the captures
and the run stay in the folder.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import tomllib

import kernel_table
import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from opt_captures import record  # noqa: E402

DEMO = ROOT / "configs/cuda-demo.toml"
EXPECTED = ROOT / "configs/cuda/expected.json"
KERNELS = ROOT / "emulator/tests/data/kernels"
# The time limit of one run, in seconds.
TIMEOUT = 600


def rows(rng, narrowest=1):
    """Returns a random number of rows, and a random width."""
    return rng.randint(1, 9), rng.randint(narrowest, 300)


def matrices(rng):
    m, k, n = (rng.randint(1, 70) for _ in range(3))
    right = torch.randn(k, n) if rng.random() < 0.5 else torch.randn(n, k).t()
    torch.matmul(torch.randn(m, k), right)


def linear(rng):
    count, inputs = rows(rng)
    outputs = rng.randint(1, 60)
    F.linear(torch.randn(count, inputs), torch.randn(outputs, inputs), torch.randn(outputs))


def layer_norm(rng):
    count, width = rows(rng)
    F.layer_norm(torch.randn(count, width), (width,), torch.randn(width), torch.randn(width))


def embedding(rng):
    size, width = rng.randint(1, 90), rng.randint(1, 80)
    F.embedding(torch.randint(size, rows(rng)), torch.randn(size, width))


# For each job of the demo, a function that makes one random call of its op, and the op's name.
CALLS = {
    "embedding": (embedding, "torch.nn.functional.embedding"),
    "linear": (linear, "torch.nn.functional.linear"),
    "layer_norm": (layer_norm, "torch.nn.functional.layer_norm"),
    "softmax": (lambda rng: F.softmax(4 * torch.randn(rows(rng)), dim=-1), "torch.nn.functional.softmax"),
    "gelu": (lambda rng: F.gelu(3 * torch.randn(rows(rng, 40))), "torch.nn.functional.gelu"),
    "matmul": (matrices, "torch.matmul"),
    "relu": (lambda rng: F.relu(torch.randn(rows(rng))), "torch.nn.functional.relu"),
    "relu_f16": (lambda rng: F.relu(torch.randn(rows(rng)).half()), "torch.nn.functional.relu"),
}
# The parameter names of these ops. Their captures in the demo are older than the recorder, so they lack the names.
RENAMED = {"gelu": {"arg0": "input"}, "matmul": {"arg0": "input", "arg1": "other"}}


def keys(table):
    """Returns the keys of a table as TOML, without nested tables. Uses JSON for the values, which TOML writes alike."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items() if not is_table(value))


def is_table(value):
    return isinstance(value, list) and value and isinstance(value[0], dict)


def captures(folder, name):
    (found,) = (it for it in (folder / name).iterdir() if it.is_dir())
    return str(found)


def candidate(name, source, parts):
    """Returns a candidate as TOML. `parts` contains its workspaces and launches."""
    text = "[[job.candidate]]\n" + keys({"name": name, "sources": [str(source)]})
    for part in ("workspace", "launch"):
        text += "".join(f"[[job.candidate.{part}]]\n{keys(it)}" for it in parts.get(part, []))
    return text


def plan(folder, correct, further, device):
    """Returns a plan with the demo's correct kernels, further jobs, and the captures in the folder."""
    demo = tomllib.loads(DEMO.read_text())
    text = "[run]\n" + keys(demo["run"] | {"device": device}) + "[verify]\n" + keys(demo["verify"])
    for job in demo["job"]:
        name = job["name"]
        for old, new in RENAMED.get(name, {}).items():
            job = json.loads(json.dumps(job).replace(old, new))
        text += "[[job]]\n" + keys({"name": name, "captures": captures(folder, name), "baseline": job["baseline"]})
        for it in job["candidate"]:
            if f"{name}/{it['name']}" in correct:
                (source,) = it["sources"]
                text += candidate(it["name"], DEMO.parent / source, it)
    for name, (_, _, kernels) in further.items():
        text += "[[job]]\n" + keys({"name": name, "captures": captures(folder, name), "baseline": kernels[0]["name"]})
        text += "".join(candidate(it["name"], KERNELS / f"{it['file']}.ptx", it) for it in kernels)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path, help="the program opt-supervisor")
    parser.add_argument("--calls", type=int, default=6, help="the number of calls of each op")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="by default, a random one")
    parser.add_argument("--device", default="emulated", help="the device of the run, such as cuda:0")
    parser.add_argument("--keep", type=pathlib.Path, help="keep the captures and the run in this folder")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    torch.manual_seed(arguments.seed)
    further = {f"further_{name}": (call, op, kernels) for name, op, call, kernels in kernel_table.jobs()}
    calls = CALLS | {name: (call, op) for name, (call, op, _) in further.items()}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or pathlib.Path(temporary)
        for name, (call, op) in calls.items():
            with record(folder / name, ops=[op], per_op=arguments.calls):
                for _ in range(arguments.calls):
                    call(rng)
        expected = json.loads(EXPECTED.read_text())
        correct = {name for name, (status, _) in expected.items() if status == "PASSED"}
        (folder / "plan.toml").write_text(plan(folder, correct, further, arguments.device))
        command = [arguments.binary.resolve(), "run", "plan.toml", "--dir", "run"]
        ended = subprocess.run(command, cwd=folder, timeout=TIMEOUT, capture_output=True, text=True)
        if not (folder / "run/summary.json").exists():
            sys.exit(f"the run ended with {ended.returncode}:\n{ended.stderr}")
        summary = json.loads((folder / "run/summary.json").read_text())
    count = len(correct) + sum(len(kernels) for _, _, kernels in further.values())
    passed, entries, wrong = 0, 0, []
    for job in summary["jobs"]:
        for candidate in job["candidates"]:
            verify = candidate["verify"] or {}
            entries += verify.get("entries_passed", 0)
            if candidate["status"] == "PASSED" and verify["entries_unsupported"] == 0:
                passed += 1
            else:
                wrong.append(f"{job['name']}/{candidate['name']}: {candidate['status']}: {candidate['detail']}")
    for line in wrong:
        print(line)
    print(
        f"kernels on `{arguments.device}` compared with torch {torch.__version__}, seed {arguments.seed}: {passed} of {count} "
        f"kernels correct in {entries} calls, {time.monotonic() - started:.0f} s"
    )
    return 0 if passed == count and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
