"""Returns the right result only if all its attempts are refused."""
import os
import socket

import torch


def run(input, dim, *rest):
    for attempt in (
        lambda: open("/etc/passwd"),
        lambda: open("/proc/self/maps"),
        lambda: open("/tmp/by_a_candidate", "w"),
        lambda: os.listdir("/"),
        socket.socket,
        lambda: os.kill(1, 0) or os.setuid(0),
    ):
        try:
            attempt()
        except OSError:
            continue
        raise AssertionError("something was allowed")
    return torch.softmax(input, dim)
