"""Prints, as JSON for the worker, where the parts of a Python interpreter are, and its versions of torch and Triton.

This program imports only a few small modules, and neither torch nor Triton.
"""

import glob
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import sysconfig

# The names that Python's shared library may have, and the folders in which it may be.
names = [sysconfig.get_config_var(key) for key in ("INSTSONAME", "LDLIBRARY")]
names += ["libpython%d.%d.so.1.0" % sys.version_info[:2], "libpython%d.%d.so" % sys.version_info[:2]]
folders = [sysconfig.get_config_var(key) for key in ("LIBDIR", "LIBPL")] + [os.path.join(sys.base_prefix, "lib")]
multiarch = sysconfig.get_config_var("MULTIARCH")
if multiarch:
    folders += [os.path.join(folder, multiarch) for folder in ("/usr/lib", "/lib")]


def text(*parts):
    """Returns the contents of a file, or an empty string if it cannot be read."""
    try:
        with open(os.path.join(*parts), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def libtorch(home):
    """Returns the paths and flags that are needed to compile against the torch in the folder `home` and to link to it.

    They are found without importing torch, because an import would take seconds.
    """
    beside = os.path.dirname(home)
    include = os.path.join(home, "include")
    # Torch's headers require the C++ standard with which torch's own code compiles extensions.
    standards = re.findall(r"-std=c\+\+(\d\d)", text(home, "utils", "cpp_extension.py"))
    abi = re.findall(r"-D_GLIBCXX_USE_CXX11_ABI=[01]", text(home, "share", "cmake", "Torch", "TorchConfig.cmake"))
    return {
        "include": [include, os.path.join(include, "torch", "csrc", "api", "include"), sysconfig.get_path("include")],
        "libraries": [os.path.join(home, "lib"), os.path.join(beside, "torch.libs"), *sorted(glob.glob(os.path.join(beside, "nvidia", "*", "lib")))],
        "flags": ["-std=c++" + max(standards, default="17"), *abi[:1]],
    }


try:
    found = importlib.util.find_spec("torch")
    torch = importlib.metadata.version("torch") if found else None
except importlib.metadata.PackageNotFoundError:
    torch = "of unknown version"
try:
    triton = importlib.metadata.version("triton") if importlib.util.find_spec("triton") else None
except importlib.metadata.PackageNotFoundError:
    triton = "of unknown version"
print(
    json.dumps(
        {
            "version": sys.version_info[:3],
            "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
            "folders": sys.path + [os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix)],
            "libraries": [os.path.join(folder, name) for folder in folders for name in names if folder and name and ".so" in name],
            "torch": torch,
            "triton": triton,
            "libtorch": libtorch(found.submodule_search_locations[0] if found else ""),
        }
    )
)
