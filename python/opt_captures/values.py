"""Checks whether a capture can contain the arguments and results of a call, and copies them before they can change."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import torch

from .errors import NotRecordable

#: Types of plain values that a capture can contain, in addition to tensors, lists and tuples.
PLAIN = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)
#: A view is saved with its whole storage, unless more than this many bytes of the storage lie before its first or after
#: its last element.
SPARE_BYTES = 4096
#: The deepest nesting of arguments that is recorded.
MAX_DEPTH = 8


def span_bytes(tensor: torch.Tensor) -> int:
    """Counts the bytes of the storage from the tensor's first element to its last.

    >>> span_bytes(torch.zeros(4, 4)[:, 1])
    52
    """
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def storage_key(tensor: torch.Tensor) -> tuple[str, int]:
    """Returns a key that identifies the tensor's storage while the storage exists."""
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def overlaps(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors may have bytes in common: their ranges from the first to the last byte intersect.

    >>> x = torch.zeros(4)
    >>> overlaps(x[:2], x[1:]), overlaps(x[:2], x[2:])
    (True, False)
    """
    if storage_key(one) != storage_key(other):
        return False
    (a, b), (c, d) = ((it.data_ptr(), it.data_ptr() + span_bytes(it)) for it in (one, other))
    return max(a, c) < min(b, d)


def refuse_unsupported(tensor: torch.Tensor, path: str) -> None:
    """Refuses a tensor that a capture cannot contain, such as a sparse, nested, quantized or wrapped one.

    Raises:
        NotRecordable: the message names the argument and its type.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        what = f"a {type(tensor).__name__}"
    elif tensor.is_meta:
        what = "a meta tensor, without values"
    elif tensor.is_quantized:
        what = "a quantized tensor"
    elif tensor.is_nested or tensor.layout != torch.strided:
        what = f"a tensor of layout {tensor.layout}" if not tensor.is_nested else "a nested tensor"
    elif torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        what = "a tensor inside torch.func"
    else:
        return
    raise NotRecordable(f"`{path}` is {what}, which a capture cannot contain")


def tensors(value: object) -> Iterator[torch.Tensor]:
    """Yields every tensor in nested lists and tuples, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors(part)


def check(value: object, path: str, depth: int = 0) -> None:
    """Refuses a value that a capture cannot contain.

    Raises:
        NotRecordable: the message names the argument and its type.
    """
    if isinstance(value, torch.Tensor):
        refuse_unsupported(value, path)
    elif isinstance(value, (list, tuple)) and depth < MAX_DEPTH:
        for index, part in enumerate(value):
            check(part, f"{path}[{index}]", depth + 1)
    elif isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        raise NotRecordable(f"`{path}` is {value}, which does not fit in 64 bits")
    elif isinstance(value, (list, tuple)):
        raise NotRecordable(f"`{path}` is nested more than {MAX_DEPTH} levels deep")
    elif value is not None and not isinstance(value, PLAIN):
        raise NotRecordable(f"`{path}` is a {type(value).__name__}, which a capture cannot contain")


def describe(value: object) -> str:
    """Returns a text that is equal for calls of one class: shapes, strides and dtypes of tensors, and plain values.

    >>> describe((torch.zeros(2, 3), 1, None))
    '(f32[2,3], 1, None)'
    """
    if isinstance(value, torch.Tensor):
        sizes = ",".join(map(str, value.shape))
        strides = "" if value.is_contiguous() else f" strides {tuple(value.stride())}"
        return f"{short_dtype(value.dtype)}[{sizes}]{strides}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(describe(part) for part in value) + ")"
    return repr(value)


def short_dtype(dtype: torch.dtype) -> str:
    """Returns the short name of a dtype: ``f32`` for ``torch.float32``.

    >>> short_dtype(torch.bfloat16), short_dtype(torch.bool)
    ('bf16', 'bool')
    """
    name = str(dtype).removeprefix("torch.")
    for long, short in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name


class Holder:
    """Converts the values of one call to values to save.

    The saved values are on the CPU and without gradients. Tensors that share a storage still share it, except those
    that use only a part of it and are copied alone.
    """

    def __init__(self, written: frozenset[tuple[str, int]] = frozenset()) -> None:
        """Tensors whose storages are in `written` are copied when they are held, because the call writes to them."""
        self._written = written
        self._hosts: dict[tuple[str, int], torch.UntypedStorage] = {}

    def hold(self, value: Any) -> Any:
        """Returns the value to save. Tensors that need no copy share the caller's memory."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, list):
            return [self.hold(part) for part in value]
        if isinstance(value, tuple):
            return tuple(self.hold(part) for part in value)
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        held = self._dense(tensor.detach())
        if isinstance(tensor, torch.nn.Parameter):
            # The capture says that this is a parameter, which keeps its value from call to call.
            return torch.nn.Parameter(held, requires_grad=False)
        return held

    def _dense(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.resolve_conj().resolve_neg()
        key = storage_key(tensor)
        must_copy = key in self._written or tensor.device.type != "cpu"
        storage = tensor.untyped_storage()
        if span_bytes(tensor) + SPARE_BYTES < storage.nbytes():
            return _copy_alone(tensor)
        if not must_copy:
            return tensor
        if key not in self._hosts:
            copied = storage.clone() if tensor.device.type == "cpu" else storage.cpu()  # type: ignore[no-untyped-call]
            self._hosts[key] = copied
        host = torch.empty(0, dtype=tensor.dtype)
        return host.set_(self._hosts[key], tensor.storage_offset(), tensor.shape, tensor.stride())


def _copy_alone(tensor: torch.Tensor) -> torch.Tensor:
    """Copies the tensor to a new storage, with the same strides."""
    span = span_bytes(tensor) // max(tensor.element_size(), 1)
    flat = tensor.as_strided((span,), (1,), tensor.storage_offset())
    flat = flat.clone() if flat.device.type == "cpu" else flat.cpu()
    return flat.as_strided(tensor.shape, tensor.stride(), 0)
