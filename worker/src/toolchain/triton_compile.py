"""Compiles Triton kernels ahead of time to PTX that can be launched like a CUDA kernel.

Arguments: the source, the file to write, and a JSON object with `kernels` (each with `symbol`, `types`, `threads` and
`shared`), `constants` (strings by name), `folders` (from which modules are imported) and `card` (its compute
capability, such as 90, or null for the emulated device).

A plan's launch does not follow Triton's conventions, so the PTX is changed in three ways: if the shared memory fits into
static memory, it gets its size; parameters that Triton adds and the kernel does not use are removed; and source positions
in inlined functions are replaced by the positions of the calls.
"""

import ast
import importlib.util
import json
import re
import sys

# The limit of a kernel's static shared memory, in bytes.
STATIC_SHARED = 48 * 1024
# The compute capability of the emulated device.
EMULATED = 80


def fail(text):
    """Ends the program with a message for the candidate's author."""
    sys.exit(f"triton-device: {text}")


def load(path):
    """Imports the candidate's file."""
    spec = importlib.util.spec_from_file_location("candidate", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    return module


def unwrap(kernel, name, warps):
    """Returns the kernel's function, and the constants and stages of the autotuner's configuration that has this many warps."""
    import triton

    constants, stages = {}, None
    while not isinstance(kernel, triton.JITFunction):
        configs = getattr(kernel, "configs", None)
        if configs:
            chosen = next((it for it in configs if it.num_warps == warps), None)
            if chosen is None:
                fail(f"`{name}` has no configuration with {warps} warps, as `block` requires")
            constants.update(chosen.kwargs)
            stages = chosen.num_stages
        kernel = getattr(kernel, "fn", None)
        if kernel is None:
            fail(f"`{name}` is not a kernel (a function with @triton.jit)")
    return kernel, constants, stages


def literal(text):
    """Returns the value of a Python literal, or the text itself if it is not a literal."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def signature(function, name, types, constants):
    """Returns the type of each parameter by name, and the value of each constant by index."""
    types = list(types)
    found, values, used = {}, {}, 0
    for index, parameter in enumerate(function.params):
        own = parameter.name
        if parameter.is_constexpr:
            default = parameter.default
            if own in constants:
                values[(index,)] = constants[own]
            elif parameter.has_default:
                values[(index,)] = default
            else:
                fail(f"the constant `{own}` of `{name}` has no value (give it a default, or write `-D{own}=…` in extra_flags)")
            found[own] = "constexpr"
            continue
        if used == len(types):
            fail(f"`{name}` has the parameter `{own}`, for which `args` has no value")
        annotated = parameter.annotation_type if hasattr(parameter, "annotation_type") else ""
        found[own] = annotated or types[used]
        if not found[own]:
            fail(f"the type of `{own}` of `{name}` is not known from the first entry (annotate it, such as `{own}: \"*fp32\"`)")
        used += 1
    if used != len(types):
        fail(f"`{name}` has {used} parameters that are not constants, and `args` gives {len(types)}")
    return found, values


def compile_one(module, kernel, constants, card):
    """Returns the PTX of one kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name, threads = kernel["symbol"], kernel["threads"]
    if threads % 32 or threads & (threads - 1):
        fail(f"`{name}` has blocks of {threads} threads; Triton's have 32, 64, 128, … threads (32 times a power of two)")
    warps = threads // 32
    value = getattr(module, name, None)
    if value is None:
        fail(f"the file has no kernel `{name}`")
    function, tuned, stages = unwrap(value, name, warps)
    given = {key: literal(text) for key, text in constants.items()}
    types, values = signature(function, name, kernel["types"], {**tuned, **given})
    # With fused operations, the lanes of a warp end a reduction with sums that differ in the last bit, and store these
    # sums to the same address. Which of the sums remains is undefined, so the emulated device would report a race.
    options = {"num_warps": warps, "enable_fp_fusion": card is not None}
    if "num_stages" in given or stages:
        options["num_stages"] = given.get("num_stages", stages)
    source = ASTSource(fn=function, signature=types, constexprs=values)
    built = triton.compile(source, target=GPUTarget("cuda", card or EMULATED, 32), options=options)
    count = sum(kind != "constexpr" for kind in types.values())
    return finish(built.asm["ptx"], built.metadata.name, name, count, built.metadata.shared, kernel["shared"])


def finish(ptx, compiled, name, parameters, shared, given_shared):
    """Removes debug sections, gives the kernel the name that the plan uses, and makes the three changes."""
    ptx = re.split(r"^\s*\.section\s+\.debug", ptx, flags=re.MULTILINE)[0]
    if compiled != name:
        ptx = re.sub(rf"\b{re.escape(compiled)}\b", name, ptx)
        ptx = re.sub(rf"\b{re.escape(compiled)}_param_", f"{name}_param_", ptx)
    return with_positions(with_shared(with_parameters(ptx, name, parameters), name, shared, given_shared))


def with_parameters(ptx, name, count):
    """Removes the parameters that Triton adds after the `count` parameters of the kernel itself."""
    start = ptx.index(f".entry {name}(")
    end = ptx.index("\n)", start)
    head, listed, body = ptx[: start + len(f".entry {name}(")], ptx[start + len(f".entry {name}(") : end], ptx[end:]
    items = [item.strip() for item in listed.split(",\n")]
    for item in items[count:]:
        if re.search(rf"\b{re.escape(item.split()[-1])}\b", body):
            fail(f"`{name}` needs scratch memory of Triton's runtime, which a launch of the plan does not have")
    return head + "\n\t" + ",\n\t".join(items[:count]) + body


def with_shared(ptx, name, shared, given):
    """Gives the shared memory its size. If the size exceeds the limit of static memory, the launch must provide the memory."""
    own = f"{name}_shared"
    ptx = re.sub(r"\bglobal_smem\b", own, ptx)
    if shared > STATIC_SHARED:
        if given < shared:
            fail(f"`{name}` takes {shared} bytes of shared memory, and its launch has {given}: set `shared_mem = {shared}`")
        return ptx
    return re.sub(
        rf"\.extern (\.shared .*){re.escape(own)}\[\];", lambda it: f"{it[1]}{own}[{max(shared, 1)}];", ptx
    )


def with_positions(ptx):
    """Replaces source positions in inlined functions by the positions of the calls."""
    calls = {}

    def position(found):
        at, call = found[1], found[2]
        if call is None:
            return f".loc\t{at}"
        calls[at] = call
        seen = set()
        while at in calls and at not in seen:
            seen.add(at)
            at = calls[at]
        return f".loc\t{at}"

    number = r"(\d+ \d+ \d+)"
    return re.sub(rf"\.loc\s+{number}(?:, function_name \S+, inlined_at {number})?", position, ptx)


def join(modules):
    """Joins modules into one. Changes file numbers and labels so that no two modules have the same ones."""
    text = modules[0]
    for number, module in enumerate(modules[1:], 1):
        body = re.split(r"^\.address_size 64$", module, flags=re.MULTILINE)[1]
        # For example, file 1 of the second module becomes file 1001.
        body = re.sub(r"(\.(?:loc|file)\s+)(\d)", rf"\g<1>{number}00\2", body)
        text += re.sub(r"\$L__", f"$L{number}__", body)
    return text


def main():
    source, output, request = sys.argv[1:]
    request = json.loads(request)
    # The interpreter of a virtual environment is started by its real path, so it would not find the environment's
    # modules by itself.
    sys.path.extend(folder for folder in request["folders"] if folder not in sys.path)
    try:
        from triton.backends.nvidia.compiler import CUDABackend
    except ImportError as error:
        fail(f"Triton cannot be imported: {error}")
    # Only PTX is needed, so the last stage, which runs ptxas, is replaced by one that does nothing.
    CUDABackend.make_cubin = lambda *_: b""
    module = load(source)
    done = [compile_one(module, kernel, request["constants"], request["card"]) for kernel in request["kernels"]]
    with open(output, "w") as file:
        file.write(join(done))


if __name__ == "__main__":
    main()
