"""What a worker asks an interpreter: where its parts lie, and whether it has torch. Imports as little as it can."""

import importlib.metadata
import importlib.util
import json
import os
import sys
import sysconfig

names = [sysconfig.get_config_var(key) for key in ("INSTSONAME", "LDLIBRARY")]
names += ["libpython%d.%d.so.1.0" % sys.version_info[:2], "libpython%d.%d.so" % sys.version_info[:2]]
places = [sysconfig.get_config_var(key) for key in ("LIBDIR", "LIBPL")] + [os.path.join(sys.base_prefix, "lib")]
multiarch = sysconfig.get_config_var("MULTIARCH")
if multiarch:
    places += [os.path.join(place, multiarch) for place in ("/usr/lib", "/lib")]
try:
    torch = importlib.metadata.version("torch") if importlib.util.find_spec("torch") else None
except importlib.metadata.PackageNotFoundError:
    torch = "of unknown version"
print(
    json.dumps(
        {
            "version": sys.version_info[:3],
            "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
            "folders": sys.path + [os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix)],
            "libraries": [os.path.join(place, name) for place in places for name in names if place and name and ".so" in name],
            "torch": torch,
        }
    )
)
