"""Writes plans and the other files of an import."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import RecordError

#: The usual name of a plan.
NAME = "plan.toml"


@dataclass
class Candidate:
    """A kernel that a plan names."""

    name: str
    sources: Sequence[str]
    language: str
    symbol: str | None = None


@dataclass
class Job:
    """An op with its captures and kernels.

    `refused` lists the kernels that are left out, with reasons. They become comments in the plan. `skeleton` is the
    path of a kernel to fill in, relative to the plan's folder.
    """

    name: str
    captures: str
    candidates: list[Candidate] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    baseline: str | None = "torch"
    skeleton: str | None = None


def text(head: str, settings: Sequence[str], jobs: Sequence[Job]) -> str:
    """Returns the plan: a comment, the given tables, and the jobs.

    >>> print(text("one", ["[build]"], [Job("relu", "c", [Candidate("fast", ["k.cpp"], "cpp")])]))
    # one
    <BLANKLINE>
    [build]
    <BLANKLINE>
    [[job]]
    name = "relu"
    captures = "c"
    baseline = "torch"
    <BLANKLINE>
    [[job.candidate]]
    name = "fast"
    sources = ["k.cpp"]
    language = "cpp"
    <BLANKLINE>
    """
    lines = [*(f"# {line}" for line in head.splitlines()), "", *settings]
    for job in jobs:
        lines += ["", "[[job]]", f"name = {_quoted(job.name)}", f"captures = {_quoted(job.captures)}"]
        if job.baseline is not None:
            lines.append(f"baseline = {_quoted(job.baseline)}")
        if job.skeleton is not None:
            lines.append(f"# candidates = [{_quoted(job.skeleton)}]  # a kernel to fill in")
        for it in job.candidates:
            sources = ", ".join(_quoted(source) for source in it.sources)
            lines += ["", "[[job.candidate]]", f"name = {_quoted(it.name)}", f"sources = [{sources}]"]
            lines.append(f"language = {_quoted(it.language)}")
            if it.symbol is not None:
                lines.append(f"symbol = {_quoted(it.symbol)}")
        if job.refused:
            lines += ["", *(f"# left out: {name}: {why}" for name, why in job.refused)]
    return "\n".join(lines) + "\n"


def build_settings() -> list[str]:
    """Returns the table that makes a plan use the interpreter that runs this code."""
    return ["[build]", f"python = {_quoted(sys.executable)}"]


def write(path: Path, plan: str) -> None:
    """Writes a plan, or another file of an import, if it does not exist yet.

    Raises:
        RecordError: the file exists, or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(plan)
    except OSError as error:
        raise RecordError(f"writing {path}: {error.strerror}") from error


def relative(out: Path, path: Path) -> str:
    """Returns a path as a plan in `out` must write it."""
    return os.path.relpath(path.resolve(), out.resolve())


def _quoted(value: str) -> str:
    """A string in TOML's syntax, which is the same as JSON's for these strings."""
    return json.dumps(value)
