"""The package's exceptions. A kernel that fails raises none of them; its `Result` says so."""

from __future__ import annotations


class SupervisorError(Exception):
    """There is no result, or no answer to a request."""


class ProgramError(SupervisorError):
    """The program was not found, or ended without a result. The message contains its output."""


class RefusedError(SupervisorError):
    """The run refused the request.

    Attributes:
        code: the error's ``data.code``, such as ``not_found``.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
