"""Data sets in the flashinfer-trace format: definitions (each with a reference in Python), workloads and solutions.

A definition becomes a job. Running its reference on the first workloads gives the captures. The reference is also the
baseline, and the solutions become the candidates.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from . import plans
from .errors import NotRecordable, RecordError
from .sinks import FileSink
from .summary import Summary
from .values import Holder, check

#: The default number of workloads to record for each definition, starting with the first.
DEFAULT_CALLS = 5
#: Random integers are smaller than this, so they are valid indices into a table with at least this many rows.
RANDOM_INTEGER_LIMIT = 128
BASELINE = "reference"
#: The file with the workloads of all entries, for `opt-supervisor report --workloads`.
WORKLOADS = "workloads.json"
#: Code that is appended to a module. If the module's function returns a dictionary, the caller gets a tuple of the
#: outputs in order.
ORDERING_WRAPPER = """

def _in_order(function, names=%r):
    import functools

    @functools.wraps(function)
    def ordered(*inputs):
        returned = function(*inputs)
        return tuple(returned[name] for name in names) if isinstance(returned, dict) else returned

    return ordered


%s = _in_order(%s)
"""
#: The largest header of a safetensors file that is read, in bytes.
LARGEST_HEAD = 64 << 20
STORED_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def import_trace(
    folder: Path, out: Path, plan: str = plans.NAME, *, calls: int = DEFAULT_CALLS, seed: int = 0
) -> list[plans.Job]:
    """Records the references of a data set, writes a plan called `plan` to the folder `out`, and returns its jobs.

    A definition that cannot be recorded becomes a job without candidates and captures. The plan leaves out such jobs.

    Raises:
        RecordError: `folder` is not a flashinfer-trace data set, nothing in it can be recorded, or `out` has captures
            or a plan.
    """
    definitions = list(_documents(folder / "definitions", "*.json"))
    if not definitions:
        raise RecordError(f"importing {folder}: there is no definition in {folder / 'definitions'}")
    sink = FileSink(out / "captures")
    sink.open()
    jobs = []
    described: dict[str, dict[str, Any]] = {}
    for definition in definitions:
        name = str(definition.get("name"))
        job = plans.Job(name, f"captures/{name}", baseline=BASELINE)
        try:
            described[name] = _record(folder, definition, sink, calls, seed)
            _add_reference(job, definition, out)
            _add_solutions(job, folder, definition, out)
        except (KeyError, TypeError, ValueError, NotRecordable, RecordError) as error:
            job = plans.Job(name, "", refused=[(name, _reason(error))])
        jobs.append(job)
    sink.close(Summary(sink.folder, sink.place, seed, [], [f"{len(jobs)} definitions of {folder}"]))
    if not any(job.candidates for job in jobs):
        reasons = "; ".join(f"{refused}: {why}" for job in jobs for refused, why in job.refused)
        raise RecordError(f"importing {folder}: {reasons}")
    head = f"imported from the data set {folder.resolve()}"
    plans.write(out / WORKLOADS, json.dumps(described, indent=1) + "\n")
    plans.write(out / plan, plans.text(head, plans.build_settings(), [job for job in jobs if job.candidates]))
    return jobs


def _documents(folder: Path, pattern: str) -> Iterator[dict[str, Any]]:
    """Yields the JSON documents below a folder, in the order of their paths. A JSON Lines file has several."""
    for path in sorted(folder.rglob(pattern)):
        text = path.read_text(encoding="utf-8")
        for part in text.splitlines() if path.suffix == ".jsonl" else [text]:
            if part.strip():
                try:
                    yield json.loads(part)
                except ValueError as error:
                    raise RecordError(f"reading {path}: {error}") from error


def _record(folder: Path, definition: dict[str, Any], sink: FileSink, calls: int, seed: int) -> dict[str, Any]:
    """Records the reference on its first workloads. Returns the workloads by the names of their entries."""
    name = definition["name"]
    module = types.ModuleType("reference")
    exec(compile(definition["reference"], f"{name}/reference.py", "exec"), module.__dict__)
    traces = _documents(folder / "workloads", "*.jsonl")
    workloads = [trace["workload"] for trace in traces if trace.get("definition") == name][:calls]
    if not workloads:
        raise RecordError("it has no workloads")
    for number, workload in enumerate(workloads):
        torch.manual_seed(seed + number)
        given = _inputs(folder, definition, workload)
        for key, value in given.items():
            check(value, key)
        before = Holder(frozenset()).hold(list(given.values()))
        with torch.no_grad():
            output = _ordered(module.run(**given), list(definition["outputs"]))
        check(output, "output")
        capture = {
            "function_name": f"{name}.run",
            "args": [],
            "kwargs": dict(zip(given, before, strict=True)),
            "output": Holder().hold(output),
            "signature": {"params": list(given), "defaults": {}},
        }
        sink.write(name, f"entry_{number:06}.pt", capture)
    return {f"entry_{number:06}": workload for number, workload in enumerate(workloads)}


def _inputs(folder: Path, definition: dict[str, Any], workload: dict[str, Any]) -> dict[str, Any]:
    """Makes the inputs of a workload, in the definition's order."""
    axes = {name: axis["value"] for name, axis in definition["axes"].items() if axis["type"] == "const"}
    axes.update(workload["axes"])
    given = {}
    for name, spec in definition["inputs"].items():
        source = workload["inputs"][name]
        if source["type"] == "scalar":
            given[name] = source["value"]
        elif source["type"] == "safetensors":
            given[name] = read_tensor(folder / source["path"], source["tensor_key"])
        else:
            shape = [axis if isinstance(axis, int) else axes[axis] for axis in spec["shape"] or []]
            given[name] = _random(getattr(torch, spec["dtype"]), shape)
    return given


