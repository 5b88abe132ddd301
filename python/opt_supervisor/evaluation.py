"""Evaluates one candidate, or several at once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .errors import ProgramError, SupervisorError
from .program import program
from .result import Result
from .runs import OpenRun, find_run

#: Time limit for one candidate in seconds, including the time that it waits for others.
DEFAULT_SECONDS = 3600.0
#: The number of candidates that are submitted at once, each over its own connection. A run accepts 32 connections.
MAX_AT_ONCE = 16
#: Suffixes of sources by language, for languages that have a suffix.
SUFFIXES = {"c": ".c", "cpp": ".cpp"}


def evaluate(
    path: str | Path, plan: str | Path = "plan.toml", *, job: str | None = None, timeout: float = DEFAULT_SECONDS
) -> Result:
    """Submits a candidate to an open run of the plan, or makes a short run of the job's baseline and this candidate.

    Args:
        path: a source file, or a library.
        plan: the plan with the captures and settings.
        job: the job that the candidate belongs to; required if the plan has several jobs.
        timeout: time limit in seconds.

    Raises:
        RefusedError: the run does not accept this candidate.
        SupervisorError: the run did not answer.
    """
    run = find_run(plan)
    if run is not None:
        return submit(run, {"sources": [str(Path(path).resolve())]}, job=job, timeout=timeout)
    return _short_run(Path(path), Path(plan), job, timeout)


def evaluate_text(
    text: str,
    language: str = "c",
    plan: str | Path = "plan.toml",
    *,
    job: str | None = None,
    name: str | None = None,
    timeout: float = DEFAULT_SECONDS,
) -> Result:
    """Like `evaluate`, for a source that is not in a file. `name` is the candidate's name in the results."""
    run = find_run(plan)
    if run is not None:
        request = {"text": text, "language": language, **({"name": name} if name else {})}
        return submit(run, request, job=job, timeout=timeout)
    if language not in SUFFIXES:
        raise SupervisorError(f"evaluating a text in `{language}`: the known languages are {', '.join(SUFFIXES)}")
    with tempfile.TemporaryDirectory(prefix="opt-supervisor-") as folder:
        path = Path(folder) / f"{name or 'candidate'}{SUFFIXES[language]}"
        path.write_text(text, encoding="utf-8")
        return _short_run(path, Path(plan), job, timeout)


async def evaluate_async(
    path: str | Path, plan: str | Path = "plan.toml", *, job: str | None = None, timeout: float = DEFAULT_SECONDS
) -> Result:
    """Like `evaluate`, without blocking the event loop."""
    return await asyncio.to_thread(evaluate, path, plan, job=job, timeout=timeout)


def evaluate_all(
    paths: Iterable[str | Path],
    plan: str | Path = "plan.toml",
    *,
    job: str | None = None,
    timeout: float = DEFAULT_SECONDS,
) -> list[Result]:
    """Evaluates several candidates. Results are in the order of the paths.

    If no run is open, one is started for all of them.
    """
    from .session import Session

    run = find_run(plan)
    if run is None:
        with Session(plan) as session:
            return session.evaluate_all(paths, job=job, timeout=timeout)
    return submit_all(run, paths, job=job, timeout=timeout)


def submit(run: OpenRun, request: dict[str, Any], *, job: str | None, timeout: float) -> Result:
    """Submits a candidate to an open run and waits for its result.

    Raises:
        RefusedError: the run does not accept it.
        SupervisorError: the run ended, or took longer than `timeout` seconds.
    """
    with run.connect() as connection:
        params: dict[str, Any] = {**request, **({"job": job} if job else {})}
        submitted = connection.call("submit", **params)
        result = connection.call("result", timeout=timeout, candidate=submitted["candidate"], wait=True)
    return Result.from_json(result)


def submit_all(run: OpenRun, paths: Iterable[str | Path], *, job: str | None, timeout: float) -> list[Result]:
    """Like `submit`, for several candidates at once."""
    requests = [{"sources": [str(Path(path).resolve())]} for path in paths]
    with ThreadPoolExecutor(MAX_AT_ONCE) as threads:
        return list(threads.map(lambda request: submit(run, request, job=job, timeout=timeout), requests))


def _short_run(path: Path, plan: Path, job: str | None, timeout: float) -> Result:
    """Runs ``opt-supervisor eval``.

    Raises:
        SupervisorError: there was no result within `timeout` seconds.
        ProgramError: the program ended without a result.
    """
    command = [str(program()), "eval", str(plan), str(path), "--json", *(["--job", job] if job else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise SupervisorError(f"evaluating {path}: no result in {timeout:g} s") from error
    try:
        return Result.from_json(json.loads(done.stdout))
    except ValueError:
        raise ProgramError(f"evaluating {path}: {done.stderr.strip() or f'exit code {done.returncode}'}") from None
