def softmax(input, dim, *rest):
    return input
