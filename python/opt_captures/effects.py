"""The side effects of a call: writing to an argument, changing running statistics, drawing random numbers.

Effects that are known beforehand follow from rules, because copies must be made before the call. Other effects are
observed while the call runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .errors import NotRecordable
from .names import OpName
from .values import storage_key, tensors

STATE_ADVICE = "captures cannot represent that yet; record the model in eval mode"


@dataclass(frozen=True)
class Treatment:
    """The way in which a call is recorded."""

    #: Values by name. For an in-place call, they are those of the equivalent out-of-place call.
    given: dict[str, Any]
    #: Storages that are known in advance to be written by the call.
    written: frozenset[tuple[str, int]]
    #: A remark about the op for the summary, if any.
    note: str | None = None


def treat(op: OpName, given: Mapping[str, Any], out: object) -> Treatment:
    """Decides before a call how to record it. `out` is the argument with that name, if there is one.

    An in-place call whose only effect is its result is recorded as the same call out of place.

    Raises:
        NotRecordable: it changes something besides its result.
    """
    refuse_state(op, given)
    values = dict(given)
    if out is not None:
        return Treatment(values, _storages([out]), "`out=` was left out of the recorded arguments")
    in_place = op.in_place or values.get("inplace") is True
    if not in_place:
        return Treatment(values, frozenset())
    target = next(tensors(list(values.values())), None)
    if values.get("inplace") is True:
        values["inplace"] = False
    return Treatment(
        values, _storages([target]), "in-place calls were recorded as out of place, with inputs copied before the call"
    )


def refuse_state(op: OpName, given: Mapping[str, Any]) -> None:
    """Refuses calls that update a state of their module.

    Raises:
        NotRecordable: the call writes to the named argument.
    """
    running = given.get("running_mean") is not None or given.get("running_var") is not None
    updates = given.get("training") is True or given.get("use_input_stats") is True
    if op.last in ("batch_norm", "instance_norm") and running and updates:
        raise NotRecordable(f"it updates `running_mean` and `running_var`, and {STATE_ADVICE}")
    if op.last.startswith("embedding") and given.get("max_norm") is not None:
        raise NotRecordable(
            "`max_norm` renormalises rows of `weight` in place, which captures cannot represent yet; renormalise the "
            "table beforehand"
        )


def _storages(values: Iterable[object]) -> frozenset[tuple[str, int]]:
    return frozenset(storage_key(tensor) for tensor in tensors(list(values)))


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Observes every operator that one call executes, without changing anything."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {storage_key(tensor): name for name, value in given.items() for tensor in tensors([value])}
        #: Operators that draw from a generator.
        self.random: set[str] = set()
        #: Parameters whose storage was written to.
        self.written: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled while recording. Otherwise PyTorch would import its compiler, which takes seconds and 150
        # MB.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        drawing = torch.Tag.nondeterministic_seeded in func.tags
        if drawing or func._schema.is_mutable:
            for index, argument in enumerate(func._schema.arguments):
                value = kwargs.get(argument.name, args[index] if index < len(args) else argument.default_value)
                if argument.name == "dropout_p" and value == 0:
                    drawing = False
                if argument.alias_info is not None and argument.alias_info.is_write:
                    names = (self._names.get(storage_key(tensor)) for tensor in tensors([value]))
                    self.written.update(name for name in names if name is not None)
        if drawing:
            self.random.add(str(func))
        return func(*args, **kwargs)

    def judge(self, treatment: Treatment) -> None:
        """Checks after the call whether it can be recorded.

        Raises:
            NotRecordable: it drew random numbers, or wrote to an input of which there is no earlier copy.
        """
        if self.random:
            raise NotRecordable(
                f"it is random ({', '.join(sorted(self.random))}), so its output cannot be computed again"
            )
        known = {name for key, name in self._names.items() if key in treatment.written}
        unknown = sorted(self.written - known)
        if unknown:
            raise NotRecordable(f"it wrote to its input `{unknown[0]}`, and {STATE_ADVICE}")
