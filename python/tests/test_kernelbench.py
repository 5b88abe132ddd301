"""Tests of importing KernelBench problems. The problems were written for these tests."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any
from unittest import mock

import torch

from opt_captures import RecordError, kernelbench

from .places import PROGRAM, ROOT
from .recording import RecordingTest

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n"
#: Bodies of `forward`, modules of the model, and inputs, by name.
LEVEL_1 = {
    "matmul": ("return torch.matmul(a, b)", "", "a, b", "torch.randn(16, 8), torch.randn(8, 4)"),
    "relu": ("return F.relu(x)", "", "x", "torch.randn(4, 32)"),
    "softmax": ("return F.softmax(x, dim=1)", "", "x", "torch.randn(4, 32)"),
    "layer_norm": ("return self.norm(x)", "self.norm = nn.LayerNorm(32)", "x", "torch.randn(4, 32)"),
    "batch_norm": ("return self.norm(x)", "self.norm = nn.BatchNorm2d(3)", "x", "torch.randn(2, 3, 8, 8)"),
    "conv2d": ("return self.conv(x)", "self.conv = nn.Conv2d(3, 4, 3)", "x", "torch.randn(1, 3, 8, 8)"),
    "max_pool": ("return F.max_pool2d(x, 2)", "", "x", "torch.randn(1, 3, 8, 8)"),
    "cumsum": ("return torch.cumsum(x, dim=1)", "", "x", "torch.randn(4, 32)"),
    "mse_loss": ("return torch.mean((a - b) ** 2)", "", "a, b", "torch.randn(4, 8), torch.randn(4, 8)"),
    "argmax": ("return torch.argmax(x, dim=1)", "", "x", "torch.randn(4, 32)"),
}
LEVEL_2 = {
    "conv_relu_bias": (
        "return F.relu(self.conv(x)) + self.bias",
        "self.conv = nn.Conv2d(3, 4, 3); self.bias = nn.Parameter(torch.randn(4, 1, 1))",
        "x",
        "torch.randn(1, 3, 8, 8)",
    ),
    "gemm_gelu_softmax": (
        "return F.softmax(F.gelu(self.gemm(x)), dim=1)",
        "self.gemm = nn.Linear(8, 16)",
        "x",
        "torch.randn(4, 8)",
    ),
    "gemm_scale_batch_norm": (
        "return self.norm(self.gemm(x) * self.scale)",
        "self.gemm = nn.Linear(8, 16); self.scale = nn.Parameter(torch.randn(16)); self.norm = nn.BatchNorm1d(16)",
        "x",
        "torch.randn(4, 8)",
    ),
    "in_place": ("return x.add_(1).clamp_(min=0) * 2", "", "x", "torch.randn(4, 8)"),
    "with_a_number": ("return x * factor", "", "x, factor", "torch.randn(4, 8), 3"),
}


def problem(forward: str, modules: str, parameters: str, inputs: str) -> str:
    return (
        f"{HEAD}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {modules or 'pass'}\n\n"
        f"    def forward(self, {parameters}):\n        {forward}\n\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return []\n"
    )


class Problems(RecordingTest):
    def imported(self, name: str, *parts: str, training: bool = False) -> list[dict[str, Any]]:
        file = self.folder / f"{name}.py"
        file.write_text(problem(*parts))
        self.captures = self.folder / name / "captures"
        kernelbench.import_problem(file, self.folder / name, training=training)
        return self.entries(name)

    def test_problems_of_both_levels_are_recorded_and_checked(self) -> None:
        for name, parts in {**LEVEL_1, **LEVEL_2}.items():
            with self.subTest(name):
                entries = self.imported(name, *parts)
                self.assertEqual(len(entries), kernelbench.DEFAULT_CALLS)
                if PROGRAM.is_file():
                    plan = self.folder / name / "plan.toml"
                    self.supervisor("init", self.captures / name, "-o", plan)
                    self.assertIn("arguments: ", self.supervisor("check", plan))

    def test_state_follows_the_arguments_under_its_names(self) -> None:
        entry = self.imported("conv_relu_bias", *LEVEL_2["conv_relu_bias"])[0]
        names = list(entry["kwargs"])
        self.assertEqual(names, ["x", "self.bias", "self.conv.weight", "self.conv.bias"])
        kwargs = entry["kwargs"]
        expected = torch.relu(torch.conv2d(kwargs["x"], kwargs["self.conv.weight"], kwargs["self.conv.bias"]))
        self.assertTrue(torch.allclose(entry["output"], expected + kwargs["self.bias"], atol=1e-6))

    def test_inputs_are_recorded_as_they_were_before_the_call(self) -> None:
        entry = self.imported("in_place", *LEVEL_2["in_place"])[0]
        x = entry["kwargs"]["x"]
        self.assertTrue(torch.equal(entry["output"], (x + 1).clamp(min=0) * 2))

    def test_training_mode_uses_the_statistics_of_the_batch(self) -> None:
        entry = self.imported("batch_norm", *LEVEL_1["batch_norm"], training=True)[0]
        self.assertLess(entry["output"].mean().abs().item(), 1e-5)

    def test_calls_differ_and_the_seed_repeats_them(self) -> None:
        first = self.imported("relu", *LEVEL_1["relu"])
        again = self.imported("relu_again", *LEVEL_1["relu"])
        self.assertTrue(torch.equal(first[0]["output"], again[0]["output"]))
        self.assertFalse(torch.equal(first[0]["output"], first[1]["output"]))

    def test_random_problem_is_refused(self) -> None:
        with self.assertRaisesRegex(RecordError, "it is random"):
            self.imported("dropout", "return F.dropout(x)", "", "x", "torch.randn(3)")

    def test_file_without_a_model_is_refused(self) -> None:
        file = self.folder / "empty.py"
        file.write_text("def get_inputs(): return []\n")
        with self.assertRaisesRegex(RecordError, "it has no `Model`"):
            kernelbench.import_problem(file, self.folder / "out")

    def test_command_writes_captures_and_a_plan(self) -> None:
        if not PROGRAM.is_file():
            self.skipTest(f"the program is not built: {PROGRAM} (cargo build --workspace --bins)")
        file = self.folder / "relu.py"
        file.write_text(problem(*LEVEL_1["relu"]))
        with mock.patch.dict(os.environ, {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}):
            done = subprocess.run(
                [sys.executable, "-m", "opt_captures", "kernelbench", str(file), str(self.folder / "out")],
                capture_output=True,
                text=True,
                cwd=ROOT / "python",
                timeout=300,
                check=False,
            )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.folder / "out/plan.toml").is_file() and (self.folder / "out/kernels/relu.c").is_file())
