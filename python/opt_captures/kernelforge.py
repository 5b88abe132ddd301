"""Projects of KernelForge: captures in ``io/individual_ops``, kernels in ``kernels/generated`` and ``trees``.

Captures and kernels stay where they are. Only a plan is written, and a copy of each ``.cu`` file without device code.
A kernel is a function ``launch(...)`` in C++ or CUDA with PyTorch's tensors, in Python, or with Triton. All kernels of
a plan run on the same device, so CUDA kernels have a plan of their own, for the emulated device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from . import plans
from .errors import RecordError

CAPTURES = Path("io", "individual_ops")
GENERATED = Path("kernels", "generated", "individual_op_kernels")
TREES = Path("trees")
#: Text that marks a file as code for a device.
DEVICE_CODE = re.compile(r"__global__|<<<|#\s*include\s*[<\"]cuda")
LAUNCH = re.compile(r"\blaunch\s*\(")
TRITON = re.compile(r"^\s*(import|from) triton\b", re.MULTILINE)
#: The settings that select KernelForge's rules of timing and correctness, which are less strict than opt-supervisor's.
PARITY = ["[profile]", 'parity = "kernelforge"']
#: The settings of a plan for CUDA kernels.
EMULATED = ["[run]", 'device = "emulated"']
NEEDS_DEVICE = "CUDA runs on the emulated device, and the device of this plan is the CPU (import again with --cuda)"
NEEDS_NO_DEVICE = "it is not CUDA, and the device of this plan is the emulated one"


def import_project(
    project: Path, out: Path, name: str = plans.NAME, *, parity: bool = False, cuda: bool = False
) -> list[plans.Job]:
    """Writes a plan for a project, called `name`, to the folder `out`, and returns its jobs.

    With `parity`, the plan times and compares by KernelForge's rules. With `cuda`, its candidates are the CUDA kernels,
    which are verified on the emulated device.

    Raises:
        RecordError: `project` is not a KernelForge project, or the plan or the copy of a kernel exists already.
    """
    captures = project / CAPTURES
    if not captures.is_dir():
        raise RecordError(f"importing {project}: it has no {CAPTURES}, where KernelForge keeps captures")
    folders = [folder for folder in sorted(captures.iterdir()) if any(folder.glob("entry_*.pt"))]
    jobs = [_job(project, folder, out, cuda=cuda) for folder in folders]
    if not jobs:
        raise RecordError(f"importing {project}: there is no entry_*.pt in the folders of {captures}")
    settings = [*([*EMULATED, ""] if cuda else []), *plans.build_settings(), *(["", *PARITY] if parity else [])]
    head = f"imported from the KernelForge project {project.resolve()}"
    plans.write(out / name, plans.text(head, settings, jobs))
    return jobs


def _job(project: Path, captures: Path, out: Path, *, cuda: bool) -> plans.Job:
    op = captures.name
    # The recorded function runs on the CPU, so it cannot be the baseline of CUDA kernels.
    job = plans.Job(op, plans.relative(out, captures), baseline=None if cuda else "torch")
    for name, path in _kernels(project, op):
        try:
            source = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            job.refused.append((name, f"it cannot be read: {error.strerror}"))
            continue
        if name in [it.name for it in job.candidates] + [refused for refused, _ in job.refused]:
            name = f"{name}{path.suffix}"
        if cuda:
            _add_cuda(job, name, path, source, out)
        else:
            _add(job, name, path, source, out)
    return job


def _kernels(project: Path, op: str) -> Iterator[tuple[str, Path]]:
    """Yields the current kernel of an op, then the kernels of its search tree in order, each with a name."""
    for path in sorted((project / GENERATED / op).glob("kernel.*")):
        if path.suffix in (".cu", ".cpp", ".py"):
            yield "kernel", path
    numbered = []
    for path in (project / TREES / op / "kernels").glob("kernel_*.*"):
        number = path.stem.removeprefix("kernel_")
        if number.isdecimal() and path.suffix in (".cu", ".cpp", ".py"):
            numbered.append((int(number), path))
    for place, path in sorted(numbered):
        yield f"tree-{place}", path


def _add_cuda(job: plans.Job, name: str, path: Path, source: str, out: Path) -> None:
    """Adds a CUDA kernel to a job, or the reason why it is left out."""
    if path.suffix == ".py" or not DEVICE_CODE.search(source):
        job.refused.append((name, NEEDS_NO_DEVICE))
    elif not LAUNCH.search(source):
        job.refused.append((name, "it does not define `launch`"))
    else:
        job.candidates.append(plans.Candidate(name, [plans.relative(out, path)], "torch-cuda"))


def _add(job: plans.Job, name: str, path: Path, source: str, out: Path) -> None:
    """Adds a kernel to a job, or the reason why it is left out."""
    if path.suffix == ".py":
        if not re.search(r"^def launch\b", source, re.MULTILINE):
            job.refused.append((name, "it does not define `launch`"))
            return
        language = "triton" if TRITON.search(source) else "python"
        job.candidates.append(plans.Candidate(name, [plans.relative(out, path)], language, "launch"))
        return
    if DEVICE_CODE.search(source):
        job.refused.append((name, NEEDS_DEVICE))
    elif not LAUNCH.search(source):
        job.refused.append((name, "it does not define `launch`"))
    elif path.suffix == ".cu":
        # The file has no device code, so it is copied with a suffix that builds it for the CPU.
        copy = out / "kernels" / job.name / f"{name}.cpp"
        plans.write(copy, source)
        job.candidates.append(plans.Candidate(name, [plans.relative(out, copy)], "torch-extension"))
    else:
        job.candidates.append(plans.Candidate(name, [plans.relative(out, path)], "torch-extension"))
