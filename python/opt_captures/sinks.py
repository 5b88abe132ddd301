"""Sinks, the destinations of captures, and the sink that writes files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from .errors import RecordError

if TYPE_CHECKING:
    from .summary import Summary

#: The file with a recording's summary, beside the captures.
INDEX = "recorded.json"


class Sink(Protocol):
    """A destination to which captures are written one by one."""

    folder: Path

    def open(self) -> None:
        """Checks that nothing would be overwritten, and makes the folder."""

    def place(self, op_folder: str) -> Path:
        """The path of an op's captures, as a plan names it."""

    def min_bytes(self, inputs: Sequence[int]) -> int:
        """The smallest number of bytes that a call with inputs of these sizes adds on disk."""

    def write(self, op_folder: str, entry: str, capture: dict[str, Any]) -> int:
        """Writes or replaces an entry. Returns the bytes that it adds on disk. Raises OSError."""

    def close(self, summary: Summary) -> None:
        """Writes the summary of the recording."""


def refuse_nonempty_folder(folder: Path) -> None:
    """Refuses a folder that is not empty.

    Raises:
        RecordError: it is not empty, or is a file.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecordError(
            f"recording into {folder}: it is not an empty folder, and nothing is overwritten (name another "
            "folder, or remove this one)"
        )


def replace(path: Path, text: str) -> None:
    """Writes a file in one step, so that it is never partial."""
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


class FileSink:
    """Writes one `.pt` file for each call, in a folder for each op."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> None:
        refuse_nonempty_folder(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def place(self, op_folder: str) -> Path:
        return self.folder / op_folder

    def min_bytes(self, inputs: Sequence[int]) -> int:
        return sum(inputs)

    def write(self, op_folder: str, entry: str, capture: dict[str, Any]) -> int:
        folder = self.folder / op_folder
        folder.mkdir(exist_ok=True)
        draft = folder / f".{entry}.part"
        target = folder / entry
        before = target.stat().st_size if target.exists() else 0
        try:
            with draft.open("wb") as file:
                torch.save(capture, file)
                written = file.tell()
            draft.replace(target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return written - before

    def close(self, summary: Summary) -> None:
        replace(self.folder / INDEX, summary.to_json())
