"""Workarounds for parts of PyTorch that the recorder cannot observe or would disturb.

Code compiled by ``torch.compile`` calls no function that could be observed, so nothing is compiled while recording.
``DataParallel`` calls copies of a model in its own threads, which the recorder does not observe, so it is refused.
``torch.jit`` reads the source of functions, so PyTorch's original functions are restored while it runs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from .errors import RecordError


def install_workarounds(stack: ExitStack, unpatched: Callable[[], AbstractContextManager[None]]) -> None:
    """Installs all workarounds until the stack is closed. `unpatched` restores PyTorch's own functions for a block."""
    if "torch._dynamo" in sys.modules:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
    else:
        # `torch._dynamo` takes 150 MB, so it is imported only when something is compiled.
        _replace(stack, torch, "compile", _compile_eagerly(stack, torch.compile))
    _replace(stack, torch.jit, "trace", _within(unpatched, torch.jit.trace))
    _replace(stack, torch.jit, "script", _within(unpatched, torch.jit.script, frames_up=1))
    _replace(stack, torch.nn.DataParallel, "forward", _refuse_data_parallel)


def _replace(stack: ExitStack, owner: Any, name: str, function: Callable[..., Any]) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, function)


def _within(
    unpatched: Callable[[], AbstractContextManager[None]], original: Callable[..., Any], **more: int
) -> Callable[..., Any]:
    @functools.wraps(original)
    def within(*args: Any, **kwargs: Any) -> Any:
        # `script` looks up names in the frame of its caller, which is now one frame further up.
        for name, count in more.items():
            kwargs["_" + name] = kwargs.get("_" + name, 0) + count
        with unpatched():
            return original(*args, **kwargs)

    return within


def _compile_eagerly(stack: ExitStack, original: Callable[..., Any]) -> Callable[..., Any]:
    set_already = False

    def compile_eagerly(*args: Any, **kwargs: Any) -> Any:
        nonlocal set_already
        if not set_already:
            set_already = True
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        return original(*args, **kwargs)

    return compile_eagerly


def _refuse_data_parallel(self: torch.nn.DataParallel[Any], *args: Any, **kwargs: Any) -> Any:
    raise RecordError(
        "recording a call of torch.nn.DataParallel: it calls copies of the model in its own threads, which the "
        "recorder does not see (record the model inside, `model.module`, on one device)"
    )
