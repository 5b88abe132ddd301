"""The functions that can be recorded, and their names.

An op has one name, however it is called. ``x @ y``, ``x.matmul(y)`` and ``torch.matmul(x, y)`` are all
``torch.matmul``. ``x.add_(y)`` is ``torch.add`` in place.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional
from torch.overrides import get_overridable_functions, resolve_name

from .errors import RecordError

FUNCTIONAL = "torch.nn.functional."
#: Selects every function whose calls the recorder can observe.
AUTO = "auto"
#: The modules with the functions that can be recorded. If a function is in several modules, the first of them is part
#: of its name.
MODULES: tuple[tuple[str, Any], ...] = (
    (FUNCTIONAL, torch.nn.functional),
    ("torch.", torch),
    ("torch.linalg.", torch.linalg),
    ("torch.fft.", torch.fft),
    ("torch.special.", torch.special),
)
#: The attribute of a wrapper that contains the original function.
RECORDED = "__recorded__"
#: Functions that only copy, convert or describe a tensor, or whose result is uninitialised memory.
NOT_COMPUTING = frozenset({"clone", "detach", "contiguous", "to", "empty_like", "new_empty", "numel", "size", "dim"})


@dataclass(frozen=True)
class OpName:
    """The name of a function, and whether the call is in place, which means that it writes to its first argument."""

    name: str
    in_place: bool = False
    #: The number of the function's form, from 1. For example, `torch.max(x)` and `torch.max(x, dim=1)` are two forms.
    form: int = 1

    @property
    def last(self) -> str:
        """The name without its module.

        >>> OpName("torch.nn.functional.relu").last
        'relu'
        """
        return self.name.rsplit(".", 1)[1]

    @property
    def folder(self) -> str:
        """The folder for the op's captures.

        >>> OpName("torch.nn.functional.relu").folder, OpName("torch.max", form=2).folder
        ('relu', 'torch_max_2')
        """
        return self.name.removeprefix(FUNCTIONAL).replace(".", "_") + (f"_{self.form}" if self.form > 1 else "")


@dataclass(frozen=True)
class Patch:
    """A function that is replaced while recording: an attribute of `owner`, where composite functions look it up."""

    owner: Any
    attribute: str
    original: Callable[..., Any]
    op: OpName


def canonical(name: str) -> OpName | None:
    """Returns the op for a function's name in PyTorch. None if there is no such function, or it cannot be recorded.

    >>> canonical("torch.Tensor.add_")
    OpName(name='torch.add', in_place=True, form=1)
    >>> canonical("torch.Tensor.__matmul__").name
    'torch.matmul'
    >>> canonical("torch.Tensor.dtype.__get__") is None
    True
    """
    name = name.replace("torch.functional.", "torch.", 1)
    prefix, _, last = name.rpartition(".")
    if prefix == "torch.Tensor":
        prefix = "torch"
        if last.startswith("__") and last.endswith("__"):
            last = last.strip("_")
    owner = next((module for start, module in MODULES if start == prefix + "."), None)
    if owner is None or not last or last.startswith("_"):
        return None
    in_place = last.endswith("_")
    last = last.rstrip("_") if in_place else last
    if last in NOT_COMPUTING or not callable(getattr(owner, last, None)):
        return None
    return OpName(f"{prefix}.{last}", in_place)


def function_of(name: str) -> Callable[..., Any]:
    """Returns the original function with this name, even if a wrapper replaces it while recording."""
    prefix, _, last = name.rpartition(".")
    function: Callable[..., Any] = getattr(dict(MODULES)[prefix + "."], last)
    return getattr(function, RECORDED, function)


def in_place_name(op: OpName) -> str:
    """Returns the name of the function that does the same in place.

    >>> in_place_name(OpName("torch.add", in_place=True))
    'torch.Tensor.add_'
    >>> in_place_name(OpName("torch.nn.functional.elu", in_place=True))
    'torch.nn.functional.elu_'
    """
    last = op.last + "_"
    return (FUNCTIONAL if hasattr(torch.nn.functional, last) else "torch.Tensor.") + last


def schema_name(name: str) -> str:
    """Returns the name of a function's operator in ATen.

    >>> schema_name("torch.linalg.norm"), schema_name("torch.nn.functional.gelu")
    ('aten::linalg_norm', 'aten::gelu')
    """
    prefix, _, last = name.rpartition(".")
    group = prefix.rpartition(".")[2]
    return f"aten::{group}_{last}" if group in ("linalg", "fft", "special") else f"aten::{last}"


def selected(ops: Iterable[str] | str) -> frozenset[str] | None:
    """Checks and returns the names to record. ``None`` means all functions.

    Raises:
        RecordError: a name does not belong to a function that can be recorded.
    """
    if isinstance(ops, str):
        if ops == AUTO:
            return None
        ops = [part.strip() for part in ops.split(",") if part.strip()]
    names = set()
    for given in ops:
        op = canonical(given) or canonical(FUNCTIONAL + given)
        if op is None:
            raise RecordError(
                f"choosing the ops to record: `{given}` is not a function of PyTorch that can be recorded "
                '(write the full name, such as "torch.nn.functional.softmax", or ops="auto" to see what a model calls)'
            )
        names.add(op.name)
    if not names:
        raise RecordError('choosing the ops to record: the list is empty (name at least one, or write ops="auto")')
    return frozenset(names)


class Names:
    """The names of functions. The name of each function is looked up only once."""

    def __init__(self) -> None:
        self._known: dict[Any, OpName | None] = {}
        for prefix, module in MODULES:
            for attribute, function in vars(module).items():
                if is_plain_function(function) and not attribute.startswith("_"):
                    self._known.setdefault(function, canonical(prefix + attribute))

    def of(self, function: Any) -> OpName | None:
        """The op of `function`, if it can be recorded."""
        try:
            if function not in self._known:
                self._known[function] = canonical(resolve_name(function) or "")
            return self._known[function]
        except TypeError:  # It is not hashable, so it is not a function of torch.
            return None


def is_plain_function(value: object) -> bool:
    """True if `value` is a function written in Python or C, and not a class or another callable object."""
    return isinstance(value, (types.FunctionType, types.BuiltinFunctionType))


def patches(names: Names, wanted: frozenset[str] | None) -> list[Patch]:
    """Returns the attributes to replace, so that calls by composite functions are also seen.

    Methods of tensors are replaced only if their op was requested by name.
    """
    overridable = {
        function for group in get_overridable_functions().values() for function in group if _hashable(function)
    }
    found = []
    for _, module in MODULES:
        for attribute, function in list(vars(module).items()):
            if attribute.startswith("_") or not is_plain_function(function) or function not in overridable:
                continue
            op = names.of(function)
            if op is not None and (wanted is None or op.name in wanted):
                found.append(Patch(module, attribute, function, op))
    for name in sorted(wanted or ()):
        for attribute in (OpName(name).last, OpName(name).last + "_"):
            op = canonical("torch.Tensor." + attribute)
            method = getattr(torch.Tensor, attribute, None)
            if op is not None and op.name == name and method is not None and attribute not in vars(torch.Tensor):
                found.append(Patch(torch.Tensor, attribute, method, op))
    return found


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
