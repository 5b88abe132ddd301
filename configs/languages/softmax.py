"""Softmax in PyTorch's own operations. Every step creates a tensor, and the last one is returned."""


def run(input, dim, stacklevel, dtype):
    raised = (input - input.amax(dim, keepdim=True)).exp_()
    return raised / raised.sum(dim, keepdim=True)
