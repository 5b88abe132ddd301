"""Tests of importing KernelForge projects. The projects were written for these tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomllib
import torch
from torch.nn import functional

from opt_captures import RecordError, kernelforge
from opt_captures.__main__ import main

from .places import PROGRAM
from .recording import RecordingTest

#: Ops, each with the call that is captured and a correct kernel.
OPS: dict[str, tuple[dict[str, Any], str]] = {
    "softmax": (
        {"input": torch.randn(4, 33), "dim": -1, "_stacklevel": 3, "dtype": None},
        "#include <torch/extension.h>\ntorch::Tensor launch(torch::Tensor input, int64_t dim, int64_t level, "
        "c10::optional<at::ScalarType> dtype) {\n    return torch::softmax(input, dim, dtype);\n}\n",
    ),
    "layer_norm": (
        {"input": torch.randn(4, 16), "normalized_shape": (16,), "weight": torch.randn(16), "bias": None, "eps": 1e-5},
        "#include <torch/types.h>\ntorch::Tensor launch(torch::Tensor input, c10::IntArrayRef shape, "
        "c10::optional<torch::Tensor> weight, c10::optional<torch::Tensor> bias, double eps) {\n"
        "    return at::layer_norm(input, shape, weight, bias, eps);\n}\n",
    ),
    "linear": (
        {"input": torch.randn(4, 16), "weight": torch.randn(8, 16), "bias": torch.randn(8)},
        "#include <ATen/ATen.h>\n"
        "at::Tensor launch(const at::Tensor &input, const at::Tensor &weight, at::Tensor bias) {\n"
        "    return at::addmm(bias, input, weight.t());\n}\n",
    ),
    "pad": (
        {"input": torch.randn(2, 3, 5), "pad": [1, 2], "mode": "constant", "value": None},
        "#include <ATen/ATen.h>\nat::Tensor launch(at::Tensor input, std::vector<int64_t> pad, std::string mode, "
        "std::optional<double> value) {\n    return at::pad(input, pad, mode, value);\n}\n",
    ),
    "relu": (
        {"input": torch.randn(7, 9), "inplace": False},
        "#include <ATen/ATen.h>\nat::Tensor launch(at::Tensor input, bool inplace) { return input.clamp_min(0); }\n",
    ),
}


class Projects(RecordingTest):
    def make(self, name: str, ops: list[str]) -> Path:
        """Makes a project with three calls of each op, and kernels of every kind."""
        project = self.folder / name
        for op in ops:
            kwargs, source = OPS[op]
            folder = project / "io/individual_ops" / f"torch_nn_functional_{op}"
            folder.mkdir(parents=True)
            for number in range(3):
                output = getattr(functional, op)(**kwargs)
                signature = {"params": list(kwargs), "defaults": {}}
                call = {"function_name": f"torch.nn.functional.{op}", "args": [], "kwargs": kwargs}
                torch.save({**call, "output": output, "signature": signature}, folder / f"entry_{number:06}.pt")
            kernels = project / "kernels/generated/individual_op_kernels" / folder.name
            kernels.mkdir(parents=True)
            (kernels / "kernel.cu").write_text(source)
            (kernels / "kernel.py").write_text("def run(x): ...\n")
            tree = project / "trees" / folder.name / "kernels"
            tree.mkdir(parents=True)
            (tree / "kernel_10.cu").write_text("__global__ void k() {}\ntorch::Tensor launch(torch::Tensor x);\n")
            (tree / "kernel_2.cpp").write_text(source)
            (tree / "kernel_3.py").write_text("import triton\n\ndef launch(x): ...\n")
            (tree / "kernel_4.py").write_text("def launch(x, inplace):\n    return x.clamp(min=0)\n")
        return project

    def test_plan_names_captures_kernels_and_what_is_left_out(self) -> None:
        project, out = self.make("one", ["relu"]), self.folder / "out"
        (job,) = kernelforge.import_project(project, out, parity=True)
        plan = tomllib.loads((out / "plan.toml").read_text())
        (found,) = plan["job"]
        self.assertEqual((found["name"], found["baseline"]), ("torch_nn_functional_relu", "torch"))
        self.assertEqual((out / found["captures"]).resolve(), (project / "io/individual_ops" / job.name).resolve())
        kernels = [(it["name"], it["language"]) for it in found["candidate"]]
        self.assertEqual(
            kernels,
            [("kernel", "torch-extension"), ("tree-2", "torch-extension"), ("tree-3", "triton"), ("tree-4", "python")],
        )
        for it in found["candidate"][:2]:
            self.assertEqual((out / it["sources"][0]).read_text(), OPS["relu"][1])
        self.assertEqual([name for name, _ in job.refused], ["kernel.py", "tree-10"])
        self.assertEqual(plan["profile"], {"parity": "kernelforge"})

    def test_cuda_kernels_have_a_plan_for_the_emulated_device(self) -> None:
        project, out = self.make("one", ["relu"]), self.folder / "out"
        (job,) = kernelforge.import_project(project, out, cuda=True)
        plan = tomllib.loads((out / "plan.toml").read_text())
        self.assertEqual(plan["run"], {"device": "emulated"})
        (found,) = plan["job"]
        self.assertNotIn("baseline", found)
        (kernel,) = found["candidate"]
        self.assertEqual((kernel["name"], kernel["language"]), ("tree-10", "torch-cuda"))
        self.assertTrue((out / kernel["sources"][0]).is_file())
        self.assertEqual([name for name, _ in job.refused], ["kernel", "kernel.py", "tree-2", "tree-3", "tree-4"])

    def test_five_projects_are_verified_as_they_are(self) -> None:
        if not PROGRAM.is_file():
            self.skipTest(f"the program is not built: {PROGRAM} (cargo build --workspace --bins)")
        for op in OPS:
            with self.subTest(op):
                project, out = self.make(op, [op]), self.folder / f"{op}-out"
                self.assertEqual(main(["kernelforge", str(project), str(out)]), 0)
                self.supervisor("check", out / "plan.toml")
                stages = 'run.stages=["build", "verify"]'
                self.supervisor("run", out / "plan.toml", "--set", stages, "--only", f"torch_nn_functional_{op}/kernel")
                summary = json.loads((out / "runs/plan/summary.json").read_text())
                statuses = {it["name"]: (it["status"], it["detail"]) for it in summary["jobs"][0]["candidates"]}
                self.assertEqual(statuses["kernel"][0], "PASSED", statuses)
                self.assertEqual(statuses["torch"][0], "PASSED", statuses)

    def test_folder_without_captures_and_existing_plan_are_refused(self) -> None:
        with self.assertRaisesRegex(RecordError, "it has no io/individual_ops"):
            kernelforge.import_project(self.folder, self.folder / "out")
        project = self.make("one", ["relu"])
        kernelforge.import_project(project, self.folder / "out")
        with self.assertRaisesRegex(RecordError, "File exists"):
            kernelforge.import_project(project, self.folder / "out")
