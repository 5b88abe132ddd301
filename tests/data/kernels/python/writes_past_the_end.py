import ctypes

import torch


def run(input, dim, _stacklevel, dtype, output):
    torch.softmax(input, dim, out=output)
    ctypes.memset(output.data_ptr() + output.nbytes, 7, 1)
