KEPT = []
while True:
    KEPT.append(bytearray(1 << 20))
