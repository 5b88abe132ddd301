import os
import subprocess

import torch


def run(input, dim, *rest):
    for start in (os.fork, lambda: subprocess.run(["/bin/true"])):
        try:
            start()
        except OSError:
            continue
        os.abort()
    return torch.softmax(input, dim)
