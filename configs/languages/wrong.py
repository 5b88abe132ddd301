"""A softmax that forgets to divide by the sum of the row."""


def run(input, dim, stacklevel, dtype):
    return (input - input.amax(dim, keepdim=True)).exp_()
