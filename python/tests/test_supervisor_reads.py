"""Tests that opt-supervisor reads what the recorder writes."""

from __future__ import annotations

import subprocess
import sys
import unittest

from .places import PROGRAM, ROOT
from .recording import RecordingTest

SCRIPT = """
import torch

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2).eval()
with torch.no_grad():
    for length in (5, 9):
        model(torch.randn(2, length, 32))
"""


@unittest.skipUnless(PROGRAM.is_file(), f"the program is not built: {PROGRAM} (cargo build --workspace --bins)")
class SupervisorReads(RecordingTest):
    def record_script(self, *options: str) -> str:
        """Records the script with the command. Returns the command's output."""
        script = self.folder / "script.py"
        script.write_text(SCRIPT)
        done = subprocess.run(
            [sys.executable, "-m", "opt_captures", "record", "--out", str(self.captures), *options, str(script)],
            capture_output=True,
            text=True,
            cwd=ROOT / "python",
            timeout=300,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def test_every_folder_of_a_transformer_is_inspected_and_checked(self) -> None:
        output = self.record_script("--ops", "auto")
        self.assertIn("torch.nn.functional.linear: 16 of 16 calls", output)
        folders = sorted(path for path in self.captures.iterdir() if path.is_dir())
        self.assertGreater(len(folders), 4)
        for folder in folders:
            with self.subTest(folder.name):
                self.assertIn("entries of", self.supervisor("inspect", folder))
                plan = self.folder / folder.name / "plan.toml"
                plan.parent.mkdir()
                self.supervisor("init", folder, "--output", plan)
                checked = self.supervisor("check", plan)
                self.assertIn("arguments: ", checked)
                for warning in ("in-place-damage", "storage-bloat", "unknown-keys", "unusable-value"):
                    self.assertNotIn(warning, checked)

    def test_parts_of_a_transformer_are_among_the_ops(self) -> None:
        self.record_script()
        ops = {op for op, entry in self.index().items() if entry["kept"]}
        expected = {"linear", "layer_norm", "relu", "scaled_dot_product_attention", "multi_head_attention_forward"}
        self.assertLessEqual({f"{name}" for name in expected}, ops)
