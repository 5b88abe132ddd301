"""The paths that tests use."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("OPT_SUPERVISOR", ROOT / "target/debug/opt-supervisor"))
