"""Loads and calls a small module of our own, so that everything it uses is ready before a candidate needs it.

The first load of a module in a process and its first call initialise parts of torch. In a copy of a zygote, Linux must
also copy each page to which they write. So a zygote rehearses once, and each copy that is made in advance rehearses while
the previous candidate still runs.
"""

import json
import linecache
import sys

REHEARSED_MODULE = b"import torch\n\n\ndef run(input):\n    return torch.relu(input)\n"
REHEARSED_NAME = "rehearsal.py"


def rehearse(driver):
    """Makes one call of the module above, with a tensor of one element. Leaves no module behind. Returns an error text or None."""
    tensor = {"path": "output", "dtype": "float32", "shape": [1], "expanded": []}
    entry = {"call": {"positional": [{"tensor": 0}], "named": []}, "tensors": [0], "outputs": [tensor], "state": []}
    threads = torch.get_num_threads()
    error, _, calls, _ = driver.load(REHEARSED_MODULE, REHEARSED_NAME, "run", threads, "", [json.dumps(entry)])
    for call in calls:
        error = call(*(torch._C._to_dlpack(torch.zeros(1)) for _ in ("input", "output")))
    linecache.cache.pop(REHEARSED_NAME, None)
    sys.modules.pop("candidate", None)
    return error
