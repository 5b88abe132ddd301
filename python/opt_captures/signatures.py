"""Signatures: the parameters of a function, which give names to a call's values.

Most functions written in Python name their parameters. For any other function, the parameters come from a schema of
its ATen operator, or from the Python function that PyTorch's own tests use in its place.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.overrides import get_testing_overrides

from .errors import NotRecordable
from .names import OpName, function_of, schema_name
from .values import tensors

#: The parameter that receives a call's result. It is not an input.
OUT = "out"


@dataclass(frozen=True)
class Signature:
    """The parameters in order, with their names, their defaults, and how they may be passed."""

    params: tuple[str, ...]
    defaults: Mapping[str, Any]
    kinds: Mapping[str, str]
    #: Parameters that must be tensors, as far as this is known.
    tensors: frozenset[str] = frozenset()
    #: Parameters that must not contain tensors, as far as this is known.
    plain: frozenset[str] = frozenset()
    #: Parameters that are lists of tensors, as far as this is known.
    lists: frozenset[str] = frozenset()

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a call's values by name, in the order of the parameters, with defaults filled in.

        Raises:
            NotRecordable: the call does not fit this signature.
        """
        positional = [name for name in self.params if self.kinds[name] != "KEYWORD_ONLY"]
        args = self._with_list_gathered(args, positional)
        if len(args) > len(positional):
            raise NotRecordable(f"it was given {len(args)} positional values, but takes {len(positional)}")
        given = dict(zip(positional, args, strict=False))
        for name, value in kwargs.items():
            name = self._parameter_name(name)
            if name not in self.params or name in given:
                raise NotRecordable(
                    f"its signature has no `{name}`" if name not in given else f"`{name}` was given twice"
                )
            given[name] = value
        missing = [name for name in self.params if name not in given and name not in self.defaults]
        if missing:
            raise NotRecordable(f"`{missing[0]}` was not given")
        for name, value in given.items():
            if name in self.tensors and not isinstance(value, torch.Tensor):
                raise NotRecordable(f"`{name}` is not a tensor")
            if name in self.plain and next(tensors([value]), None) is not None:
                raise NotRecordable(f"`{name}` is a tensor")
        return {name: given[name] if name in given else self.defaults[name] for name in self.params}

    def _with_list_gathered(self, args: Sequence[Any], positional: Sequence[str]) -> Sequence[Any]:
        """Gathers values into one list: `x.reshape(2, 3)` means `x.reshape((2, 3))`."""
        last = len(positional) - 1
        rest = args[last:]
        numbers = len(rest) > 1 and all(isinstance(value, int) for value in rest)
        several = (
            last >= 0 and positional[last] in self.lists and all(isinstance(value, torch.Tensor) for value in rest)
        )
        return [*args[:last], list(rest)] if last >= 0 and rest and (numbers or several) else args

    def _parameter_name(self, name: str) -> str:
        if name not in self.params:
            aliases = {"self": "input", "axis": "dim", "x": "input", "keepdims": "keepdim"}
            return aliases.get(name, name)
        return name

    def as_capture(self) -> dict[str, Any]:
        """The ``signature`` of a capture."""
        return {"params": list(self.params), "defaults": dict(self.defaults), "kinds": dict(self.kinds)}


def signature_for(op: OpName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature | None:
    """Finds the first signature of the op's function that a call fits."""
    for signature in _signatures(op.name):
        try:
            signature.bind(args, kwargs)
        except NotRecordable:
            continue
        return signature
    return None


@lru_cache(maxsize=1024)
def _signatures(name: str) -> list[Signature]:
    function = function_of(name)
    found = [_from_python(function)]
    if found == [None]:
        stand_in = get_testing_overrides().get(function)
        found = [_from_python(stand_in) if stand_in is not None else None]
        schemas = [_from_schema(schema) for schema in torch._C._jit_get_schemas_for_operator(schema_name(name))]
        # A Python function with `*args` may have other defaults than its operator. A C function has the same defaults.
        found = [*found, *schemas] if isinstance(function, types.FunctionType) else [*schemas, *found]
    return [signature for signature in found if signature is not None]


def _from_python(function: Callable[..., Any]) -> Signature | None:
    """Reads the parameters of a Python function. Returns None if it does not name them."""
    try:
        params = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(param.kind in (param.VAR_POSITIONAL, param.VAR_KEYWORD) for param in params):
        return None
    # Parameters that begin with an underscore are internal to the function.
    params = [param for param in params if not param.name.startswith("_") and param.name != OUT]
    rename = {"self": "input"}
    return Signature(
        tuple(rename.get(param.name, param.name) for param in params),
        {param.name: param.default for param in params if param.default is not param.empty},
        {rename.get(param.name, param.name): param.kind.name for param in params},
    )


def _from_schema(schema: Any) -> Signature | None:
    """Reads the schema of an overload. Returns None if it writes to an argument, or does not take a tensor."""
    writes = any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments)
    names = ["input" if argument.name == "self" else argument.name for argument in schema.arguments]
    types = [str(argument.type) for argument in schema.arguments]
    if writes or not any("Tensor" in kind for kind in types):
        return None
    pairs = list(zip(names, schema.arguments, strict=True))
    return Signature(
        tuple(names),
        {name: argument.default_value for name, argument in pairs if argument.has_default_value()},
        {name: "KEYWORD_ONLY" if argument.kwarg_only else "POSITIONAL_OR_KEYWORD" for name, argument in pairs},
        frozenset(name for name, kind in zip(names, types, strict=True) if kind == "Tensor"),
        frozenset(name for name, kind in zip(names, types, strict=True) if "Tensor" not in kind),
        frozenset(name for name, kind in zip(names, types, strict=True) if kind == "List[Tensor]"),
    )
