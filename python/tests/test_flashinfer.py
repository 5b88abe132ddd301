"""Tests of importing flashinfer-trace data sets. The definitions were written for these tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomllib
import torch

from opt_captures import RecordError, flashinfer
from opt_captures.__main__ import main

from .places import PROGRAM
from .recording import RecordingTest

#: Expressions over the inputs `x` and `w`, in Python and, for element `at`, in C++.
OPS = {
    "add": ("x + w", "x[at] + w[at]"),
    "sub": ("x - w", "x[at] - w[at]"),
    "mul": ("x * w", "x[at] * w[at]"),
    "relu": ("x.clamp(min=0) + w * 0", "x[at] < 0 ? 0 : x[at]"),
    "fma": ("x * w + x", "x[at] * w[at] + x[at]"),
    "square": ("x * x + w", "x[at] * x[at] + w[at]"),
    "larger": ("torch.maximum(x, w)", "x[at] < w[at] ? w[at] : x[at]"),
    "smaller": ("torch.minimum(x, w)", "x[at] < w[at] ? x[at] : w[at]"),
    "negative": ("w - x", "w[at] - x[at]"),
    "mean": ("(x + w) / 2", "(x[at] + w[at]) / 2"),
}
KERNEL = """#include "opt_candidate.h"
OPT_EXPORT int run(void *, const OptAny *args, int32_t, OptAny *) {
    const OptTensor *shape = args[0].value.v_tensor;
    const float *x = static_cast<const float *>(shape->data);
    const float *w = static_cast<const float *>(args[1].value.v_tensor->data);
    float *y = static_cast<float *>(args[2].value.v_tensor->data);
    for (int64_t at = 0; at < shape->shape[0] * shape->shape[1]; at++) y[at] = VALUE;
    return OPT_OK;
}
"""


def solution(definition: str, name: str, language: str, entry: str, *sources: tuple[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "definition": definition,
        "author": "nobody",
        "spec": {"language": language, "target_hardware": ["cpu"], "entry_point": entry},
        "sources": [{"path": path, "content": content} for path, content in sources],
    }


class DataSets(RecordingTest):
    def setUp(self) -> None:
        super().setUp()
        self.data, self.out = self.folder / "data", self.folder / "out"

    def put(self, path: str, *documents: dict[str, Any]) -> None:
        target = self.data / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(json.dumps(document) for document in documents))

    def make(self, names: list[str]) -> None:
        """Makes definitions, each with two workloads and a solution in C++."""
        tensor = {"shape": ["rows", "columns"], "dtype": "float32"}
        inputs = {"x": {"type": "random"}, "w": {"type": "random"}}
        for name in names:
            python, cpp = OPS[name]
            definition = {
                "name": name,
                "axes": {"rows": {"type": "var"}, "columns": {"type": "const", "value": 24}},
                "inputs": {"x": tensor, "w": tensor},
                "outputs": {"y": tensor},
                "reference": f"import torch\n\ndef run(x, w):\n    return {{'y': {python}}}\n",
            }
            self.put(f"definitions/point/{name}.json", definition)
            workloads = [{"definition": name, "workload": {"axes": {"rows": n}, "inputs": inputs}} for n in (3, 5)]
            self.put(f"workloads/point/{name}.jsonl", *workloads)
            source = ("src/main.cpp", KERNEL.replace("VALUE", cpp))
            found = solution(name, f"{name}-cpp", "cpp", "src/main.cpp::run", source)
            self.put(f"solutions/point/{name}/c.json", found)

    def test_definition_becomes_captures_and_a_job(self) -> None:
        self.make(["add"])
        python = ("main.py", "def go(x, w):\n    return x + w\n")
        self.put("solutions/p.json", solution("add", "py", "python", "main.py::go", python))
        self.put("solutions/t.json", solution("add", "tri", "triton", "main.py::run", ("main.py", "import triton")))
        self.put("solutions/g.json", solution("add", "gpu", "cuda", "main.cu::run", ("main.cu", "")))
        self.put("solutions/o.json", solution("add", "out", "python", "../x.py::run", ("../x.py", "")))
        (job,) = flashinfer.import_trace(self.data, self.out)
        plan = tomllib.loads((self.out / "plan.toml").read_text())
        (found,) = plan["job"]
        self.assertEqual((found["captures"], found["baseline"]), ("captures/add", "reference"))
        kernels = {it["name"]: (it["language"], it.get("symbol")) for it in found["candidate"]}
        expected = {
            "reference": ("python", None),
            "add-cpp": ("cpp", "run"),
            "py": ("python", "go"),
            "tri": ("triton", "run"),
        }
        self.assertEqual(kernels, expected)
        self.assertEqual([name for name, _ in job.refused], ["gpu", "out"])
        self.assertFalse((self.out / "x.py").exists())
        self.captures = self.out / "captures"
        first, second = self.entries("add")
        self.assertEqual((first["kwargs"]["x"].shape, second["kwargs"]["x"].shape), ((3, 24), (5, 24)))
        self.assertTrue(torch.equal(first["output"], first["kwargs"]["x"] + first["kwargs"]["w"]))

    def test_stored_tensor_is_read_and_missing_or_cut_one_is_refused(self) -> None:
        values = torch.arange(6, dtype=torch.int32).reshape(2, 3)
        head = json.dumps({"a": {"dtype": "I32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
        path = self.folder / "t.safetensors"
        path.write_bytes(len(head).to_bytes(8, "little") + head + values.numpy().tobytes())
        self.assertTrue(torch.equal(flashinfer.read_tensor(path, "a"), values))
        path.write_bytes(path.read_bytes()[:-1])
        for key, why in [("b", "KeyError"), ("a", "ValueError")]:
            with self.assertRaisesRegex(RecordError, why):
                flashinfer.read_tensor(path, key)
        head = head.replace(b"I32", b"F8_E4M3")
        path.write_bytes(len(head).to_bytes(8, "little") + head)
        with self.assertRaisesRegex(RecordError, "the dtype F8_E4M3 is not supported"):
            flashinfer.read_tensor(path, "a")

    def test_ten_solutions_in_cpp_are_verified(self) -> None:
        if not PROGRAM.is_file():
            self.skipTest(f"the program is not built: {PROGRAM} (cargo build --workspace --bins)")
        self.make(list(OPS))
        self.assertEqual(main(["flashinfer-trace", str(self.data), str(self.out)]), 0)
        self.supervisor("check", self.out / "plan.toml")
        self.supervisor("run", self.out / "plan.toml", "--set", 'run.stages=["build", "verify"]')
        summary = json.loads((self.out / "runs/plan/summary.json").read_text())
        statuses = {it["name"]: it["status"] for job in summary["jobs"] for it in job["candidates"]}
        self.assertEqual({statuses[f"{name}-cpp"] for name in OPS}, {"PASSED"}, statuses)
        self.assertEqual(statuses["reference"], "PASSED")
        self.supervisor(
            *("report", self.out / "runs/plan", "--format", "flashinfer-trace"),
            *("--workloads", self.out / "workloads.json", "-o", self.out / "traces.jsonl"),
        )
        traces = [json.loads(line) for line in (self.out / "traces.jsonl").read_text().splitlines()]
        of_add = [trace for trace in traces if trace["solution"] == "add-cpp"]
        self.assertEqual([trace["workload"]["axes"] for trace in of_add], [{"rows": 3}, {"rows": 5}])
        self.assertEqual({trace["evaluation"]["status"] for trace in of_add}, {"PASSED"})

    def test_folder_without_definitions_is_refused(self) -> None:
        with self.assertRaisesRegex(RecordError, "there is no definition"):
            flashinfer.import_trace(Path(self.folder), self.out)
