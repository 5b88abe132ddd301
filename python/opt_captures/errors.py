"""The errors of recording."""

from __future__ import annotations


class RecordError(Exception):
    """Recording was not possible. The message says what was attempted, why it failed, and what to do."""


class NotRecordable(Exception):
    """A single call cannot be recorded. The model continues, and the reason is counted and reported at the end."""
