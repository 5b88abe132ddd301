"""``python -m opt_captures record [OPTIONS] SCRIPT [ARGUMENTS]``: runs a script, and records what it calls."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import RecordError
from .recorder import DEFAULT_MAX_BYTES, DEFAULT_PER_CLASS, DEFAULT_PER_OP, record

#: Exit codes, as those of opt-supervisor.
GOOD, REFUSED, USAGE = 0, 1, 2
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def size(text: str) -> int:
    """Bytes, from a size as a plan spells it.

    >>> size("512MiB")
    536870912
    """
    number = text.rstrip("KMGTiB")
    unit = text[len(number) :].strip()
    try:
        return int(float(number) * UNITS[unit])
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"`{text}` is no size (write 512MiB, 4GiB, …)") from None


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser("python -m opt_captures", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run a script, and record the calls that it makes")
    _recording_options(recording)
    recording.add_argument("script", type=Path, help="the script, run as if python ran it")
    recording.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _recording_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ops", default="auto", help="full names, with commas between them, or auto (the default)")
    parser.add_argument("--out", default="captures", help="the folder for captures; not there yet, or empty (captures)")
    parser.add_argument(
        "--per-class", type=int, default=DEFAULT_PER_CLASS, help="calls that are kept of those alike (%(default)s)"
    )
    parser.add_argument("--per-op", type=int, default=DEFAULT_PER_OP, help="calls that are kept of an op (%(default)s)")
    parser.add_argument("--max-bytes", type=size, default=DEFAULT_MAX_BYTES, help="what is written in all (4GiB)")
    parser.add_argument("--seed", type=int, default=0, help="decides which calls are kept")


def main(given: Sequence[str] | None = None) -> int:
    """Runs a command; gives its exit code."""
    options = arguments().parse_args(given)
    if not options.script.is_file():
        print(f"running {options.script}: there is no such file", file=sys.stderr)
        return USAGE
    try:
        recorder = record(
            options.out,
            options.ops,
            per_class=options.per_class,
            per_op=options.per_op,
            max_bytes=options.max_bytes,
            seed=options.seed,
        )
        return run_script(recorder, options.script, options.arguments)
    except RecordError as error:
        print(error, file=sys.stderr)
        return REFUSED


def run_script(recorder: record, script: Path, given: Sequence[str]) -> int:
    """Runs the script as python does, and tells what was recorded, also where it ends early."""
    sys.argv = [str(script), *given]
    sys.path.insert(0, str(script.resolve().parent))
    code = GOOD
    try:
        with recorder:
            try:
                runpy.run_path(str(script), run_name="__main__")
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else GOOD if end.code is None else REFUSED
                if isinstance(end.code, str):
                    print(end.code, file=sys.stderr)
    finally:
        print(recorder.summary, file=sys.stderr)
    return code or (GOOD if any(op.kept for op in recorder.summary.ops) else REFUSED)


if __name__ == "__main__":
    sys.exit(main())
