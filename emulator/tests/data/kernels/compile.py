"""Compiles the kernels of this folder to PTX with NVRTC: `pip install nvidia-cuda-nvrtc nvidia-cuda-runtime`, then
run this with the same Python. The texts are kept in the repository, so that the tests need no toolchain."""

import ctypes
import importlib.util
import pathlib
import re


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


def main():
    here = pathlib.Path(__file__).parent
    nvidia = pathlib.Path(next(iter(importlib.util.find_spec("nvidia").submodule_search_locations)))
    library = ctypes.CDLL(str(next(nvidia.glob("*/lib/libnvrtc.so*"))))
    include = next(nvidia.glob("*/include/cuda_fp16.h")).parent
    for path in sorted(here.glob("*.cu")):
        text = compiled(library, path.read_text(), path.name, include, [])
        # Keep the line information of our own files only, and no debug sections.
        text = re.sub(r'\.file\s+(\d+) "[^"]*/([^"/]+)"', r'.file \1 "\2"', text)
        text = re.sub(r"\n[ \t]*\.section.*", "", text, flags=re.S) + "\n"
        text = re.sub(r"\n(?:[ \t]*\n)+", "\n", text)
        path.with_suffix(".ptx").write_text(text)
        print(path.stem, len(text), text.count(".entry"))


if __name__ == "__main__":
    main()
