import sys


def run(*arguments):
    sys.exit("enough")
