"""Runs in a runner's interpreter: imports torch before any foreign code runs, and later loads a candidate's module and
makes the calls of its entries.

The runner calls `Driver.load` once. It returns functions that make the calls of each entry. Each of these functions gets
DLPack capsules of mapped memory, first for the inputs and then for the outputs, and returns None or an error text. A
candidate may do anything to these objects, because the verdict, the clock and the expected outputs are in another process.
"""

import ctypes
import gc
import importlib
import importlib.util
import inspect
import io
import json
import linecache
import os
import sys
import traceback
import types

exit_now = os._exit
write_now = os.write

# Modules that candidates often import. If the interpreter lies in a folder that the runner's own user cannot enter,
# nothing more can be imported once the runner has become that user.
IMPORTED_EARLY = (
    "abc array base64 bisect cProfile collections collections.abc concurrent.futures contextlib copy ctypes dataclasses datetime "
    "decimal encodings.ascii encodings.cp1252 encodings.iso8859_1 encodings.latin_1 encodings.utf_8_sig "
    "enum fractions functools hashlib heapq itertools logging math multiprocessing numbers numpy numpy.random operator "
    "pathlib pickle platform pstats queue random re secrets shutil signal socket statistics string struct subprocess tempfile textwrap threading "
    "time torch torch.nn torch.nn.functional typing typing_extensions uuid warnings weakref"
).split()

# The largest number of frames of a traceback that are reported. They are the innermost ones.
MAX_FRAMES = 4
UNSUPPORTED = "opt.Unsupported"


class BoundedStream(io.RawIOBase):
    """A standard stream whose file has a limited size. Output that exceeds the limit is dropped, as `printf` in C drops it."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def writable(self):
        return True

    def fileno(self):
        return self.number

    def write(self, data):
        try:
            write_now(self.number, data)
        except OSError:
            pass
        return len(data)


def text_stream(number):
    return io.TextIOWrapper(BoundedStream(number), encoding="utf-8", errors="backslashreplace", write_through=True)


class WrongResult(Exception):
    """The error for a candidate that returned something that does not match its outputs."""


def encodable(text):
    """Escapes surrogates. UTF-8 cannot encode them, so an error text that contains one could not be reported."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def explain(error):
    """Describes an exception, and the lines of code in which it was raised."""
    try:
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        frames = traceback.extract_tb(error.__traceback__)
        shown = [frame for frame in frames if frame.filename != "<string>"][-MAX_FRAMES:]
        locations = "; ".join(f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in shown)
        return encodable(f"{text} (at {locations})" if locations else text)
    except BaseException:
        return encodable(type(error).__name__)


def exit_process(end):
    """Ends the process, with the exit code of a SystemExit that a candidate raised."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            pass
    code = end.code
    if code is not None and not isinstance(code, int):
        write_now(2, f"{code}\n".encode("utf-8", "backslashreplace"))
        code = 1
    exit_now((code or 0) & 0xFF)


def about_standard_module(error):
    """Returns a hint if the error says that a standard module of the interpreter cannot be imported."""
    name = str(getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ImportError) and name in sys.stdlib_module_names:
        return " (a standard module: is this interpreter complete, and can every user read its files?)"
    return ""


def failed(error):
    """Returns the error text for an exception that a candidate raised. If it is a SystemExit, ends the process instead."""
    if type(error) is WrongResult:
        return encodable(error.args[0])
    if isinstance(error, SystemExit):
        exit_process(error)
    try:
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.__stderr__)
    except BaseException:
        pass
    text = explain(error)
    if "0 active drivers" in text:
        text += " (set `language = \"triton\"`; the kernel is then interpreted)"
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return f"opt.HostMemory: {text}"
    return f"opt.Raised: {text}"


def module_of(source, name):
    """Loads the candidate's module."""
    module = types.ModuleType("candidate")
    module.__file__ = name
    sys.modules["candidate"] = module
    text = importlib.util.decode_source(source)
    # Without a modification time, linecache never looks for the lines in a file.
    linecache.cache[name] = (len(source), None, text.splitlines(True), name)
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def function_of(module, symbol):
    """Returns what the candidate's calls call: a function, or an instance of the class that has this name."""
    found = getattr(module, symbol, None)
    if found is None and symbol == "run":
        found = getattr(module, "ModelNew", None)
    if found is None:
        others = " and no `ModelNew`" if symbol == "run" else ""
        raise LookupError(f"the module has no `{symbol}`{others} (define it, or name another one with `symbol`)")
    if isinstance(found, type):
        # A model may draw random weights. If the captures contain weights, those replace the random ones.
        initial = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
        found = found(*initial)
        if isinstance(found, torch.nn.Module):
            found.eval()
    if not callable(found):
        raise TypeError(f"`{symbol}` is {type(found).__name__}, which cannot be called")
    return found


