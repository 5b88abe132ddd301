"""The errors of recording and importing."""

from __future__ import annotations


class RecordError(Exception):
    """Recording or importing was not possible. The message says what was attempted and why it failed."""


class NotRecordable(Exception):
    """A single call cannot be recorded.

    The recorder lets the model continue, counts the reasons, and reports them at the end. An import leaves out the
    problem or definition that made the call.
    """
