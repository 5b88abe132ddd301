"""Returns the sum instead of adding in place."""


def run(input, other, alpha):
    return input + alpha * other
