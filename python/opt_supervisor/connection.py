"""A connection to the control socket of a run. It uses JSON-RPC 2.0, with one message per line."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import TracebackType
from typing import Any

from .errors import RefusedError, SupervisorError

#: Time limit for an answer, in seconds, unless `call` is given another.
ANSWER_SECONDS = 30.0


class Connection:
    """A client of one run.

    It is not safe for concurrent use, so each thread needs its own connection.

    Raises:
        SupervisorError: connecting failed, for example because the run has ended.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            self._socket.connect(str(self.path))
        except OSError as error:
            self._socket.close()
            raise SupervisorError(f"connecting to {self.path}: {error} (is the run still open?)") from error
        self._lines = self._socket.makefile("rw", encoding="utf-8")
        self._id = 0

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. The run continues."""
        self._lines.close()
        self._socket.close()

    def call(self, method: str, *, timeout: float | None = None, **params: Any) -> dict[str, Any]:
        """Sends a request and returns the answer. The reference page of the control socket lists the methods.

        Raises:
            RefusedError: the run refused the request.
            SupervisorError: the run ended, or did not answer within `timeout` seconds (30 by default).
        """
        self._id += 1
        message = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        self._socket.settimeout(ANSWER_SECONDS if timeout is None else timeout)
        try:
            print(json.dumps(message), file=self._lines, flush=True)
            for line in self._lines:
                answer = json.loads(line)
                if answer.get("id") == self._id:
                    return _result(answer)
        except TimeoutError as error:
            raise SupervisorError(f"waiting for `{method}`: no answer in {self._socket.gettimeout():g} s") from error
        except (OSError, ValueError) as error:
            raise SupervisorError(f"calling `{method}` at {self.path}: {error}") from error
        raise SupervisorError(f"calling `{method}`: the run closed the connection (it may have ended)")


def _result(answer: dict[str, Any]) -> dict[str, Any]:
    error = answer.get("error")
    if error is not None:
        code = str((error.get("data") or {}).get("code", error.get("code")))
        raise RefusedError(code, str(error.get("message", "refused")))
    result = answer.get("result")
    return result if isinstance(result, dict) else {}
