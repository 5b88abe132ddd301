"""Compiles the kernels of this folder to PTX with NVRTC: `pip install nvidia-cuda-nvrtc nvidia-cuda-runtime`, then
run this with the same Python. The texts are kept in the repository, so that the tests need no toolchain. With
`--check`, compares them with a new compilation and writes nothing."""

import ctypes
import importlib.util
import pathlib
import re
import sys

# Drivers refuse PTX of a newer version than theirs. No kernel needs a newer version than this one, that of CUDA 11.4.
PTX_VERSION = "7.4"


def compiled(library, source, name, include, options):
    program = ctypes.c_void_p()
    assert library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None) == 0
    options = [b"--gpu-architecture=compute_80", b"--std=c++17", b"-lineinfo", b"--device-int128",
               b"-I" + str(include).encode()] + options
    failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    what = "ProgramLog" if failed else "PTX"
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, text)
    if failed:
        raise SystemExit(text.value.decode())
    return text.value.decode()


def texts(library, include):
    """The PTX of each source. A source that needs headers is left out if they are missing."""
    for path in sorted(pathlib.Path(__file__).parent.glob("*.cu")):
        source = path.read_text()
        if include is None and "#include" in source:
            print(f"SKIPPED {path.name}: the headers are not installed (pip install nvidia-cuda-runtime)")
            continue
        text = compiled(library, source, path.name, include or path.parent, [])
        # Keep no paths of this machine, and no debug sections, which have the names of functions.
        text = re.sub(r'\.file\s+(\d+) "[^"]*/include/([^"]+)"', r'.file \1 "/toolkit/\2"', text)
        text = re.sub(r'\.file\s+(\d+) "[^"]*/([^"/]+\.cu)"', r'.file \1 "\2"', text)
        text = re.sub(r", function_name \$\w+(\+\d+)?", "", text)
        text = re.sub(r"\n[ \t]*\.section.*", "", text, flags=re.S) + "\n"
        text = re.sub(r"^\.version .*", f".version {PTX_VERSION}", text, flags=re.M)
        yield path.with_suffix(".ptx"), re.sub(r"\n(?:[ \t]*\n)+", "\n", text)


def release(text):
    """The compiler of a text, such as `release 13.0, V13.0.88`."""
    found = re.search(r"release [\d.]+, V[\d.]+", text)
    return found.group() if found else "another release"


def main():
    nvidia = pathlib.Path(next(iter(importlib.util.find_spec("nvidia").submodule_search_locations)))
    library = ctypes.CDLL(str(next(nvidia.glob("*/lib/libnvrtc.so*"))))
    include = next((path.parent for path in nvidia.glob("*/include/cuda_fp16.h")), None)
    different = []
    for path, text in texts(library, include):
        kept = path.read_text() if path.exists() else ""
        if sys.argv[1:] != ["--check"]:
            path.write_text(text)
            print(path.stem, len(text), text.count(".entry"))
        elif release(kept) != release(text):
            print(f"SKIPPED {path.name}: its PTX is from {release(kept)}, not {release(text)}, but the source compiles")
        elif kept != text:
            different.append(path.name)
    if different:
        raise SystemExit(f"these differ from what their sources compile to (run compile.py): {', '.join(different)}")


if __name__ == "__main__":
    main()