class State:
    """The recorded parameters and buffers of a model, which are the arguments whose names in the captures begin with `self.`.

    Before each call, the model's tensors are set to the entry's values, so `forward` gets only the other arguments.
    """

    def __init__(self, model, symbol, entry):
        recorded = entry["state"]
        self.places = {it["place"] for it in recorded}
        # Pairs of a tensor of the model and the place of its value among the arguments.
        self.tensors = []
        for it in recorded:
            if it["name"] == "training":
                model.train(entry["call"]["positional"][it["place"]] == {"bool": True})
        recorded = {it["name"]: it for it in recorded if it["dtype"] is not None}
        own = dict(model.named_parameters(remove_duplicate=False))
        own.update(model.named_buffers(remove_duplicate=False))
        for name, it in recorded.items():
            if name in own:
                self.add(symbol, name, own[name], it)
        others = [it for name, it in recorded.items() if name not in own]
        unnamed = {name: tensor for name, tensor in own.items() if name not in recorded}
        # The model may lack recorded tensors that it does not need, and may have tensors that the recorded model lacks.
        if others and unnamed:
            if [form(tensor) for tensor in unnamed.values()] != [(it["dtype"], it["shape"]) for it in others]:
                raise LookupError(
                    f"`{symbol}` has no `{others[0]['name']}`, and its other parameters and buffers ({', '.join(unnamed)}) do not have the "
                    "dtypes and shapes of the recorded ones in the same order (give them the recorded names)"
                )
            for (name, tensor), it in zip(unnamed.items(), others):
                self.add(symbol, name, tensor, it)

    def add(self, symbol, name, tensor, it):
        if form(tensor) != (it["dtype"], it["shape"]):
            raise TypeError(
                f"`{name}` of `{symbol}` is {tensor.dtype} of shape {list(tensor.shape)}; the recorded model has torch.{it['dtype']} of shape {it['shape']}"
            )
        self.tensors.append((tensor, it["place"]))


def form(tensor):
    """Returns the dtype and shape of a tensor, in the notation of the captures."""
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape)


def state_of(function, symbol, entry):
    """Returns the state to set in a model before calls. Returns None if there is none, or if the candidate takes it as arguments."""
    recorded = entry["state"]
    if not recorded or not isinstance(function, torch.nn.Module):
        return None
    inputs, outputs = len(entry["call"]["positional"]), len(entry["outputs"])
    try:
        least, most = arity(function)
    except (TypeError, ValueError):
        least, most = 0, None
    given = inputs - len(recorded)
    if least <= given and (most is None or given <= most):
        return State(function, symbol, entry)
    try:
        takes_outputs(function, symbol, inputs, outputs)
    except TypeError:
        return State(function, symbol, entry)
    return None


