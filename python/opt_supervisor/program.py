"""Finds the program."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

from .errors import ProgramError

NAME = "opt-supervisor"
#: Environment variable with the program's path. If it is not set, this module looks for the program beside this Python
#: and on the `PATH`.
VARIABLE = "OPT_SUPERVISOR"


def program() -> Path:
    """Finds the program that `OPT_SUPERVISOR` names, or the one beside this Python, or the one on the `PATH`.

    Raises:
        ProgramError: it was not found.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise ProgramError(f"looking for {NAME}: {VARIABLE} names {named}, which is not a file")
        return Path(named)
    beside = Path(sysconfig.get_path("scripts")) / NAME
    if beside.is_file():
        return beside
    found = shutil.which(NAME)
    if found is None:
        raise ProgramError(
            f"looking for {NAME}: it is neither in {beside.parent} nor on the PATH (install it, or set {VARIABLE})"
        )
    return Path(found)
