def run(input, *rest):
    pass