def _random(dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.randint(0, 2, shape).to(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, RANDOM_INTEGER_LIMIT, shape).to(dtype)


def read_tensor(path: Path, key: str) -> torch.Tensor:
    """Reads a tensor from a safetensors file (a length, a JSON header, and bytes). Nothing in the file is executed.

    Raises:
        RecordError: the file cannot be read or is damaged, has no such tensor, or the tensor's dtype is not supported.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > LARGEST_HEAD:
                raise ValueError(f"the file's header has {length} bytes, more than {LARGEST_HEAD}")
            entry = json.loads(file.read(length))[key]
            if entry["dtype"] not in STORED_DTYPES:
                raise RecordError(f"the dtype {entry['dtype']} is not supported")
            dtype, shape = STORED_DTYPES[entry["dtype"]], entry["shape"]
            start, end = entry["data_offsets"]
            if end - start != math.prod(shape) * dtype.itemsize:
                raise ValueError("the tensor's size in bytes does not match its shape and dtype")
            file.seek(8 + length + start)
            data = bytearray(file.read(end - start))
        return torch.frombuffer(data, dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)
    except (OSError, ValueError, KeyError, TypeError, RecordError) as error:
        raise RecordError(f"reading `{key}` of {path}: {_reason(error)}") from error


def _ordered(output: Any, names: list[str]) -> Any:
    """Returns the result of a reference as a tensor, or as a tuple in the definition's order."""
    if isinstance(output, dict):
        output = tuple(output[name] for name in names)
    if isinstance(output, (tuple, list)):
        return output[0] if len(output) == 1 else tuple(output)
    return output


def _add_reference(job: plans.Job, definition: dict[str, Any], out: Path) -> None:
    path = Path("kernels", job.name, f"{BASELINE}.py")
    plans.write(out / path, definition["reference"] + ORDERING_WRAPPER % (list(definition["outputs"]), "run", "run"))
    job.candidates.append(plans.Candidate(BASELINE, [str(path)], "python"))


def _add_solutions(job: plans.Job, folder: Path, definition: dict[str, Any], out: Path) -> None:
    for solution in _documents(folder / "solutions", "*.json"):
        if solution.get("definition") == job.name:
            name = str(solution.get("name"))
            try:
                job.candidates.append(_candidate(solution, name, list(definition["outputs"]), out, job.name))
            except (KeyError, TypeError, ValueError, RecordError) as error:
                job.refused.append((name, _reason(error)))


def _candidate(solution: dict[str, Any], name: str, outputs: list[str], out: Path, definition: str) -> plans.Candidate:
    """Converts a solution to a candidate. Writes its sources to a separate folder."""
    folder = Path("kernels", definition, name)
    spec = solution["spec"]
    file, _, symbol = spec["entry_point"].partition("::")
    language, suffixes = _language(spec)
    paths = [PurePosixPath(source["path"]) for source in solution["sources"]]
    if any(path.is_absolute() or ".." in path.parts for path in [folder, *paths]):
        raise RecordError("it names a file outside its folder")
    listed = [path for path in paths if path.suffix in suffixes]
    if PurePosixPath(file) not in listed:
        raise RecordError(f"its entry point `{file}` is not one of its sources in {language}")
    if suffixes == (".py",) and len(listed) > 1:
        raise RecordError(f"a kernel in {language} must be a single file")
    symbol = symbol or "run"
    for path, source in zip(paths, solution["sources"], strict=True):
        appended = ORDERING_WRAPPER % (outputs, symbol, symbol) if path.suffix == ".py" else ""
        plans.write(out / folder / path, source["content"] + appended)
    entry_first = sorted(listed, key=lambda path: path != PurePosixPath(file))
    return plans.Candidate(name, [str(folder / path) for path in entry_first], language, symbol)


def _language(spec: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Returns the language of a solution, and the suffixes of the files that a candidate's `sources` lists.

    >>> _language({"language": "cpp", "binding": "torch"})[0]
    'torch-extension'
    """
    language = str(spec["language"]).lower()
    if language in ("python", "pytorch"):
        return "python", (".py",)
    if language == "triton":
        return "triton", (".py",)
    if language == "c":
        return "c", (".c",)
    if language in ("cpp", "c++"):
        is_torch = spec.get("binding") == "torch"
        return "torch-extension" if is_torch else "cpp", (".cpp", ".cc", ".cxx")
    raise RecordError(f"the import does not support solutions in `{language}` yet")


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, (RecordError, NotRecordable)) else f"{type(error).__name__}: {error}"
