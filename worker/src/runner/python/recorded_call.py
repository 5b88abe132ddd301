"""Finds the function that captures name, and writes the calls of this function as Python source.

This file's text is put in front of two programs, both of which import torch: the driver of a runner's interpreter, and the
program that compiles recorded functions.
"""

import types


def recorded_function(name):
    """Returns the function that a capture names. Looks it up only in torch, and not in modules that torch imports."""
    first, *rest = name.split(".")
    found = torch if first == "torch" and rest else None
    for part in rest:
        home = found.__name__ if isinstance(found, types.ModuleType) else getattr(type(found), "__module__", "")
        if isinstance(found, type):
            home = found.__module__
        if not (home == "torch" or home.startswith("torch.")):
            found = None
            break
        found = getattr(found, part, None)
    if not callable(found) or isinstance(found, type):
        raise LookupError(f"the captures name `{name}`, which is not a function of this version of torch")
    return found


class CallSource:
    """Builds the source of a function that makes the call of one entry, and the values that the source refers to."""

    def __init__(self, tensors):
        self.values = {}
        self.index_of = {tensor: index for index, tensor in enumerate(tensors)}

    def value(self, value):
        name = f"v{len(self.values)}"
        self.values[name] = value
        return name

    def part(self, part):
        """Returns a Python expression for a part of the call, such as one argument."""
        if part == "none":
            return "None"
        ((kind, it),) = part.items()
        if kind == "tensor":
            return f"tensor(t{self.index_of[it]})"
        if kind == "list":
            return "[" + ", ".join(map(self.part, it)) + "]"
        if kind == "tuple":
            return "(" + "".join(self.part(item) + ", " for item in it) + ")"
        if kind == "float":
            return self.value(float(it))
        if kind == "torch":
            return self.value(getattr(torch, it))
        if kind == "device":
            return self.value(torch.device(it))
        return self.value(it)

    def arguments(self, call, left_out=()):
        """Returns the expressions for the call's arguments, except the positional ones at the places `left_out`."""
        parts = [self.part(part) for place, part in enumerate(call["positional"]) if place not in left_out]
        if call["named"]:
            # Names come from a capture and need not be valid identifiers.
            named = ", ".join(f"{self.value(name)}: {self.part(part)}" for name, part in call["named"])
            parts.append("**{" + named + "}")
        return parts
