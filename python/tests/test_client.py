"""Tests of the client and its pytest plugin: short runs, open runs, and what is reported about mistakes."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from opt_supervisor import (
    ProgramError,
    RefusedError,
    Result,
    Session,
    SupervisorError,
    evaluate,
    evaluate_all,
    evaluate_async,
    evaluate_text,
    find_run,
)

from .places import PROGRAM, ROOT

KERNELS = ROOT / "configs/demo/softmax"
PLAN = f"""
[profile]
entry_timeout = "200ms"
[build]
libraries = ["m"]
[[job]]
name = "softmax"
captures = '{ROOT}/tests/data/demo/torch_nn_functional_softmax'
baseline = '{KERNELS}/naive.c'
"""
CRASHES = "int run(void) { *(volatile int *)8 = 1; return 0; }\n"
TESTS = """
import pytest

@pytest.mark.opt("*.c", plan="plan.toml")
def test_kernel(opt_result):
    assert opt_result.passed
"""


class RunTest(unittest.TestCase):
    """A test with its own folder for a plan, and a folder for sockets that no other run uses."""

    def setUp(self) -> None:
        if not PROGRAM.is_file():
            self.skipTest(f"the program is not built: {PROGRAM} (cargo build --workspace --bins)")
        self.folder = Path(tempfile.mkdtemp(prefix="opt-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.environment = {"OPT_SUPERVISOR": str(PROGRAM), "OPT_SUPERVISOR_RUNTIME_DIR": str(self.folder / "s")}
        patch = mock.patch.dict(os.environ, self.environment)
        patch.start()
        self.addCleanup(patch.stop)
        self.plan = self.folder / "plan.toml"
        self.plan.write_text(PLAN)
        self.crashing = self.folder / "segfaults.c"
        self.crashing.write_text(CRASHES)


class Evaluating(RunTest):
    def test_short_run_is_started_if_none_is_open(self) -> None:
        result = evaluate(self.crashing, self.plan)
        self.assertEqual((result.candidate, result.status, result.blame), ("softmax/segfaults", "CRASHED", "candidate"))
        self.assertIn("SIGSEGV", result.artifacts["feedback"])
        self.assertEqual(result.metrics["combined_score"], 0.0)

    def test_text_is_evaluated_without_an_open_run(self) -> None:
        self.assertEqual(evaluate_text(CRASHES, "c", self.plan, name="mine").candidate, "softmax/mine")

    def test_language_and_symbol_are_passed_on(self) -> None:
        with self.assertRaisesRegex(ProgramError, "unknown language `cobol`"):
            evaluate(self.crashing, self.plan, language="cobol")
        with self.assertRaisesRegex(SupervisorError, "`cobol`: the known languages are c, cpp, torch-extension"):
            evaluate_text(CRASHES, "cobol", self.plan)
        # A C++ compiler changes the function's name in the library, unless the function is declared `extern "C"`.
        other = 'extern "C" ' + CRASHES.replace("run", "other")
        separate = evaluate_text(other, "cpp", self.plan, symbol="other")
        with Session(self.plan) as session:
            submitted = evaluate_text(other, "cpp", self.plan, symbol="other")
            path = self.folder / "other.c"
            path.write_text(other)
            as_cpp = session.evaluate(path, language="cpp", symbol="other")
            as_c = session.evaluate(path, symbol="other")
        statuses = [result.status for result in (separate, submitted, as_cpp, as_c)]
        self.assertEqual(statuses, ["CRASHED", "CRASHED", "CRASHED", "COMPILE_ERROR"])

    def test_kernels_that_need_torch_are_evaluated(self) -> None:
        try:
            import torch  # noqa: F401
        except ModuleNotFoundError:
            self.skipTest("torch is not installed")
        plan = PLAN.replace("[build]", f"[build]\npython = '{sys.executable}'")
        self.plan.write_text(f'[run]\nstages = ["build", "verify"]\n{plan}')
        text = (ROOT / "configs/languages/softmax.py").read_text()
        extension = ROOT / "configs/languages/softmax.cpp"
        self.assertEqual(evaluate_text(text, "python", self.plan).status, "PASSED")
        with Session(self.plan) as session:
            self.assertEqual(evaluate_text(text, "python", self.plan).status, "PASSED")
            self.assertEqual(session.evaluate(extension, language="torch-extension").status, "PASSED")

    def test_session_judges_several_kernels_and_ends_its_run(self) -> None:
        with Session(self.plan) as session:
            right, wrong = session.evaluate_all([KERNELS / "fast.c", self.crashing])
            self.assertTrue(right.passed, right.feedback)
            assert right.speedup is not None
            self.assertGreater(right.metrics["combined_score"], 0)
            self.assertEqual(right.metrics["entries_passed"], 1.0)
            self.assertIn("fast", right._repr_html_())
            self.assertEqual(wrong.status, "CRASHED")
            # `evaluate` finds the open run by its plan, even when it is called from an event loop.
            again = asyncio.run(evaluate_async(self.crashing, self.plan))
            self.assertNotEqual(again.candidate, wrong.candidate, "the same run gives it a new name")
            self.assertEqual([result.status for result in evaluate_all([self.crashing], self.plan)], ["CRASHED"])
            with self.assertRaises(RefusedError) as refused:
                session.evaluate(self.crashing, job="nothing")
            self.assertEqual(refused.exception.code, "not_found")
            folder = session.run.folder
        self.assertIsNone(find_run(self.plan))
        self.assertTrue((folder / "summary.json").is_file())

    def test_closed_session_is_reported(self) -> None:
        with self.assertRaisesRegex(SupervisorError, "it is not open"):
            Session(self.plan).evaluate(self.crashing)

    def test_mistake_in_the_plan_is_reported(self) -> None:
        self.plan.write_text(PLAN.replace("captures", "captrues"))
        with self.assertRaisesRegex(ProgramError, "captrues"), Session(self.plan):
            pass
        with self.assertRaisesRegex(ProgramError, "captrues"):
            evaluate(self.crashing, self.plan)

    def test_program_that_is_missing_is_named(self) -> None:
        with (
            mock.patch.dict(os.environ, {"OPT_SUPERVISOR": "/nowhere/at/all"}),
            self.assertRaisesRegex(ProgramError, "/nowhere/at/all"),
        ):
            evaluate(self.crashing, self.plan)


class Results(unittest.TestCase):
    def test_unknown_figures_are_left_out(self) -> None:
        result = Result.from_json({"candidate": "a/b", "status": "COMPILE_ERROR", "speedup": None, "profile": None})
        self.assertEqual(result.metrics, {"passed": 0.0, "combined_score": 0.0})
        self.assertEqual(result.artifacts, {"status": "COMPILE_ERROR"})

    def test_foreign_text_is_not_interpreted_as_markup(self) -> None:
        result = Result.from_json({"candidate": "a/<b>", "status": "CRASHED", "feedback": "<script>"})
        page = result._repr_html_()
        self.assertNotIn("<script>", page)
        self.assertNotIn("<b>", page)


class Plugin(RunTest):
    def test_plugin_runs_each_kernel_as_a_test(self) -> None:
        try:
            import pytest  # noqa: F401
        except ModuleNotFoundError:
            self.skipTest("pytest is not installed")
        shutil.copy(KERNELS / "fast.c", self.folder / "fast.c")
        for header in KERNELS.glob("*.h"):
            shutil.copy(header, self.folder)
        (self.folder / "test_kernels.py").write_text(TESTS)
        command = [sys.executable, "-m", "pytest", "-p", "opt_supervisor.pytest_plugin", "-p", "no:cacheprovider", "-v"]
        done = subprocess.run(
            [*command, str(self.folder)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
            timeout=200,
            check=False,
        )
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("test_kernel[fast.c] PASSED", done.stdout)
        self.assertIn("test_kernel[segfaults.c] FAILED", done.stdout)
        self.assertIn("SIGSEGV", done.stdout)
        self.assertIsNone(find_run(self.plan), "the run ended with the tests")
