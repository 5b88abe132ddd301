"""Correct: adds to its first argument in place, and returns it like torch's own function."""


def run(input, other, alpha):
    return input.add_(other, alpha=alpha)
