"""Compiles the calls of a recorded function ahead of time, each to a shared library that runs without Python.

Argument: a JSON file with `function`, `calls` (each with `key`, `call` and `tensors`), `threads`, `folders` (from which
modules are imported), `cxx` and `output`. The calls are compiled by the compiler that `torch.compile` uses, each for its
own shapes.
"""

import json
import os
import shlex
import shutil
import struct
import subprocess
import sys

MAGIC = b"opt-graphs 1\n"


def fail(text, details=""):
    """Ends the program with a message for the user who runs the plan, followed by details such as a compiler's output."""
    sys.exit(f"torch.compile: {text}\n{details}".rstrip())


def example(tensor):
    """Returns a tensor with the form of a tensor of the call, but without memory."""
    return torch.empty_strided(tensor["shape"], tensor["stride"], dtype=getattr(torch, tensor["dtype"]))


def left_to_torch(library):
    """Returns the operations that are not compiled, and that the library looks up by name in torch. Runners lack the file that lists them."""
    try:
        with open(os.path.splitext(library)[0] + ".json") as file:
            nodes = json.load(file)["nodes"]
    except FileNotFoundError:
        return []
    return sorted({node["node"]["target"] for node in nodes})


def stripped(library):
    """Removes the symbols that only a debugger needs, which make up most of a library. Returns the library's bytes."""
    if shutil.which("strip"):
        subprocess.run(["strip", "-s", library], check=False)
    with open(library, "rb") as file:
        return file.read()


def compile_call(function, call, name):
    """Returns the bytes of the shared library for one call."""
    tensors = call["tensors"]
    text = CallSource([tensor["index"] for tensor in tensors])
    parameters = ", ".join(f"t{index}" for index in range(len(tensors)))
    arguments = ", ".join(text.arguments(call["call"]))
    names = {"function": function, "tensor": lambda it: it, **text.values}
    exec(f"def forward(self, {parameters}):\n    return function({arguments})\n", names)
    model = type("Call", (torch.nn.Module,), {"forward": names["forward"]})()
    with FakeTensorMode():
        examples = tuple(example(tensor) for tensor in tensors)
    shapes = ", ".join(f"{tensor['dtype']}{tensor['shape']}" for tensor in tensors)
    try:
        exported = torch.export.export(model, examples, strict=False)
        library = torch._inductor.aot_compile(exported.module(), examples)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        fail(f"`{name}` cannot be compiled for ({shapes}): {type(error).__name__}: {lines[0]}", "\n".join(lines[1:]))
    left = left_to_torch(library)
    if left:
        fail(f"`{name}` cannot be compiled for ({shapes}): there is no compiled form of {', '.join(left)} for these dtypes")
    return stripped(library)


def main():
    global torch, FakeTensorMode
    with open(sys.argv[1]) as file:
        request = json.load(file)
    scratch = os.path.dirname(request["output"])
    # The interpreter of a virtual environment is started by its real path. So neither this interpreter nor those that
    # torch starts would find the environment's modules by themselves.
    sys.path.extend(folder for folder in request["folders"] if folder not in sys.path)
    os.environ.update(
        {
            "PYTHONPATH": os.pathsep.join(request["folders"]),
            "OMP_NUM_THREADS": str(request["threads"]),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(scratch, "inductor"),
            # Compiling in additional processes would take several times as much memory.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            # The path is quoted, because torch splits this text at spaces.
            "CXX": shlex.quote(request["cxx"]),
        }
    )
    import torch
    import torch._inductor
    import torch._inductor.config as config
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.set_grad_enabled(False)
    torch.set_num_threads(request["threads"])
    config.cpp.threads = request["threads"]
    print("instruction set:", pick_vec_isa())
    name = request["function"]
    try:
        function = recorded_function(name)
    except LookupError as error:
        fail(str(error))
    libraries = [(call["key"], compile_call(function, call, name)) for call in request["calls"]]
    with open(request["output"], "wb") as file:
        file.write(MAGIC + struct.pack("<Q", len(libraries)))
        for key, library in libraries:
            file.write(key.encode("ascii") + struct.pack("<Q", len(library)))
        for _, library in libraries:
            file.write(library)


main()
