"""The package's exceptions. A kernel that fails raises none of them; its `Result` says so."""

from __future__ import annotations


class SupervisorError(Exception):
    """There is no result, or no answer to a request. The base class of the package's other exceptions."""


class ProgramError(SupervisorError):
    """The program was not found, did not start a run in time, or ended without a result.

    If the program ran, the message contains its error output. If that is empty, the message contains the exit code or
    says that the error output is empty.
    """


class RefusedError(SupervisorError):
    """The run refused the request.

    Attributes:
        code: the word that names the reason, such as ``not_found``: `data.code` in the answer of the control socket
            (its reference page lists the words).
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
