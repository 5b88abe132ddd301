def helper(input):
    raise ValueError("only float64,\nand only large")


def run(input, *rest):
    return helper(input)
