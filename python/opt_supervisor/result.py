"""The result of one candidate."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The longest text in a notebook's table and in artifacts, in characters.
MAX_TEXT = 16 * 1024


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval.

    >>> str(Interval(5.131, 4.01, 5.26))
    '5.13x [4.01–5.26]'
    """

    value: float
    ci_low: float
    ci_high: float

    def __str__(self) -> str:
        return f"{self.value:.3g}x [{self.ci_low:.3g}–{self.ci_high:.3g}]"


@dataclass(frozen=True)
class Result:
    """The result of a candidate.

    Attributes:
        candidate: ``JOB/NAME``.
        status: such as ``PASSED`` or ``INCORRECT_NUMERICAL``. The reference page of results lists all of them.
        blame: what caused the failure, such as ``candidate`` or ``host``; None if nothing went wrong.
        detail: one line that says what happened, if the status does not say everything.
        feedback: text for the person or program that writes the next version.
        rank: its current rank among the job's candidates; None if it is not ranked.
        speedup: the speed-up over the job's baseline; None if the candidate was not timed beside a baseline.
        median_time_ms: the median time per call; None if it was not timed.
        raw: every field of the candidate in ``summary.json``.

    >>> result = Result.from_json({"candidate": "softmax/fast", "status": "PASSED", "feedback": "",
    ...     "speedup": {"value": 2.0, "ci_low": 1.5, "ci_high": 2.5}, "profile": {"median_time_ms": 0.1}})
    >>> result.passed, result.speedup.ci_low
    (True, 1.5)
    >>> result.metrics["combined_score"]
    1.5
    """

    candidate: str
    status: str
    blame: str | None = None
    detail: str | None = None
    feedback: str = ""
    rank: int | None = None
    speedup: Interval | None = None
    median_time_ms: float | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Result:
        """Converts the answer of ``result``, or of ``eval --json``."""
        speedup = document.get("speedup")
        profile = document.get("profile") or {}
        median = profile.get("median_time_ms")
        return cls(
            candidate=str(document.get("candidate") or document.get("name")),
            status=str(document.get("status")),
            blame=document.get("blame"),
            detail=document.get("detail"),
            feedback=document.get("feedback") or "",
            rank=document.get("rank"),
            speedup=Interval(*(float(speedup[key]) for key in ("value", "ci_low", "ci_high"))) if speedup else None,
            median_time_ms=float(median) if median is not None else None,
            raw=document,
        )

    @property
    def passed(self) -> bool:
        """True if the status is ``PASSED``."""
        return self.status == "PASSED"

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers for an evolutionary loop. Higher is better, except for times. Unknown numbers are left out.

        ``combined_score`` is 0 if the candidate did not pass or was not timed. Otherwise it is the lower end of the
        speed-up's interval or, without a speed-up, the number of calls per millisecond.
        """
        verify = self.raw.get("verify") or {}
        numbers = {"passed": float(self.passed), "combined_score": 0.0}
        if verify.get("entries_run"):
            numbers["entries_passed"] = verify["entries_passed"] / verify["entries_run"]
        if self.speedup is not None:
            numbers["speedup"], numbers["speedup_low"] = self.speedup.value, self.speedup.ci_low
        if self.median_time_ms is not None:
            numbers["median_time_ms"] = self.median_time_ms
        if self.passed and self.speedup is not None:
            numbers["combined_score"] = self.speedup.ci_low
        elif self.passed and self.median_time_ms:
            numbers["combined_score"] = 1 / self.median_time_ms
        return numbers

    @property
    def artifacts(self) -> dict[str, str]:
        """Texts for the next prompt. Empty texts are left out, and long ones are cut."""
        build = self.raw.get("build") or {}
        failures = self.raw.get("failures") or []
        texts = {
            "status": self.status,
            "feedback": self.feedback,
            "compiler_log": str(build.get("log_head") or ""),
            "stderr": str(self.raw.get("stderr_tail") or ""),
            "stdout": str(self.raw.get("stdout_tail") or ""),
            "failures": json.dumps(failures, indent=1) if failures else "",
        }
        return {name: text[:MAX_TEXT] for name, text in texts.items() if text}

    def __str__(self) -> str:
        speed = f", {self.speedup}" if self.speedup else ""
        return f"{self.candidate}: {self.status}{speed}"

    def _repr_html_(self) -> str:
        rows = {
            "status": self.status,
            "speed-up": str(self.speedup or ""),
            "median": f"{self.median_time_ms * 1000:.3g} µs" if self.median_time_ms is not None else "",
            "blame": self.blame or "",
            "feedback": self.feedback,
        }
        left = "style='text-align:left'"
        cells = "".join(
            f"<tr><th {left}>{name}</th><td {left}><pre>{html.escape(text[:MAX_TEXT])}</pre></td></tr>"
            for name, text in rows.items()
            if text
        )
        return f"<table><caption>{html.escape(self.candidate)}</caption>{cells}</table>"
