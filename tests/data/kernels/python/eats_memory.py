def run(*arguments):
    eaten = []
    while True:
        eaten.append(bytearray(64 << 20))
