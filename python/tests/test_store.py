"""Tests that a recorded store has each tensor once, and the same contents as recorded files."""

from __future__ import annotations

import subprocess
import sys
import unittest

import torch

from opt_captures import RecordError, record

from .places import PROGRAM, ROOT
from .recording import RecordingTest

#: Records calls with two tables of 8 MiB in turn, and keeps twenty. Prints the memory that was used in addition to the
#: tables, as a multiple of one table, and the disk space relative to the size of both tables.
SCRIPT = """
import os, sys, threading, time
from pathlib import Path
import torch
from opt_captures import record

folder, size = Path(sys.argv[1]), 8 << 20
torch.manual_seed(0)
tables = [torch.randn(1 << 13, 256) for _ in range(2)]
lookups = [torch.randint(0, 1 << 13, (16,)) for _ in range(20)]
call = lambda at: torch.nn.functional.embedding(lookups[at], tables[at % 2])

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

def on_disk():
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())

def spooled():
    return sum(os.stat(f"/proc/self/fd/{fd}").st_blocks * 512 for fd in os.listdir("/proc/self/fd") if memory_file(fd))

def memory_file(fd):
    try:
        return "memfd:" in os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False

before, plain = resident(), [call(at) for at in range(20)]
most, over = {"resident": 0, "disk": 0, "spooled": 0}, threading.Event()
def look():
    while not over.is_set():
        for name, measure in (("resident", resident), ("disk", on_disk), ("spooled", spooled)):
            try:
                most[name] = max(most[name], measure())
            except OSError:
                pass
        time.sleep(0.002)
with record(folder, ["embedding"], per_class=20, store=True) as recorder:
    call(0), call(1)  # Afterwards, all one-time imports and allocations are done.
    before = resident()
    watcher = threading.Thread(target=look)
    watcher.start()
    recorded = [call(at) for at in range(20)]
    over.set()
    watcher.join()
assert all(torch.equal(a, b) for a, b in zip(plain, recorded)), "outputs differ"
print((most["resident"] - before + most["spooled"]) / size, max(most["disk"], on_disk()) / (2 * size))
"""


@unittest.skipUnless(PROGRAM.is_file(), f"the program is not built: {PROGRAM} (cargo build --workspace --bins)")
class Stores(RecordingTest):
    def setUp(self) -> None:
        super().setUp()
        self.set_program(str(PROGRAM))

    def test_two_shared_tables_are_stored_once(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, self.captures],
            capture_output=True,
            text=True,
            cwd=ROOT / "python",
            timeout=300,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        memory, disk = map(float, done.stdout.split())
        # If a table were copied once more than necessary, the figure would be larger by 1.
        self.assertLess(memory, 1.5, "extra memory, as a multiple of one table")
        # Besides the tables, there are manifests, outputs and indices of twenty calls.
        self.assertLess(disk, 1.1, "relative to the distinct bytes")
        self.assertIn("20 entries", self.supervisor("inspect", self.captures / "store/entries/embedding"))

    def test_unpacked_store_equals_recorded_files(self) -> None:
        table, index = torch.randn(5000, 8), torch.randint(0, 5000, (7,))
        with self.record(["embedding"], store=True):
            expected = torch.nn.functional.embedding(index, table)
        self.supervisor("captures", "check", self.captures / "store")
        self.supervisor("captures", "unpack", self.captures / "store", self.folder / "files")
        entry = torch.load(self.folder / "files/embedding/entry_000000.pt", weights_only=False)
        self.assertTrue(torch.equal(entry["kwargs"]["weight"], table) and torch.equal(entry["output"], expected))

    def test_replaced_calls_leave_nothing_behind(self) -> None:
        with self.record(["relu"], per_class=1, store=True):
            for number in range(6):
                torch.nn.functional.relu(torch.full((4096,), float(number)))
        self.assertEqual(self.index()["relu"]["kept"], 1)
        checked = self.supervisor("captures", "check", self.captures / "store")
        self.assertIn("good: 1 entry, 1 blob", checked)

    def test_program_that_is_missing_is_named(self) -> None:
        self.set_program("/nowhere/at/all")
        with self.assertRaisesRegex(RecordError, "/nowhere/at/all"), record(self.captures, ["relu"], store=True):
            pass
