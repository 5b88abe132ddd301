"""A wrong softmax: it does not divide by the sum of the row."""


def run(input, dim, stacklevel, dtype):
    return (input - input.amax(dim, keepdim=True)).exp_()
