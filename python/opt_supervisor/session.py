"""A run that stays open while several candidates are evaluated."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from .errors import ProgramError, SupervisorError
from .evaluation import DEFAULT_SECONDS, submit_all
from .program import program
from .result import Result
from .runs import OpenRun, open_runs

#: Time limit in seconds for the start of a run. A run reads the headers of all captures before it answers.
START_SECONDS = 120.0
#: The time in seconds that a run has to end after each request to do so.
END_SECONDS = 60.0
#: Interval in seconds at which a session checks whether its run accepts connections.
POLL_SECONDS = 0.05


class Session:
    """Starts ``opt-supervisor run PLAN --keep-open``, and ends the run when the ``with`` block is left.

    Workers keep running and the baseline is verified only once, so an answer takes little longer than compiling,
    verifying and timing one kernel.

        with Session("plan.toml") as session:
            for path in paths:
                print(session.evaluate(path))

    Raises:
        ProgramError: on entering, if the program was not found or the run did not start in time. If the program ran,
            the message contains its error output.
    """

    def __init__(self, plan: str | Path) -> None:
        self.plan = Path(plan)
        self._process: subprocess.Popen[bytes] | None = None
        self._run: OpenRun | None = None

    def __enter__(self) -> Session:
        self._stderr_file = tempfile.TemporaryFile()
        command = [str(program()), "run", str(self.plan), "--keep-open", "--quiet"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr_file,
            start_new_session=True,
        )
        until = time.monotonic() + START_SECONDS
        while self._run is None:
            if self._process.poll() is not None or time.monotonic() > until:
                self._process.kill()
                self._process.wait()
                raise ProgramError(f"starting a run of {self.plan}: {self._stderr_text()}")
            self._run = next((run for run in open_runs() if run.pid == self._process.pid), None)
            time.sleep(POLL_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def run(self) -> OpenRun:
        """The run of an open session.

        Raises:
            SupervisorError: the session is not open.
        """
        if self._run is None:
            raise SupervisorError(f"using a session of {self.plan}: it is not open (`with Session(plan) as session:`)")
        return self._run

    def evaluate(
        self,
        path: str | Path,
        *,
        job: str | None = None,
        language: str | None = None,
        symbol: str | None = None,
        timeout: float = DEFAULT_SECONDS,
    ) -> Result:
        """Evaluates a candidate. The arguments are those of the function `evaluate`.

        Raises:
            RefusedError: the run refused the candidate, or ended before the candidate had a result.
            SupervisorError: the session is not open, or there was no answer or no result in time.
        """
        (result,) = self.evaluate_all([path], job=job, language=language, symbol=symbol, timeout=timeout)
        return result

    def evaluate_all(
        self,
        paths: Iterable[str | Path],
        *,
        job: str | None = None,
        language: str | None = None,
        symbol: str | None = None,
        timeout: float = DEFAULT_SECONDS,
    ) -> list[Result]:
        """Like `evaluate`, for several candidates at once. Results are in the order of the paths."""
        return submit_all(self.run, paths, job=job, language=language, symbol=symbol, timeout=timeout)

    def close(self) -> None:
        """Asks the run to finish its running attempts and to end.

        A run that does not answer, or has not ended after a minute, gets SIGTERM. After another minute it gets SIGTERM
        again, which ends its attempts, and after a third minute SIGKILL.
        """
        process, run = self._process, self._run
        self._process = self._run = None
        if process is None:
            return
        try:
            if run is not None and process.poll() is None:
                with run.connect() as connection:
                    connection.call("shutdown")
            process.wait(END_SECONDS)
        except (SupervisorError, subprocess.TimeoutExpired):
            for end in (process.terminate, process.terminate, process.kill):
                end()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_SECONDS)
                    break
        finally:
            self._stderr_file.close()

    def _stderr_text(self) -> str:
        self._stderr_file.seek(0)
        text = self._stderr_file.read().decode("utf-8", "replace").strip()
        return text or "it ended or did not answer in time, and its standard error is empty"
