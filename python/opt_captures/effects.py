"""The side effects of a call: writing to an argument, changing running statistics, drawing random numbers.

Values that a call overwrites must be copied before the call, so rules predict which values these are. Other effects are
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
from .values import overlaps, storage_key, tensors

#: The reason why an unexpected write cannot be recorded, and advice.
STATE_ADVICE = "there is no copy of its value before the call (record the model in eval mode)"


@dataclass(frozen=True)
class Treatment:
    """How a call is recorded."""

    #: Values by name. For an in-place call, the values of the equivalent out-of-place call.
    given: dict[str, Any]
    #: Storages to which the call is expected to write.
    written: frozenset[tuple[str, int]]
    #: A remark about the op for the summary, if any.
    note: str | None = None
    #: Parameters whose values after the call are recorded too.
    mutates: tuple[str, ...] = ()


def treat(op: OpName, given: Mapping[str, Any], out: object, *, in_place: bool = False) -> Treatment:
    """Decides before a call how to record it.

    `out` is the argument with that name, if there is one. `given` has all other arguments.

    Arguments that a call changes besides computing its result are recorded before and after the call. An in-place call
    whose only effect is its result is recorded as the same call out of place. But if `in_place` is set, the argument
    that such a call changes is recorded before and after the call. Calls with `out` are recorded without it in both
    cases.

    Raises:
        NotRecordable: an argument that would be recorded before and after the call shares memory with another one.
    """
    values = dict(given)
    state = updated_state(op, values)
    if state:
        return _mutating(values, state)
    if out is not None:
        return Treatment(values, _storages([out]), "`out=` was left out of the recorded arguments")
    if not (op.in_place or values.get("inplace") is True):
        return Treatment(values, frozenset())
    target = next((name for name, value in values.items() if next(tensors([value]), None) is not None), None)
    if in_place and target is not None:
        return _mutating(values, (target,))
    if values.get("inplace") is True:
        values["inplace"] = False
    written = _storages([next(tensors(list(values.values())), None)])
    return Treatment(
        values, written, "in-place calls were recorded as out of place, with inputs copied before the call"
    )


def updated_state(op: OpName, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the parameters whose tensors the call updates besides computing its result.

    >>> updated_state(OpName("torch.nn.functional.embedding"), {"weight": torch.ones(2, 2), "max_norm": 1.0})
    ('weight',)
    """
    names: tuple[str, ...] = ()
    if op.last in ("batch_norm", "instance_norm"):
        if given.get("training") is True or given.get("use_input_stats") is True:
            names = ("running_mean", "running_var")
    elif op.last.startswith("embedding") and given.get("max_norm") is not None:
        names = ("weight",)
    return tuple(name for name in names if given.get(name) is not None)


def _mutating(values: dict[str, Any], names: tuple[str, ...]) -> Treatment:
    """Returns the treatment of a call that changes these parameters.

    Raises:
        NotRecordable: one of them shares memory with another argument.
    """
    for name in names:
        for target in tensors([values[name]]):
            others = (other for value in values.values() for other in tensors([value]))
            if any(overlaps(target, other) and not _is_same_view(target, other) for other in others):
                raise NotRecordable(f"it changes `{name}`, which shares memory with another argument")
    note = f"values after the call were recorded too: {', '.join(names)}"
    return Treatment(values, _storages([values[name] for name in names]), note, names)


def _is_same_view(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.data_ptr(), one.dtype, one.shape, one.stride()) == (
        other.data_ptr(),
        other.dtype,
        other.shape,
        other.stride(),
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
        # With True, PyTorch would import its compiler, which takes seconds and 150 MB. Nothing is compiled while
        # recording.
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
            NotRecordable: the call drew random numbers, or wrote to an input that was not copied before the call.
        """
        if self.random:
            raise NotRecordable(
                f"it is random ({', '.join(sorted(self.random))}), so its output cannot be computed again"
            )
        known = {name for key, name in self._names.items() if key in treatment.written}
        unknown = sorted(self.written - known)
        if unknown:
            raise NotRecordable(f"it wrote to its input `{unknown[0]}`, and {STATE_ADVICE}")
