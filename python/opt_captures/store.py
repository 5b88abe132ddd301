"""Records into a capture store, in which every repeated tensor is on disk only once.

Each call is first written to memory, and then passed to ``opt-supervisor captures add``, which writes only the tensors
that the store does not have yet.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .errors import RecordError
from .sinks import INDEX, refuse_nonempty_folder, replace
from .summary import Summary

NAME = "opt-supervisor"
#: Environment variable with the program's path. If it is not set, this module looks for the program beside this Python
#: and on the `PATH`.
VARIABLE = "OPT_SUPERVISOR"
#: The path of the store, relative to the folder of the recording.
STORE = "store"
#: Time limit for adding one call, in seconds. In this time, a disk that writes 10 MB per second writes 36 GB.
ADD_SECONDS = 3600


def find() -> str | None:
    """Returns the program's path. None if it is neither in `VARIABLE`, nor beside this Python, nor on the `PATH`."""
    beside = shutil.which(NAME, path=sysconfig.get_path("scripts"))
    return os.environ.get(VARIABLE) or beside or shutil.which(NAME)


def program() -> str:
    """Finds the program that makes stores.

    Raises:
        RecordError: it was not found.
    """
    found = find()
    if found is None:
        raise RecordError(
            f"recording into a store: {NAME} is neither beside this Python nor on the PATH (install it, set "
            f"{VARIABLE}, or record files: they can be packed later)"
        )
    if found == os.environ.get(VARIABLE) and not Path(found).is_file():
        raise RecordError(f"recording into a store: {VARIABLE} names {found}, which is not a file")
    return found


class StoreSink:
    """One capture store for all ops, at ``FOLDER/store``; an op's captures are ``FOLDER/store/entries/OP``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blob_bytes = 0

    def open(self) -> None:
        self._program = program()
        refuse_nonempty_folder(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def place(self, op_folder: str) -> Path:
        return self.folder / STORE / "entries" / op_folder

    def min_bytes(self, inputs: Sequence[int]) -> int:
        # The store may already have all inputs, so a call with inputs of any size might fit.
        return 1

    def write(self, op_folder: str, entry: str, capture: dict[str, Any]) -> int:
        descriptor = os.memfd_create(entry, os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            torch.save(capture, file)
            file.flush()
            command = [self._program, "captures", "add", str(self.folder / STORE), f"/proc/self/fd/{descriptor}"]
            try:
                done = subprocess.run(
                    [*command, "--name", f"{op_folder}/{entry}", "--replace", "--json"],
                    capture_output=True,
                    text=True,
                    pass_fds=[descriptor],
                    timeout=ADD_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise OSError(f"`captures add` took more than {ADD_SECONDS} s") from error
        if done.returncode != 0:
            raise OSError(f"`captures add` ended with {done.returncode}: {done.stderr.strip()}")
        before, self._blob_bytes = self._blob_bytes, int(json.loads(done.stdout)["blob_bytes"])
        return self._blob_bytes - before

    def close(self, summary: Summary) -> None:
        replace(self.folder / INDEX, summary.to_json())
