"""No softmax: the row does not sum to one."""


def run(input, dim, stacklevel, dtype):
    return (input - input.amax(dim, keepdim=True)).exp_()