def arity(function):
    """Returns the smallest and the largest number of positional arguments that a function takes. None means that there is no limit."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    parameters = inspect.signature(called).parameters.values()
    by_place = [it for it in parameters if it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD)]
    least = sum(it.default is it.empty for it in by_place)
    return least, None if any(it.kind is it.VAR_POSITIONAL for it in parameters) else len(by_place)


def takes_outputs(function, symbol, inputs, outputs):
    """Returns True if a function takes its outputs after its inputs, and False if it returns them. Raises TypeError if it can do neither."""
    try:
        least, most = arity(function)
    except (TypeError, ValueError):
        return False

    def fits(count):
        return least <= count and (most is None or count <= most)

    if least == inputs + outputs:
        return True
    if fits(inputs):
        return False
    if fits(inputs + outputs):
        return True
    count = f"at least {least}" if most is None else f"{least} to {most}" if least < most else least
    raise TypeError(
        f"`{symbol}` takes {count} positional arguments; it must take the {inputs} of "
        f"the captures, or {inputs + outputs} if the outputs follow them"
    )


def single_tensor(value, path):
    """Returns the only tensor in a returned tuple or list. Raises an error for any other value."""
    if isinstance(value, (tuple, list)):
        (found,) = all_tensors(value, (path,))
        return found
    if isinstance(value, Tensor):
        raise WrongResult(f"opt.Raised: `{path}` is a {type(value).__module__}.{type(value).__qualname__}: return plain tensors")
    raise WrongResult(
        f"opt.Raised: it returned {'None' if value is None else 'a value of type ' + type(value).__name__} where `{path}` is expected (return a "
        "tensor, or take the outputs after the inputs and write into them)"
    )


def all_tensors(value, paths):
    """Returns the tensors that a returned value contains, in order."""
    found = []

    def collect(part):
        if isinstance(part, (tuple, list)):
            for item in part:
                collect(item)
        elif part is not None:
            found.append(part if type(part) is Tensor else single_tensor(part, paths[min(len(found), len(paths) - 1)]))

    collect(value)
    if len(found) != len(paths):
        raise WrongResult(f"opt.IncorrectShape: it returned {len(found)} tensors, expected {len(paths)}")
    return found


def raise_mismatch(returned, path, dtype, shape):
    """Raises an error that describes how a returned tensor differs from the expected one."""
    if returned.dtype is not dtype:
        raise WrongResult(f"opt.IncorrectDtype: `{path}` is {returned.dtype}, expected {dtype}")
    if returned.shape != shape:
        raise WrongResult(f"opt.IncorrectShape: `{path}` has the shape {tuple(returned.shape)}, expected {tuple(shape)}")
    if not returned.is_cpu:
        raise WrongResult(f"opt.Raised: `{path}` is on the device {returned.device}, expected cpu")
    raise WrongResult(f"opt.Raised: `{path}` has the layout {returned.layout}, expected torch.strided")


def one_along(tensor, axes):
    """Returns a view of the first element along each of these axes."""
    for axis in axes:
        tensor = tensor.narrow(axis, 0, 1)
    return tensor


def one_of_each(returned, path, axes):
    """Returns the first elements along the axes along which the recorded output was expanded. The others must be equal to them, apart from rounding."""
    for axis in axes:
        first = returned.narrow(axis, 0, 1)
        # If the returned tensor is expanded too, its elements share memory, so they are equal.
        if returned.stride(axis) != 0 and not are_equal(returned, first.expand_as(returned)):
            raise WrongResult(
                f"opt.IncorrectNumerical: the elements of `{path}` along axis {axis} must be equal, because the recorded output was expanded along it"
            )
        returned = first
    return returned


def are_equal(tensor, other):
    """Returns True if two tensors are equal, apart from rounding. NaN counts as equal to NaN."""
    if tensor.dtype.itemsize == 1:
        return torch.equal(tensor.view(torch.uint8), other.view(torch.uint8))
    if torch.equal(tensor, other):
        return True
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return False
    return torch.allclose(tensor, other, rtol=8 * torch.finfo(tensor.dtype).eps, atol=0, equal_nan=True)


def caller(function, entry, destination, state=None, kept=True):
    """Returns a function that makes the call of an entry. If `kept` is False, it neither sets the state nor copies returned outputs."""
    text = CallSource(entry["tensors"])
    arguments = text.arguments(entry["call"], state.places if state else ())
    outputs = entry["outputs"]
    given = [f"t{index}" for index in range(len(entry["tensors"]))] + [f"o{index}" for index in range(len(outputs))]
    if destination:
        arguments += [f"tensor(o{index})" for index in range(len(outputs))]
    lines = []
    if state and kept:
        positional = entry["call"]["positional"]
        lines += [f"{text.value(tensor)}.data = {text.part(positional[place])}" for tensor, place in state.tensors]
    lines += [f"y = function({', '.join(arguments)})", "if y is NotImplemented: return unsupported"]
    if kept and not destination and outputs:
        paths = text.value(tuple(output["path"] for output in outputs))
        if len(outputs) == 1:
            lines.append(f"y0 = y if type(y) is Tensor else single_tensor(y, {paths}[0])")
        else:
            lines.append(f"{', '.join(f'y{index}' for index in range(len(outputs)))}, = all_tensors(y, {paths})")
        for index, output in enumerate(outputs):
            dtype = text.value(getattr(torch, output["dtype"]))
            shape = text.value(torch.Size(output["shape"]))
            returned = f"y{index}"
            lines.append(
                f"if {returned}.dtype is not {dtype} or {returned}.shape != {shape} or not {returned}.is_cpu or {returned}.layout is not "
                f"strided: raise_mismatch({returned}, {paths}[{index}], {dtype}, {shape})"
            )
            expanded = output["expanded"]
            if expanded:
                lines.append(f"{returned} = one_of_each({returned}, {paths}[{index}], {text.value(expanded)})")
                lines.append(f"copy(one_along(tensor(o{index}), {text.value(expanded)}), {returned})")
            else:
                lines.append(f"copy(tensor(o{index}), {returned})")
    body = "\n".join(f"        {line}" for line in lines)
    source = f"def call({', '.join(given)}):\n    try:\n{body}\n    except BaseException as error:\n        return failed(error)\n"
    names = {
        "function": function,
        "tensor": from_capsule,
        "copy": copy_into,
        "strided": torch.strided,
        "Tensor": Tensor,
        "single_tensor": single_tensor,
        "all_tensors": all_tensors,
        "raise_mismatch": raise_mismatch,
        "one_along": one_along,
        "one_of_each": one_of_each,
        "failed": failed,
        "unsupported": UNSUPPORTED,
        **text.values,
    }
    exec(compile(source, "<string>", "exec"), names)
    return names["call"]


class Graphs:
    """The compiled calls of a recorded function. Each is in a shared library that is loaded once."""

    def __init__(self, paths, symbol):
        self.paths = json.loads(paths)
        self.symbol = symbol
        self.loaded = {}

    def call_of(self, entry):
        """Returns the compiled function that makes the call of an entry. It takes all tensors of the call, in order."""
        key = entry["graph"]
        if key not in self.loaded:
            if key not in self.paths:
                raise LookupError(f"`{self.symbol}` was not compiled for this call")
            graph = torch._C._aoti.AOTIModelContainerRunnerCpu(self.paths[key], 1)
            # The default value of `run` keeps the library loaded.
            self.loaded[key] = lambda *tensors, run=graph.run: run(list(tensors))
        return self.loaded[key]


def flat(entry):
    """Returns the entry with its call changed so that it passes only the tensors, by position."""
    return {**entry, "call": {"positional": [{"tensor": tensor} for tensor in entry["tensors"]], "named": []}}


class Driver:
    """The object whose methods the runner calls."""

    def rehearse(self):
        return rehearse(self)

    def load(self, source, name, symbol, threads, graphs, entries):
        """Loads a candidate for these entries. Without a `name`, it is the recorded function, or its compiled calls if there are `graphs`.

        Returns an error text or None, 1 if the candidate returns its outputs and else 0, the calls of the entries, and their plan calls.
        """
        try:
            torch.set_num_threads(threads)
            entries = [json.loads(entry) for entry in entries]
            if name:
                module = module_of(source, name)
                function, plan = function_of(module, symbol), getattr(module, f"{symbol}_plan", None)
                functions = [function] * len(entries)
                state = state_of(function, symbol, entries[0])
                inputs, outputs = len(entries[0]["call"]["positional"]), len(entries[0]["outputs"])
                destination = takes_outputs(function, symbol, inputs - len(state.places if state else ()), outputs)
            else:
                plan, destination, state = None, False, None
                if graphs:
                    opened = Graphs(graphs, symbol)
                    functions, entries = [opened.call_of(entry) for entry in entries], [flat(entry) for entry in entries]
                else:
                    functions = [recorded_function(symbol)] * len(entries)
            calls = tuple(caller(function, entry, destination, state) for function, entry in zip(functions, entries))
            plans = tuple(caller(plan, entry, destination, state, kept=False) for entry in entries) if callable(plan) else ()
            gc.collect()
            gc.freeze()
            return None, 0 if destination else 1, calls, plans
        except BaseException as error:
            text = failed(error)
            if not text.startswith("opt.HostMemory: "):
                text = text.split(": ", 1)[-1] + about_standard_module(error)
            return text, 0, (), ()


class InterpretedDevice:
    """Stands in for the driver of a GPU, because Triton interprets kernels on the CPU."""

    # The properties of an A100, which has the target's compute capability. Kernels use them to choose block sizes.
    PROPERTIES = {"max_shared_mem": 166912, "max_num_regs": 65536, "multiprocessor_count": 108, "warpSize": 32}

    def __init__(self, target):
        self.target = target
        self.utils = types.SimpleNamespace(get_device_properties=lambda device=0: dict(self.PROPERTIES))

    def get_current_target(self):
        return self.target

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_current_device(self):
        return 0

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device=0):
        return 0

    def get_benchmarker(self):
        return constant_time


def constant_time(kernel_call, *arguments, quantiles=None, **options):
    """Returns the same time for every configuration, so that autotuning keeps the first one. Times of interpreted kernels would mean nothing."""
    return 0.0 if quantiles is None else [0.0] * len(quantiles)


def interpret_triton():
    """Makes Triton use its interpreter instead of a GPU."""
    import triton.testing
    from triton.backends.compiler import GPUTarget

    triton.runtime.driver.set_active(InterpretedDevice(GPUTarget("cuda", 80, 32)))
    triton.testing.do_bench = triton.testing.do_bench_cudagraph = constant_time


def reseed():
    """Reseeds random generators after a clone, so that the copies of one zygote draw different numbers. `random` does this by itself."""
    torch.default_generator.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def boot():
    global torch, Tensor, from_capsule, copy_into
    # Garbage collections during the import would take a sixth of its time, and would find only about a megabyte.
    gc.disable()
    address = int(sys.argv[1])
    sys.argv[1:] = []
    sys.stdout = sys.__stdout__ = text_stream(1)
    sys.stderr = sys.__stderr__ = text_stream(2)
    error_text = None
    try:
        import torch
        from torch import Tensor
        from torch._C import TensorBase
        from torch._C import _from_dlpack as from_capsule

        copy_into = TensorBase.copy_
        torch.set_grad_enabled(False)
        for name in IMPORTED_EARLY:
            try:
                importlib.import_module(name)
            except ImportError:
                pass
        if os.environ.get("TRITON_INTERPRET") == "1":
            interpret_triton()
    except BaseException as error:
        error_text = explain(error)
    else:
        os.register_at_fork(after_in_child=reseed)
    gc.freeze()
    gc.enable()
    ready = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object)(address)
    exit_now(ready(Driver(), error_text))


boot()
