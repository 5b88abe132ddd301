import ctypes


def run(*arguments):
    ctypes.string_at(16)
