def run(input, *rest):
    return input.double()
