"""Runs opt-supervisor to find out whether a kernel is right, and how fast it is.

    from opt_supervisor import evaluate

    result = evaluate("kernels/fast.c", plan="plan.toml")
    print(result.passed, result.speedup)

Except for its pytest plugin, the package needs only the standard library and the program. `Session` keeps a run open,
so that its workers and its baseline are ready for the next kernel. `evaluate_all` evaluates several kernels at once.
"""

from __future__ import annotations

from .connection import Connection
from .errors import ProgramError, RefusedError, SupervisorError
from .evaluation import evaluate, evaluate_all, evaluate_async, evaluate_text
from .result import Interval, Result
from .runs import OpenRun, find_run
from .session import Session

__all__ = [
    "Connection",
    "Interval",
    "OpenRun",
    "ProgramError",
    "RefusedError",
    "Result",
    "Session",
    "SupervisorError",
    "evaluate",
    "evaluate_all",
    "evaluate_async",
    "evaluate_text",
    "find_run",
]
