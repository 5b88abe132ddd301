"""Support for tests of the recorder: a new folder for each test, and access to the recorded captures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from opt_captures import record

from .places import PROGRAM


class RecordingTest(unittest.TestCase):
    """A test with a folder that is removed afterwards."""

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="opt-captures-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.captures = self.folder / "captures"

    def set_program(self, path: str) -> None:
        """Sets the path of the program that the recorder uses, until the test is over."""
        patch = mock.patch.dict(os.environ, {"OPT_SUPERVISOR": path})
        patch.start()
        self.addCleanup(patch.stop)

    def record(self, ops: Any = "auto", **options: Any) -> record:
        return record(self.captures, ops, **options)

    def entries(self, op: str) -> list[dict[str, Any]]:
        """Every capture of an op, in order."""
        return [torch.load(path, weights_only=False) for path in sorted((self.captures / op).glob("*.pt"))]

    def entry(self, op: str) -> dict[str, Any]:
        """The only capture of an op."""
        (entry,) = self.entries(op)
        return entry

    def index(self) -> dict[str, Any]:
        """``recorded.json``, by op."""
        document = json.loads((self.captures / "recorded.json").read_text())
        return {op["folder"]: op for op in document["ops"]}

    def left_out(self, op: str) -> str:
        """The reason why the only call of an op was left out."""
        (reason,) = self.index()[op]["left_out"]
        return str(reason["reason"])

    def supervisor(self, *arguments: object, code: int = 0) -> str:
        """Runs the program and returns its output."""
        done = subprocess.run(
            [PROGRAM, *map(str, arguments)], capture_output=True, text=True, cwd=self.folder, timeout=300, check=False
        )
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}\n{done.stderr}")
        return done.stdout
