"""What can go wrong. That a kernel fails is no error but a `Result`."""

from __future__ import annotations


class SupervisorError(Exception):
    """The question could not be asked, or was not answered."""


class ProgramError(SupervisorError):
    """The program is not there, or ended without a result. The message holds what it said."""


class RefusedError(SupervisorError):
    """The run understood the request and refused it.

    Attributes:
        code: a word that does not change, such as ``not_found``.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
