"""Tests of importing KernelBench problems. The problems were written for these tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomllib
import torch

from opt_captures import RecordError, kernelbench
from opt_captures.__main__ import main

from .places import PROGRAM
from .recording import RecordingTest

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n"
#: By name: the body of `forward`, the modules of the model, the parameters of `forward`, and the inputs.
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
        kernelbench.import_problems([file], self.folder / name, training=training)
        return self.entries(name)

    def test_problems_of_both_levels_are_recorded_and_checked(self) -> None:
        for name, parts in {**LEVEL_1, **LEVEL_2}.items():
            with self.subTest(name):
                entries = self.imported(name, *parts)
                self.assertEqual(len(entries), kernelbench.DEFAULT_CALLS)
                if PROGRAM.is_file():
                    self.assertIn("arguments: ", self.supervisor("check", self.folder / name / "plan.toml"))

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
        self.assertIs(entry["kwargs"]["self.training"], True)

    def test_state_that_a_call_changes_is_recorded_before_and_after_it(self) -> None:
        for entry in self.imported("batch_norm", *LEVEL_1["batch_norm"], training=True):
            given, after = entry["kwargs"], entry["mutates"]
            self.assertEqual(
                list(after), ["self.norm.running_mean", "self.norm.running_var", "self.norm.num_batches_tracked"]
            )
            mean = given["x"].mean((0, 2, 3))
            expected = 0.9 * given["self.norm.running_mean"] + 0.1 * mean
            self.assertTrue(torch.allclose(after["self.norm.running_mean"], expected, atol=1e-6))
            before = given["self.norm.num_batches_tracked"]
            self.assertEqual(after["self.norm.num_batches_tracked"], before + 1)
        self.assertNotIn("mutates", self.imported("eval", *LEVEL_1["batch_norm"])[0])

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
            kernelbench.import_problems([file], self.folder / "out")

    def plan(self, *arguments: str | Path) -> dict[str, Any]:
        """Runs the command and returns the plan that it writes."""
        self.assertEqual(main(["kernelbench", *map(str, arguments), str(self.folder / "out")]), 0)
        return tomllib.loads((self.folder / "out/plan.toml").read_text())

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def test_plan_has_the_model_as_baseline_and_new_classes_as_candidates(self) -> None:
        relu = self.write("relu.py", problem(*LEVEL_1["relu"]) + "\n\nclass ModelNew(Model):\n    pass\n")
        scaled = self.write("relu_scaled.py", problem(*LEVEL_1["softmax"]))
        new = "class ModelNew(torch.nn.Module): ...\n"
        kernels = [
            self.write(name, HEAD + text)
            for name, text in [
                ("relu_scaled_a.py", new),
                ("relu_b.py", f"import triton\n\n{new}"),
                ("relu_c.py", "def run(x): ...\n"),
                ("relu_d.py", f"{new}\nbuilt = load_inline (name='d')\n"),
            ]
        ]
        given = [part for kernel in kernels for part in ("--kernel", kernel)]
        plan = self.plan(*given, relu, scaled)
        found = {
            job["name"]: [(it["name"], it["language"], it["symbol"]) for it in job["candidate"]] for job in plan["job"]
        }
        model = ("Model", "python", "Model")
        self.assertEqual(
            found,
            {
                "relu": [model, ("ModelNew", "python", "ModelNew"), ("relu_b", "triton", "ModelNew")],
                "relu_scaled": [model, ("relu_scaled_a", "python", "ModelNew")],
            },
        )
        self.assertEqual({job["baseline"] for job in plan["job"]}, {"Model"})
        text = (self.folder / "out/plan.toml").read_text()
        self.assertIn("# left out: relu_c: it does not define `ModelNew`", text)
        self.assertIn("# left out: relu_d: it starts a compiler", text)
        if PROGRAM.is_file():
            self.supervisor("check", self.folder / "out/plan.toml")

    def test_class_without_get_init_inputs_gets_that_of_the_problem(self) -> None:
        text = problem("return x * self.by", "self.by = by", "x", "torch.randn(3)")
        text = text.replace("def __init__(self)", "def __init__(self, by, shape)").replace(
            "return []", "return [2.5, (1, 2)]"
        )
        scale, new = self.write("scale.py", text), self.write("new.py", "class ModelNew: ...\n")
        plan = self.plan("--kernel", new, scale)
        source = (self.folder / "out" / plan["job"][0]["candidate"][1]["sources"][0]).read_text()
        self.assertTrue(source.startswith("class ModelNew: ...\n"))
        self.assertTrue(source.endswith("\ndef get_init_inputs():\n    return [2.5, (1, 2)]\n"))

    def test_one_problem_of_several_may_be_left_out(self) -> None:
        good = self.write("relu.py", problem(*LEVEL_1["relu"]))
        bad = self.write("dropout.py", problem("return F.dropout(x)", "", "x", "torch.randn(3)"))
        self.assertEqual([job["name"] for job in self.plan(good, bad)["job"]], ["relu"])

    def test_model_that_writes_to_an_input_is_no_baseline(self) -> None:
        file = self.write("in_place.py", problem(*LEVEL_2["in_place"]) + "\n\nclass ModelNew(Model):\n    pass\n")
        (job,) = self.plan(file)["job"]
        self.assertNotIn("baseline", job)
        self.assertEqual([it["name"] for it in job["candidate"]], ["ModelNew"])

    def test_kernel_to_fill_in_is_written(self) -> None:
        if not PROGRAM.is_file():
            self.skipTest(f"the program is not built: {PROGRAM} (cargo build --workspace --bins)")
        self.set_program(str(PROGRAM))
        self.plan(self.write("relu.py", problem(*LEVEL_1["relu"])))
        self.assertIn("x", (self.folder / "out/kernels/relu.c").read_text())

    def test_repeated_names_missing_files_and_kernels_without_a_problem_are_refused(self) -> None:
        relu = self.write("relu.py", problem(*LEVEL_1["relu"]))
        (self.folder / "other").mkdir()
        again = self.write("other/relu.py", problem(*LEVEL_1["relu"]))
        tanh = self.write("tanh.py", problem(*LEVEL_1["relu"]))
        alone = self.write("alone.py", "class ModelNew: ...\n")
        for files, kernels, why in [
            ([relu, again], [], "two are called `relu`"),
            ([relu, tanh], [alone], "it belongs to no problem"),
            ([relu, self.folder / "nothing.py"], [], "there is no such file"),
        ]:
            with self.subTest(why), self.assertRaisesRegex(RecordError, why):
                kernelbench.import_problems(files, self.folder / "out", kernels=kernels)
