"""Imports KernelBench problems: files with a class ``Model``, ``get_inputs()`` and ``get_init_inputs()``.

The captured call is the model's whole ``forward``. Its arguments come first, followed by parameters and buffers with
their names, such as ``self.conv.weight``. If the ``forward`` of a candidate's class does not take these as arguments,
their values are set in the class's instance.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from . import plans, skeletons
from .effects import Treatment, Watch
from .errors import NotRecordable, RecordError
from .kernelforge import TRITON
from .sinks import FileSink, Sink
from .summary import Summary
from .values import Holder, check, span_bytes, storage_key, tensors

DEFAULT_CALLS = 3
NEEDED = ("Model", "get_inputs", "get_init_inputs")
#: The class of a candidate.
NEW = "ModelNew"
#: Prefix of the name of a parameter or buffer.
STATE = "self."
#: The name of the argument that says that a model was recorded in training mode.
TRAINING = STATE + "training"
DEFINES_NEW = re.compile(rf"^(class\s+{NEW}\b|{NEW}\s*=)", re.MULTILINE)
DEFINES_INITIAL = re.compile(r"^def get_init_inputs\b", re.MULTILINE)


def import_problems(
    files: Sequence[Path],
    out: Path,
    plan: str = plans.NAME,
    *,
    kernels: Sequence[Path] = (),
    calls: int = DEFAULT_CALLS,
    seed: int = 42,
    training: bool = False,
) -> list[plans.Job]:
    """Records problems, writes a plan called `plan` to the folder `out`, and returns its jobs.

    As in KernelBench, the seed is set before a model is made and before each ``get_inputs()``; each further call adds 1
    to the seed. Models are in eval mode unless `training` is set. If one of several problems cannot be recorded, the
    plan leaves it out.

    Raises:
        RecordError: a file does not exist, a name is not unique, a kernel belongs to no problem, nothing can be
            recorded, or `out` has captures or a plan.
    """
    owners = _owners(files, kernels)
    if (out / plan).exists():
        raise RecordError(f"writing {out / plan}: something is there already, and nothing is overwritten")
    sink = FileSink(out / "captures")
    sink.open()
    jobs = []
    for file in files:
        try:
            job, initial = _record(file, sink, calls, seed, training, out)
            _add_kernels(job, file, initial, [kernel for kernel, owner in owners.items() if owner == file], out)
            job.skeleton = skeletons.write(sink.place(file.stem), out)
        except RecordError as error:
            job = plans.Job(file.stem, "", refused=[(file.stem, str(error))])
        jobs.append(job)
    sink.close(
        Summary(sink.folder, sink.place, seed, [], [f"{job.name}: {calls} calls of Model.forward" for job in jobs])
    )
    if not any(job.captures for job in jobs):
        raise RecordError("; ".join(why for job in jobs for _, why in job.refused))
    head = "imported from problems in KernelBench's form"
    plans.write(out / plan, plans.text(head, plans.build_settings(), [job for job in jobs if job.captures]))
    return jobs


def _owners(files: Sequence[Path], kernels: Sequence[Path]) -> dict[Path, Path]:
    """Returns the problem of each kernel.

    Raises:
        RecordError: a file does not exist, a name is not unique, or a kernel belongs to no problem.
    """
    for path in [*files, *kernels]:
        if not path.is_file():
            raise RecordError(f"importing {path}: there is no such file")
    stems = [file.stem for file in files]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    if twice is not None:
        raise RecordError(f"importing {len(files)} problems: two are called `{twice}` (import them into two folders)")
    owners = {}
    for kernel in kernels:
        fitting = [file for file in files if len(files) == 1 or kernel.stem.startswith(file.stem)]
        if not fitting:
            raise RecordError(f"importing {kernel}: it belongs to no problem (begin its name with the problem's name)")
        owners[kernel] = max(fitting, key=lambda file: len(file.stem))
    return owners


def _record(
    file: Path, sink: Sink, calls: int, seed: int, training: bool, out: Path
) -> tuple[plans.Job, Sequence[Any]]:
    """Records a problem. Returns its job, with the model as the baseline, and what `get_init_inputs` returned.

    Raises:
        RecordError: the file is not a KernelBench problem, or its model cannot be recorded.
    """
    module = load(file)
    torch.manual_seed(seed)
    initial = _call(file, "get_init_inputs", module.get_init_inputs)
    model = _call(file, "Model", module.Model, *initial)
    model = model.train(training)
    name = file.stem
    job = plans.Job(name, f"captures/{name}", baseline="Model")
    job.candidates.append(plans.Candidate("Model", [plans.relative(out, file)], "python", "Model"))
    for number in range(calls):
        torch.manual_seed(seed + number)
        inputs = _call(file, "get_inputs", module.get_inputs)
        try:
            capture, changed = capture_of(name, model, inputs)
        except NotRecordable as error:
            raise RecordError(f"recording `Model` of {file}: {error}") from error
        except Exception as error:
            raise RecordError(f"calling `Model.forward` of {file}: {type(error).__name__}: {error}") from error
        sink.write(name, f"entry_{number:06}.pt", capture)
        if changed and job.baseline is not None:
            job.refused.append(("Model", f"it writes to its input `{changed[0]}`, which candidates may not do"))
            job.baseline, job.candidates = None, []
    return job, initial


def _add_kernels(job: plans.Job, file: Path, initial: Sequence[Any], kernels: Sequence[Path], out: Path) -> None:
    """Adds to a job the ``ModelNew`` of the problem and of each kernel file, or the reason why one is left out."""
    problem = file.read_text(encoding="utf-8", errors="replace")
    if DEFINES_NEW.search(problem):
        _add(job, NEW, file, problem, out)
    for kernel in kernels:
        name = kernel.stem if all(it.name != kernel.stem for it in job.candidates) else f"{kernel.stem}-{NEW}"
        source = kernel.read_text(encoding="utf-8", errors="replace")
        if not initial or DEFINES_INITIAL.search(source):
            _add(job, name, kernel, source, out)
            continue
        text = repr(initial)
        try:
            ast.literal_eval(text)
        except (ValueError, SyntaxError):
            job.refused.append(
                (name, "it needs its own `get_init_inputs`, because the problem's returns more than plain values")
            )
            continue
        copy = out / "kernels" / job.name / kernel.name
        source = f"{source.rstrip()}\n\n\ndef get_init_inputs():\n    return {text}\n"
        plans.write(copy, source)
        _add(job, name, copy, source, out)


def _add(job: plans.Job, name: str, path: Path, source: str, out: Path) -> None:
    if not DEFINES_NEW.search(source):
        job.refused.append((name, f"it does not define `{NEW}`"))
    elif re.search(r"\bload_inline\s*\(", source):
        job.refused.append((name, "it starts a compiler, which a kernel may not do (make it a torch-extension)"))
    else:
        language = "triton" if TRITON.search(source) else "python"
        job.candidates.append(plans.Candidate(name, [plans.relative(out, path)], language, NEW))


def load(file: Path) -> ModuleType:
    """Imports the problem as a module.

    Raises:
        RecordError: the file cannot be imported, or lacks one of the three names.
    """
    spec = importlib.util.spec_from_file_location(f"kernelbench_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise RecordError(f"importing {file}: it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RecordError(f"importing {file}: {type(error).__name__}: {error}") from error
    missing = [name for name in NEEDED if not hasattr(module, name)]
    if missing:
        raise RecordError(f"importing {file}: it has no `{missing[0]}` (a problem has {', '.join(NEEDED)})")
    return module


def capture_of(name: str, model: torch.nn.Module, inputs: Sequence[Any]) -> tuple[dict[str, Any], list[str]]:
    """Calls the model with these inputs. Returns the call as a capture, and the inputs to which the model writes.

    Parameters and buffers that the call changes are recorded before and after it.

    Raises:
        NotRecordable: the call is random or returns no tensor, or a capture cannot hold its values.
    """
    bound = inspect.signature(model.forward).bind(*inputs)
    bound.apply_defaults()
    given: dict[str, Any] = {}
    for parameter, value in bound.arguments.items():
        if bound.signature.parameters[parameter].kind is inspect.Parameter.VAR_POSITIONAL:
            given.update({f"{parameter}_{index}": part for index, part in enumerate(value)})
        else:
            given[parameter] = value
    state = {STATE + key: value for key, value in [*model.named_parameters(), *model.named_buffers()]}
    given.update(state)
    if model.training:
        given[TRAINING] = True
    for key, value in given.items():
        check(value, key)
    # All tensors are copied first, because the call may write to them: to running statistics, and to the inputs of a
    # model that works in place.
    treatment = Treatment(given, frozenset(storage_key(it) for it in tensors(list(given.values()))))
    before = Holder(treatment.written).hold(list(given.values()))
    with torch.no_grad(), Watch(given) as watch:
        output = model(*inputs)
    watch.judge(treatment)
    check(output, "output")
    if not any(span_bytes(it) for it in tensors(output)):
        raise NotRecordable("it did not return a tensor")
    names = list(given)
    capture: dict[str, Any] = {
        "function_name": f"{name}.Model",
        "args": [],
        "kwargs": dict(zip(names, before, strict=True)),
        "output": Holder().hold(output),
        "signature": {"params": names, "defaults": {}},
    }
    # The schema of some operators, such as batch_norm, does not say that they write.
    changed = {key for key, value in state.items() if key in watch.written or not _same(value, capture["kwargs"][key])}
    if changed:
        capture["mutates"] = {key: Holder().hold(value) for key, value in state.items() if key in changed}
    return capture, sorted(watch.written - changed)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if all elements are equal. NaN equals NaN."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _call(file: Path, name: str, function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        raise RecordError(f"calling `{name}` of {file}: {type(error).__name__}: {error}") from error
