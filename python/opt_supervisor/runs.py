"""Live runs, found by the links that they leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .connection import Connection
from .errors import SupervisorError

#: Environment variable with the folder for sockets, the same as for the program.
VARIABLE = "OPT_SUPERVISOR_RUNTIME_DIR"


@dataclass(frozen=True)
class OpenRun:
    """A live run.

    Attributes:
        socket: path of its control socket.
        folder: path of its results.
        plan: its plan.
        pid: process id of its supervisor.
    """

    socket: Path
    folder: Path
    plan: Path
    pid: int

    def connect(self) -> Connection:
        """A connection to it.

        Raises:
            SupervisorError: it is gone.
        """
        return Connection(self.socket)


def socket_folders() -> list[Path]:
    """Folders that may contain sockets, the preferred one first."""
    named = os.environ.get(VARIABLE, "")
    if Path(named).is_absolute():
        return [Path(named)]
    preferred = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    below = [preferred / "opt-supervisor"] if preferred.is_absolute() and preferred.is_dir() else []
    return [*below, Path(f"/tmp/opt-supervisor-{os.geteuid()}")]


def open_runs() -> Iterator[OpenRun]:
    """Every run of this user that accepts submissions."""
    for folder in socket_folders():
        for link in sorted(folder.glob("*.run")):
            try:
                with Connection(link.with_suffix(".sock")) as connection:
                    run = connection.call("status")["run"]
            except SupervisorError:
                continue  # It has ended, or is about to.
            if run.get("ending") == "no":
                yield OpenRun(link.with_suffix(".sock"), Path(run["folder"]), Path(run["plan"]), int(run["pid"]))


def find_run(plan: str | Path) -> OpenRun | None:
    """The first open run of a plan, if there is one."""
    wanted = Path(plan).resolve()
    return next((run for run in open_runs() if run.plan.resolve() == wanted), None)
