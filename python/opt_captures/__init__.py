"""Records real calls of PyTorch functions as capture files for opt-supervisor.

    from opt_captures import record

    with record("captures", ops=["torch.nn.functional.layer_norm"]):
        model(x)

A whole script is recorded by ``python -m opt_captures record --ops auto script.py``.
"""

from __future__ import annotations

from .errors import RecordError
from .recorder import record
from .summary import Summary

__all__ = ["RecordError", "Summary", "record"]
