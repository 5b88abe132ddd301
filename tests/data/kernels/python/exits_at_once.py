import os


def run(*arguments):
    os._exit(0)
