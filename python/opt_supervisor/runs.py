"""Finds open runs by the links that they create in the folder for sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .connection import Connection
from .errors import SupervisorError

#: Environment variable with the folder for sockets. The program uses the same variable.
VARIABLE = "OPT_SUPERVISOR_RUNTIME_DIR"


@dataclass(frozen=True)
class OpenRun:
    """A run that accepts submissions.

    Attributes:
        socket: path of its control socket.
        folder: the folder with its results.
        plan: path of its plan.
        pid: process id of its supervisor.
    """

    socket: Path
    folder: Path
    plan: Path
    pid: int

    def connect(self) -> Connection:
        """Connects to the run.

        Raises:
            SupervisorError: connecting failed, for example because the run has ended.
        """
        return Connection(self.socket)


def socket_folders() -> list[Path]:
    """Returns the folders that may contain sockets, the preferred one first."""
    named = os.environ.get(VARIABLE, "")
    if Path(named).is_absolute():
        return [Path(named)]
    preferred = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    below = [preferred / "opt-supervisor"] if preferred.is_absolute() and preferred.is_dir() else []
    return [*below, Path(f"/tmp/opt-supervisor-{os.geteuid()}")]


def open_runs() -> Iterator[OpenRun]:
    """Yields every run of this user that accepts submissions."""
    for folder in socket_folders():
        for link in sorted(folder.glob("*.run")):
            try:
                with Connection(link.with_suffix(".sock")) as connection:
                    run = connection.call("status")["run"]
            except SupervisorError:
                continue  # The run has ended, is about to end, or does not answer.
            if run.get("ending") == "no":
                yield OpenRun(link.with_suffix(".sock"), Path(run["folder"]), Path(run["plan"]), int(run["pid"]))


def find_run(plan: str | Path) -> OpenRun | None:
    """Finds the first open run of a plan, if there is one."""
    wanted = Path(plan).resolve()
    return next((run for run in open_runs() if run.plan.resolve() == wanted), None)
