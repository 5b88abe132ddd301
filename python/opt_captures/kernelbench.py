"""Problems in KernelBench's form: a file with a class ``Model``, ``get_inputs()`` and ``get_init_inputs()``.

The captured call is the model's whole ``forward``. Its arguments come first, followed by parameters and buffers with
their names, such as ``self.conv.weight``. A kernel that does not use Python therefore gets everything that it needs.
"""

from __future__ import annotations

import importlib.util
import inspect
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from .effects import Treatment, Watch
from .errors import NotRecordable, RecordError
from .sinks import FileSink
from .summary import Summary
from .values import Holder, check, span_bytes, storage_key, tensors

#: The number of recorded calls. Each has different inputs.
DEFAULT_CALLS = 3
NEEDED = ("Model", "get_inputs", "get_init_inputs")
#: Prefix of the name of a parameter or buffer.
STATE = "self."


def import_problem(
    file: Path, out: Path, *, calls: int = DEFAULT_CALLS, seed: int = 42, training: bool = False
) -> Path:
    """Records a problem and returns the folder with its captures.

    The seed is set before the model is made and before each ``get_inputs()``, as KernelBench does. The model is in eval
    mode unless `training` is set.

    Raises:
        RecordError: the file is not such a problem, or its model cannot be recorded.
    """
    module = load(file)
    torch.manual_seed(seed)
    model = _called(file, "Model", module.Model, *_called(file, "get_init_inputs", module.get_init_inputs))
    model = model.train(training)
    name = file.stem
    sink = FileSink(out / "captures")
    sink.open()
    for number in range(calls):
        torch.manual_seed(seed + number)
        inputs = _called(file, "get_inputs", module.get_inputs)
        try:
            capture = capture_of(name, model, inputs)
        except NotRecordable as error:
            raise RecordError(f"recording `Model` of {file}: {error}") from error
        sink.write(name, f"entry_{number:06}.pt", capture)
    sink.close(Summary(sink.folder, sink.place, seed, [], [f"{name}: {calls} calls of Model.forward"]))
    return sink.folder / name


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


def capture_of(name: str, model: torch.nn.Module, inputs: Sequence[Any]) -> dict[str, Any]:
    """Calls the model with these inputs, and returns the call as a capture.

    Raises:
        NotRecordable: the call is random, or a capture cannot hold its values.
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
    for key, value in given.items():
        check(value, key)
    # Tensors to which the call may write are copied first: running statistics, and inputs of a model that works in
    # place.
    treatment = Treatment(given, frozenset(storage_key(it) for it in tensors(list(given.values()))))
    before = Holder(treatment.written).hold(list(given.values()))
    with torch.no_grad(), Watch(given) as watch:
        output = model(*inputs)
    watch.judge(treatment)
    check(output, "output")
    if not any(span_bytes(it) for it in tensors(output)):
        raise NotRecordable("it did not return a tensor")
    names = list(given)
    return {
        "function_name": f"{name}.Model",
        "args": [],
        "kwargs": dict(zip(names, before, strict=True)),
        "output": Holder().hold(output),
        "signature": {"params": names, "defaults": {}},
    }


def write_plan(captures: Path, out: Path) -> str:
    """Lets the program write a first plan. Returns a text that says what to do next."""
    program = shutil.which("opt-supervisor")
    if program is None:
        return f"put opt-supervisor on the PATH and run:\n  opt-supervisor init {captures} -o {out / 'plan.toml'}"
    plan = out / "plan.toml"
    done = subprocess.run(
        [program, "init", str(captures), "-o", str(plan)], capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        raise RecordError(f"writing a plan for {captures}: {done.stderr.strip()}")
    return done.stdout.strip()


def _called(file: Path, name: str, function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        raise RecordError(f"calling `{name}` of {file}: {type(error).__name__}: {error}") from error
