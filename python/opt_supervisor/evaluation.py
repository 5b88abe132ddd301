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

#: Time limit in seconds for a candidate's result, from its submission, or from the start of its short run.
DEFAULT_SECONDS = 3600.0
#: The largest number of candidates that are submitted at once, each over its own connection. A run accepts 32
#: connections.
MAX_AT_ONCE = 16
SUFFIXES = {
    "c": ".c",
    "cpp": ".cpp",
    "torch-extension": ".cpp",
    "python": ".py",
    "triton": ".py",
    "triton-device": ".py",
    "cuda": ".cu",
    "cuda-device": ".cu",
    "torch-cuda": ".cu",
    "cuda-recorded": ".cu",
}


def evaluate(
    path: str | Path,
    plan: str | Path = "plan.toml",
    *,
    job: str | None = None,
    language: str | None = None,
    symbol: str | None = None,
    timeout: float = DEFAULT_SECONDS,
) -> Result:
    """Evaluates a candidate in an open run of the plan or, without one, in a short run with the job's baseline.

    Args:
        path: a source file, or a library.
        plan: the plan with the captures and settings.
        job: the job that the candidate belongs to; required if the plan has several jobs.
        language: the candidate's language, as in a plan; required for languages whose files have the suffixes of other
            languages, such as ``torch-extension``, ``torch-cuda`` and ``triton``.
        symbol: the function to call; by default, that of the language.
        timeout: time limit for the result, in seconds.

    Raises:
        RefusedError: the open run refused this candidate, or ended before the candidate had a result.
        ProgramError: the program was not found, or a short run ended without a result.
        SupervisorError: there was no answer or no result in time.
    """
    run = find_run(plan)
    if run is not None:
        return submit(run, _request(path, language, symbol), job=job, timeout=timeout)
    return _short_run(Path(path), Path(plan), job, language, symbol, timeout)


def evaluate_text(
    text: str,
    language: str = "c",
    plan: str | Path = "plan.toml",
    *,
    job: str | None = None,
    name: str | None = None,
    symbol: str | None = None,
    timeout: float = DEFAULT_SECONDS,
) -> Result:
    """Like `evaluate`, for a source that is not in a file. `name` is the candidate's name in the results."""
    run = find_run(plan)
    if run is not None:
        request = {"text": text, "language": language, **_given(name=name, symbol=symbol)}
        return submit(run, request, job=job, timeout=timeout)
    if language not in SUFFIXES:
        raise SupervisorError(f"evaluating a text in `{language}`: the known languages are {', '.join(SUFFIXES)}")
    with tempfile.TemporaryDirectory(prefix="opt-supervisor-") as folder:
        path = Path(folder) / f"{name or 'candidate'}{SUFFIXES[language]}"
        path.write_text(text, encoding="utf-8")
        return _short_run(path, Path(plan), job, language, symbol, timeout)


async def evaluate_async(
    path: str | Path,
    plan: str | Path = "plan.toml",
    *,
    job: str | None = None,
    language: str | None = None,
    symbol: str | None = None,
    timeout: float = DEFAULT_SECONDS,
) -> Result:
    """Like `evaluate`, without blocking the event loop."""
    return await asyncio.to_thread(evaluate, path, plan, job=job, language=language, symbol=symbol, timeout=timeout)


def evaluate_all(
    paths: Iterable[str | Path],
    plan: str | Path = "plan.toml",
    *,
    job: str | None = None,
    language: str | None = None,
    symbol: str | None = None,
    timeout: float = DEFAULT_SECONDS,
) -> list[Result]:
    """Evaluates several candidates with the same language and symbol. Results are in the order of the paths.

    If no run of the plan is open, one is started for all of them.
    """
    from .session import Session

    run = find_run(plan)
    if run is None:
        with Session(plan) as session:
            return session.evaluate_all(paths, job=job, language=language, symbol=symbol, timeout=timeout)
    return submit_all(run, paths, job=job, language=language, symbol=symbol, timeout=timeout)


def submit(run: OpenRun, request: dict[str, Any], *, job: str | None, timeout: float) -> Result:
    """Submits a candidate to an open run and waits for its result.

    Raises:
        RefusedError: the run refused the candidate, or ended before the candidate had a result.
        SupervisorError: the run could not be reached, or took longer than `timeout` seconds.
    """
    with run.connect() as connection:
        params: dict[str, Any] = {**request, **({"job": job} if job else {})}
        submitted = connection.call("submit", **params)
        result = connection.call("result", timeout=timeout, candidate=submitted["candidate"], wait=True)
    return Result.from_json(result)


def submit_all(
    run: OpenRun,
    paths: Iterable[str | Path],
    *,
    job: str | None,
    language: str | None,
    symbol: str | None,
    timeout: float,
) -> list[Result]:
    """Like `submit`, for several candidates at once."""
    requests = [_request(path, language, symbol) for path in paths]
    with ThreadPoolExecutor(MAX_AT_ONCE) as threads:
        return list(threads.map(lambda request: submit(run, request, job=job, timeout=timeout), requests))


def _given(**options: str | None) -> dict[str, str]:
    """Returns the options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


def _request(path: str | Path, language: str | None, symbol: str | None) -> dict[str, Any]:
    """Returns the parameters that submit a file."""
    return {"sources": [str(Path(path).resolve())], **_given(language=language, symbol=symbol)}


def _short_run(
    path: Path, plan: Path, job: str | None, language: str | None, symbol: str | None, timeout: float
) -> Result:
    """Runs ``opt-supervisor eval``.

    Raises:
        SupervisorError: there was no result within `timeout` seconds.
        ProgramError: the program ended without a result.
    """
    options = _given(job=job, language=language, symbol=symbol).items()
    command = [str(program()), "eval", str(plan), str(path), "--json"]
    command += [word for name, value in options for word in (f"--{name}", value)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise SupervisorError(f"evaluating {path}: no result in {timeout:g} s") from error
    try:
        return Result.from_json(json.loads(done.stdout))
    except ValueError:
        raise ProgramError(f"evaluating {path}: {done.stderr.strip() or f'exit code {done.returncode}'}") from None
