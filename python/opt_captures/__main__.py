"""Records captures and imports projects.

``record SCRIPT`` runs a script and records the calls that it makes. ``kernelbench FILE OUT`` records problems and
writes a plan with the kernels given by ``--kernel``, or with one to fill in. ``kernelforge DIR OUT`` writes a plan for
a project that already has captures and kernels. ``flashinfer-trace DIR OUT`` records the references of a data set and
writes a plan with its solutions.
``opt-supervisor import`` runs the last three.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from . import flashinfer, kernelbench, kernelforge, plans
from .errors import RecordError
from .recorder import DEFAULT_MAX_BYTES, DEFAULT_PER_CLASS, DEFAULT_PER_OP, record

#: Exit codes, the same as opt-supervisor's.
GOOD, REFUSED, USAGE = 0, 1, 2
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def size(text: str) -> int:
    """Converts a size, such as 512MiB or a number of bytes, to bytes.

    >>> size("512MiB")
    536870912
    """
    number = text.rstrip("KMGTiB")
    unit = text[len(number) :].strip()
    try:
        return int(float(number) * UNITS[unit])
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"`{text}` is not a size (write 512MiB, 4GiB, …)") from None


def arguments() -> argparse.ArgumentParser:
    """Makes the parser of the command line."""
    parser = argparse.ArgumentParser("python -m opt_captures", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run a script, and record the calls that it makes")
    _recording_options(recording)
    recording.add_argument("script", type=Path, help="the script, which is run as python would run it")
    recording.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    problem = commands.add_parser("kernelbench", help="record problems with Model, get_inputs and get_init_inputs")
    problem.add_argument("files", type=Path, nargs="+", metavar="file", help="the problems")
    problem.add_argument("out", type=Path, help="the folder for captures, a plan and kernels to fill in")
    problem.add_argument("--kernel", type=Path, action="append", default=[], help="a file with ModelNew; repeatable")
    problem.add_argument("--calls", type=int, default=kernelbench.DEFAULT_CALLS, help="calls per problem (%(default)s)")
    problem.add_argument("--seed", type=int, default=42, help="the seed of the model and its inputs (%(default)s)")
    problem.add_argument("--training", action="store_true", help="record the model in training mode, not in eval mode")
    project = commands.add_parser("kernelforge", help="write a plan for a project with its captures and kernels")
    project.add_argument("project", type=Path, help="the project: a folder with io/individual_ops and kernels")
    project.add_argument("out", type=Path, help="the folder for the plan")
    project.add_argument("--parity", action="store_true", help="compare and time as KernelForge does")
    project.add_argument("--cuda", action="store_true", help="import the CUDA kernels, for the emulated device")
    trace = commands.add_parser("flashinfer-trace", help="record references of a data set, and write a plan")
    trace.add_argument("project", type=Path, help="the data set: a folder with definitions, workloads and solutions")
    trace.add_argument("out", type=Path, help="the folder for captures, kernels and a plan")
    trace.add_argument(
        "--calls", type=int, default=flashinfer.DEFAULT_CALLS, help="workloads of each definition (%(default)s)"
    )
    trace.add_argument("--seed", type=int, default=0, help="seed of random inputs (%(default)s)")
    for importing in (problem, project, trace):
        importing.add_argument("--plan", default=plans.NAME, help="the plan's name in the folder (%(default)s)")
    return parser


def _recording_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ops", default="auto", help="names of functions, separated by commas, or auto (the default)")
    parser.add_argument("--out", default="captures", help="a new or empty folder (captures)")
    parser.add_argument(
        "--per-class", type=int, default=DEFAULT_PER_CLASS, help="calls of each signature class to keep (%(default)s)"
    )
    parser.add_argument("--per-op", type=int, default=DEFAULT_PER_OP, help="calls of an op to keep (%(default)s)")
    parser.add_argument("--max-bytes", type=size, default=DEFAULT_MAX_BYTES, help="limit of the total size (4GiB)")
    parser.add_argument("--seed", type=int, default=0, help="decides which calls are kept (%(default)s)")
    parser.add_argument("--in-place", action="store_true", help="record in-place calls as such, not out of place")
    parser.add_argument("--store", action="store_true", help="write a capture store: no tensor is stored twice")


def main(given: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    options = arguments().parse_args(given)
    script = getattr(options, "script", None)
    if script is not None and not script.is_file():
        print(f"running {script}: there is no such file", file=sys.stderr)
        return USAGE
    try:
        if options.command == "kernelforge":
            jobs = kernelforge.import_project(
                options.project, options.out, options.plan, parity=options.parity, cuda=options.cuda
            )
            return print_jobs(jobs, options.out / options.plan)
        if options.command == "flashinfer-trace":
            jobs = flashinfer.import_trace(
                options.project, options.out, options.plan, calls=options.calls, seed=options.seed
            )
            return print_jobs(jobs, options.out / options.plan)
        if options.command == "kernelbench":
            jobs = kernelbench.import_problems(
                options.files,
                options.out,
                options.plan,
                kernels=options.kernel,
                calls=options.calls,
                seed=options.seed,
                training=options.training,
            )
            return print_jobs(jobs, options.out / options.plan)
        recorder = record(
            options.out,
            options.ops,
            per_class=options.per_class,
            per_op=options.per_op,
            max_bytes=options.max_bytes,
            seed=options.seed,
            in_place=options.in_place,
            store=options.store,
        )
        return run_script(recorder, options.script, options.arguments)
    except RecordError as error:
        print(error, file=sys.stderr)
        return REFUSED


def print_jobs(jobs: Sequence[plans.Job], plan: Path) -> int:
    """Prints the jobs of a plan, with the kernels that it names and those that it leaves out. Returns the exit code."""
    for job in jobs:
        kernels = [it.name for it in job.candidates if it.name != job.baseline]
        print(f"{job.name}: {', '.join(kernels) or 'no kernel yet'}")
        for name, why in job.refused:
            print(f"  left out: {name}: {why}")
        if job.skeleton is not None:
            print(f"  to fill in: {plan.parent / job.skeleton}")
    print(f"wrote {plan}; next:\n  opt-supervisor check {plan}\n  opt-supervisor run {plan}")
    return GOOD


def run_script(recorder: record, script: Path, given: Sequence[str]) -> int:
    """Runs the script like python, and prints what was recorded, even if the script ends early."""
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
