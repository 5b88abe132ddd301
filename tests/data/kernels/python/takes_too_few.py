def run(input):
    return input
