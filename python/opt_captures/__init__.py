"""Records real calls of PyTorch functions as capture files for opt-supervisor.

    from opt_captures import record

    with record("captures", ops=["torch.nn.functional.layer_norm"]):
        model(x)

``python -m opt_captures record --ops auto script.py`` records a whole script.
"""

from __future__ import annotations

try:
    import torch
except ModuleNotFoundError as missing:
    raise ImportError(
        "opt_captures records calls of PyTorch, which this Python does not have (`pip install torch`, 2.6 or newer)"
    ) from missing
if not hasattr(torch.compiler, "set_stance"):
    raise ImportError(f"opt_captures needs PyTorch 2.6 or newer, and this is {torch.__version__}")

from .errors import RecordError
from .recorder import record
from .summary import Summary

__all__ = ["RecordError", "Summary", "record"]
