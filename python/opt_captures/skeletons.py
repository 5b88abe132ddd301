"""Kernels to fill in, which the program writes for the signature of captures."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from . import plans, store
from .errors import RecordError

#: The time limit of the program, in seconds. The program reads only the headers of the captures.
WRITE_SECONDS = 600


def write(captures: Path, out: Path) -> str | None:
    """Writes a kernel in C to fill in. Returns its path relative to `out`, or None if the program is not installed.

    Raises:
        RecordError: the program failed or took too long, or the kernel exists.
    """
    program = store.find()
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "init", str(captures), "-o", str(Path(folder, plans.NAME))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=WRITE_SECONDS, check=False)
        except OSError as error:
            raise RecordError(f"starting {program}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise RecordError(
                f"writing a kernel to fill in for {captures} takes more than {WRITE_SECONDS} s"
            ) from error
        if done.returncode != 0:
            raise RecordError(f"writing a kernel to fill in for {captures}: {done.stderr.strip()}")
        path = Path("kernels", f"{captures.name}.c")
        plans.write(out / path, Path(folder, path).read_text(encoding="utf-8"))
    return str(path)
