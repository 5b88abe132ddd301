"""Compiles the CUDA kernels in this folder with NVRTC to PTX for compute capability 8.0.

    python -m venv venv && venv/bin/pip install nvidia-cuda-nvrtc
    venv/bin/python configs/cuda/make_ptx.py            # writes ptx/*.ptx
    venv/bin/python configs/cuda/make_ptx.py --check    # only compares the output with ptx/*.ptx

Each version of NVRTC writes different PTX. If a file was written by another version, `--check` says SKIPPED and only
compiles its source.
"""

import ctypes
import glob
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
OPTIONS = [b"--gpu-architecture=compute_80", b"-lineinfo"]
# A driver refuses PTX of a version that is newer than the driver, and NVRTC writes the newest version that it knows. The
# kernels need 7.2 at most, so they are declared as PTX of CUDA 11.4, which all drivers since 470 can load.
PTX_VERSION = "7.4"


def load_nvrtc():
    """Loads NVRTC from the Python package; returns None if it is not installed."""
    patterns = [f"{folder}/nvidia/*/lib/libnvrtc.so.*" for folder in sys.path if folder]
    found = [path for pattern in patterns for path in sorted(glob.glob(pattern))]
    return ctypes.CDLL(found[0]) if found else None


def compile_to_ptx(nvrtc, source):
    program = ctypes.c_void_p()
    text = source.read_bytes()
    check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None))
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    code = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    if code:
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(f"{source.name}: {log.value.decode()}")
    size = ctypes.c_size_t()
    check(nvrtc, nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    ptx = ctypes.create_string_buffer(size.value)
    check(nvrtc, nvrtc.nvrtcGetPTX(program, ptx))
    # NVRTC puts its working folder before the name of the source.
    text = ptx.value.decode().replace(f'"{os.getcwd()}/', '"')
    return re.sub(r"^\.version .*", f".version {PTX_VERSION}", text, flags=re.MULTILINE)


def check(nvrtc, code):
    if code:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        sys.exit(f"NVRTC: {nvrtc.nvrtcGetErrorString(code).decode()}")


def release(ptx):
    """Returns the version of NVRTC in the header of a PTX file, such as `release 13.0, V13.0.88`."""
    found = re.search(r"release [\d.]+, V[\d.]+", ptx)
    return found.group() if found else "unknown"


def main():
    nvrtc = load_nvrtc()
    if nvrtc is None:
        print("SKIPPED: NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
        return 0
    only_check = sys.argv[1:] == ["--check"]
    folder = HERE / "ptx"
    folder.mkdir(exist_ok=True)
    different = []
    for source in sorted(HERE.glob("*.cu")):
        ptx = compile_to_ptx(nvrtc, source)
        target = folder / source.with_suffix(".ptx").name
        committed = target.read_text() if target.exists() else ""
        if not only_check:
            target.write_text(ptx)
        elif release(committed) != release(ptx):
            print(f"SKIPPED: {source.name} compiles, but {target.name} is from {release(committed)}, not {release(ptx)}")
        elif committed != ptx:
            different.append(target.name)
    for name in different:
        print(f"{name} differs from the output of NVRTC (run make_ptx.py)")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
