"""The package's exceptions. A kernel that fails raises none of them; its `Result` says so."""

from __future__ import annotations


class SupervisorError(Exception):
    """A request could not be sent, or was not answered."""


class ProgramError(SupervisorError):
    """The program was not found, or ended without a result. The message contains its output."""


class RefusedError(SupervisorError):
    """The run understood the request and refused it.

    Attributes:
        code: the error's ``data.code``, such as ``not_found``, which does not change in later versions.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
