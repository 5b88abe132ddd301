"""The state of an op, or of one of its forms, while recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import NotRecordable
from .names import OpName
from .reservoir import Reservoir
from .signatures import Signature
from .values import check, describe

#: The largest number of classes of an op. Calls of further classes are counted together and not kept.
MAX_CLASSES = 10_000


@dataclass
class CallClass:
    """Calls with the same shapes, strides, dtypes and plain values. `text` describes them."""

    text: str
    reservoir: Reservoir
    #: For each slot, the number of the entry that holds its call.
    entries: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Slot:
    """Where a kept call goes: a slot of its class, and the number of its entry in the op's folder."""

    call_class: CallClass
    index: int
    entry: int


class OpRecord:
    """One op, or one of its forms: its signature, the classes of its calls, and what was left out."""

    def __init__(self, op: OpName, signature: Signature | None, per_class: int, per_op: int, seed: int) -> None:
        self.op = op
        self.calls = 0
        self.left_out: Counter[str] = Counter()
        self.notes: set[str] = set()
        self.classes: dict[str, CallClass] = {}
        self.bytes = 0
        self._per_class, self._per_op, self._seed = per_class, per_op, seed
        self._signature = signature
        self._next = 0

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def kept(self) -> int:
        """The number of entries, each of which holds one call."""
        return self._next

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """True if a call fits this op's signature. Each form of a function has its own record."""
        if self._signature is None:
            return False
        try:
            self._signature.bind(args, kwargs)
        except NotRecordable:
            return False
        return True

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the call's values by name.

        Raises:
            NotRecordable: nothing is known about the function's parameters, or the call does not fit them.
        """
        if self._signature is None:
            raise NotRecordable("its parameters are not known")
        return self._signature.bind(args, kwargs)

    def signature_as_capture(self) -> dict[str, Any] | None:
        """Returns the op's ``signature``, with those defaults that a capture can contain."""
        if self._signature is None:
            return None
        capture = self._signature.as_capture()
        for name, value in list(capture["defaults"].items()):
            try:
                check(value, name)
            except NotRecordable:
                del capture["defaults"][name]
        return capture

    def offer(self, given: Mapping[str, Any]) -> Slot | None:
        """Decides whether to keep the call. Returns its slot, or None if it is not kept.

        Raises:
            NotRecordable: the op has reached its limit of entries or classes.
        """
        text = ", ".join(f"{name}={describe(value)}" for name, value in given.items())
        found = self.classes.get(text)
        if found is None:
            if len(self.classes) == MAX_CLASSES:
                raise NotRecordable(f"it has more than {MAX_CLASSES} classes of calls")
            found = CallClass(text, Reservoir(self._per_class, f"{self._seed} {self.op.folder} {text}"))
            self.classes[text] = found
        index = found.reservoir.offer()
        if index is None:
            return None
        entry = found.entries.get(index)
        if entry is None:
            if self._next == self._per_op:
                raise NotRecordable("the limit `per_op` was reached")
            entry = self._next
        return Slot(found, index, entry)

    def keep(self, slot: Slot, added: int, note: str | None) -> None:
        """Records that the call was written, and how many bytes it added to the disk."""
        slot.call_class.entries[slot.index] = slot.entry
        self.bytes += added
        self._next = max(self._next, slot.entry + 1)
        if note is not None:
            self.notes.add(note)

    def leave_out(self, reason: str) -> None:
        """Counts a call that cannot be kept, by its reason."""
        self.left_out[reason] += 1
