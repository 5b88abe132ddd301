def run(input, *rest):
    raise ValueError("half of a pair: \ud800")
