"""Softmax in PyTorch's own operations. Returns the output."""


def run(input, dim, stacklevel, dtype):
    raised = (input - input.amax(dim, keepdim=True)).exp_()
    return raised / raised.sum(dim, keepdim=True)
