"""The summary of a recording: as text for people, and as JSON beside the captures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .op import OpRecord


@dataclass(frozen=True)
class Summary:
    """How many calls of each op were seen, kept and left out, and why some were left out."""

    folder: Path
    place: Callable[[str], Path]
    seed: int
    ops: Sequence[OpRecord]
    notes: Sequence[str]

    def to_json(self) -> str:
        """The contents of ``recorded.json``."""
        document = {
            "schema": 1,
            "torch": torch.__version__,
            "seed": self.seed,
            "notes": list(self.notes),
            "ops": [_op(op) for op in self.ops],
        }
        return json.dumps(document, indent=1) + "\n"

    def __str__(self) -> str:
        lines = []
        for op in sorted(self.ops, key=lambda op: (-op.kept, op.name)):
            if op.kept:
                where = self.place(op.op.folder)
                lines.append(f"{op.name}: {op.kept} of {op.calls} calls, {_size(op.bytes)}, in {where}")
            else:
                lines.append(f"{op.name}: none of {op.calls} calls")
            lines += [f"  {note}" for note in sorted(op.notes)]
            lines += [f"  left out {count}: {reason}" for reason, count in op.left_out.most_common()]
        lines += list(self.notes)
        return "\n".join(lines) or "no call that can be recorded was seen"


def _op(op: OpRecord) -> dict[str, Any]:
    classes = sorted(op.classes.values(), key=lambda it: -it.reservoir.calls)
    return {
        "name": op.name,
        "folder": op.op.folder,
        "calls": op.calls,
        "kept": op.kept,
        "bytes": op.bytes,
        "notes": sorted(op.notes),
        "left_out": [{"reason": reason, "calls": count} for reason, count in op.left_out.most_common()],
        "classes": [
            {
                "call": it.text,
                "calls": it.reservoir.calls,
                "entries": [f"entry_{entry:06}" for entry in sorted(it.entries.values())],
            }
            for it in classes
        ],
    }


def _size(count: int) -> str:
    """
    >>> _size(1536)
    '1.5 KiB'
    """
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
