"""Reads random captures with torch and with `opt-supervisor inspect --json --digests`, and compares the results.

    python tools/differential.py target/debug/opt-supervisor --captures 5000 [--seed 1] [--keep FOLDER]

Needs torch and numpy. Prints the differences (at most 20) and a summary line. Exits with 1 if anything differs, if a
file was refused or read by mistake, or if no file gave the same result. With `--keep`, files that differ stay in the
folder. To make a single file again, use the same seed and `--first NUMBER --captures 1`.
"""

import argparse
import collections
import dataclasses
import enum
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/data"))
from fixture_lib import Describer  # noqa: E402

warnings.filterwarnings("ignore")


class Reduction(enum.Enum):
    MEAN = 1
    SUM = "sum"


class Level(enum.IntEnum):
    LOW = 3


Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Settings:
    rate: float
    name: str


class ScriptDescriber(Describer):
    """Also describes objects of the classes above, in the form in which the pickle contains them."""

    def describe(self, obj, path="$"):
        class_name = f"{type(obj).__module__}.{type(obj).__qualname__}"
        if isinstance(obj, enum.Enum):
            return {"type": "object", "class": class_name, "called": [super().describe(obj.value)], "state": []}
        if isinstance(obj, Pair):
            parts = [self.describe(part) for part in obj]
            return {"type": "object", "class": class_name, "new": parts, "state": []}
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            return {"type": "object", "class": class_name, "new": [], "state": [self.describe(vars(obj))]}
        return super().describe(obj, path)


DENSE = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.uint8, torch.int8,
    torch.int16, torch.int32, torch.int64, torch.bool,
]
# Types that other versions of torch may lack. Tensors of these types are made from bytes.
OTHERS = [
    getattr(torch, name)
    for name in (
        "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "uint16",
        "uint32", "uint64", "complex32",
    )
    if hasattr(torch, name)
]
REFUSED_DTYPES = [getattr(torch, name) for name in ("bits8", "bits16", "bits4x2", "bcomplex32") if hasattr(torch, name)]
NUMPY = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "c8", "c16", "b1", "S3", "U2"]
FORMATS = [torch.channels_last, torch.contiguous_format, torch.preserve_format, torch.channels_last_3d]


class Maker:
    """Makes the random contents of one capture."""

    def __init__(self, number, seed, protocol):
        self.random = random.Random(f"{seed} {number}")
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(62))
        self.protocol = protocol
        # The kind of error with which the reader must refuse the file, or None if it must read the file.
        self.refused = None
        self.tensors = []

    def shape(self, least=0):
        rank = self.random.choices([0, 1, 2, 3, 4, 5], [1, 4, 5, 4, 2, 1])[0]
        sizes = [0, 1, 2, 3, 4, 7, 16] if least == 0 else [1, 2, 3, 4, 7]
        return [self.random.choices(sizes, [1, 3, 4, 4, 3, 2, 1][: len(sizes)])[0] for _ in range(rank)]

    def raw(self, dtype, shape):
        """Returns a dense tensor of random bits, except for bools."""
        if dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=self.generator, dtype=torch.uint8).bool()
        count = 1
        for size in shape:
            count *= size
        width = torch.empty(0, dtype=dtype).element_size()
        data = torch.randint(0, 256, [count * width], generator=self.generator, dtype=torch.uint8)
        return data.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)

    def dense(self):
        if self.tensors and self.random.random() < 0.25:
            return self.random.choice(self.tensors)
        return self.raw(self.random.choice(DENSE + OTHERS), self.shape())

    def view(self, tensor):
        choice = self.random.randrange(9)
        if choice == 0 and tensor.dim() > 1:
            tensor = tensor.transpose(*self.random.sample(range(tensor.dim()), 2))
        elif choice == 1 and tensor.dim() and tensor.shape[0] > 1:
            tensor = tensor[self.random.randrange(tensor.shape[0]) :: self.random.randint(1, 3)]
        elif choice == 2:
            tensor = tensor.expand([self.random.randint(1, 4), *tensor.shape])
        elif choice == 3 and tensor.dim() and tensor.shape[-1] > 2:
            tensor = tensor[..., 1:-1]
        elif choice == 4 and tensor.dtype.is_complex and tensor.dtype in DENSE:
            tensor = tensor.conj()
        elif choice == 5 and tensor.dtype in (torch.complex64, torch.complex128):
            tensor = tensor.conj().imag
        elif choice == 6 and tensor.is_contiguous() and tensor.numel() > 4:
            tensor = tensor.flatten().unfold(0, self.random.randint(1, 4), self.random.randint(1, 2))
        elif choice == 7 and tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last) if tensor.dtype in DENSE else tensor
        elif choice == 8 and tensor.numel():
            tensor = tensor.flatten()[self.random.randrange(tensor.numel())]
        return tensor

    def tensor(self):
        if self.random.random() < 0.01:
            return self.unsupported()
        tensor = self.dense()
        for _ in range(self.random.choices([0, 1, 2, 3], [6, 4, 2, 1])[0]):
            tensor = self.view(tensor)
        if self.random.random() < 0.1 and tensor.dtype in (torch.float32, torch.float64, torch.bfloat16):
            tensor = torch.nn.Parameter(tensor.detach(), requires_grad=self.random.random() < 0.5)
        self.tensors.append(tensor)
        return tensor

    def unsupported(self):
        """Returns a tensor or module that must be refused."""
        self.refused = "unsupported"
        kinds = [
            lambda: torch.eye(3).to_sparse(),
            lambda: torch.eye(3).to_sparse_csr(),
            lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
            lambda: torch.empty(3, device="meta"),
            lambda: torch.nn.Linear(2, 2),
        ]
        kinds += [lambda dtype=dtype: torch.zeros(8, dtype=torch.uint8).view(dtype) for dtype in REFUSED_DTYPES]
        return self.random.choice(kinds)()

    def array(self):
        dtype = np.dtype(self.random.choice(["<", ">"]) + self.random.choice(NUMPY))
        shape = self.shape()
        count = int(np.prod(shape, dtype=np.int64))
        if dtype.kind in "SU":
            array = np.array([self.random.choice(["", "a", "bc"]) for _ in range(count)], dtype=dtype).reshape(shape)
        else:
            data = self.random.randbytes(count * dtype.itemsize)
            data = bytes(byte & 1 for byte in data) if dtype.kind == "b" else data
            array = np.frombuffer(data, dtype=dtype).reshape(shape).copy()
        choice = self.random.randrange(5)
        if choice == 0:
            array = np.asfortranarray(array)
        elif choice == 1 and array.ndim:
            array = array[::2]
        elif choice == 2 and array.size and array.dtype.kind not in "SU":
            return array.flatten()[0]
        elif choice == 3:
            items = np.empty(3, dtype=object)
            items[:] = [1, "two", None]
            return items
        return array

    def plain(self):
        r = self.random
        makers = [
            lambda: None,
            lambda: r.random() < 0.5,
            lambda: r.randint(-300, 300),
            lambda: r.getrandbits(r.choice([16, 31, 32, 63, 64, 200])) * r.choice([1, -1]),
            lambda: r.choice([0.0, -0.0, 1.5, float("inf"), float("nan"), 1e-310, 1e300, r.random()]),
            lambda: complex(r.random(), -r.random()),
            lambda: r.choice(["", "mean", "é", "日本", "a'b\"c\n\\u1234", "x" * 300, "\U0001f525"]),
            lambda: bytes(r.randbytes(r.randrange(9))),
            lambda: bytearray(r.randbytes(r.randrange(9))),
            lambda: Ellipsis,
            lambda: slice(r.randint(0, 4), None, r.choice([None, 2])),
            lambda: range(r.randint(-3, 3), 9, r.choice([1, 2, -1])),
            lambda: r.choice(DENSE + OTHERS + REFUSED_DTYPES),
            lambda: torch.device(r.choice(["cpu", "cuda:1", "meta"])),
            lambda: r.choice([torch.strided, torch.sparse_coo]),
            lambda: torch.Size(self.shape()),
            lambda: r.choice([Reduction.MEAN, Reduction.SUM, Level.LOW]),
            lambda: Settings(r.random(), "s"),
            lambda: torch.nn.functional.relu,
        ]
        if self.protocol >= 4:
            makers.append(lambda: r.choice(FORMATS))
        return r.choice(makers)()

    def key(self):
        return self.random.choice([self.random.randint(-3, 99), f"k{self.random.randint(0, 99)}", (1, self.random.randint(0, 9))])

    def value(self, depth):
        r = self.random
        choice = r.randrange(20)
        if choice < 6:
            return self.tensor()
        if choice < 7:
            return self.array()
        if choice < 12 or depth == 0:
            return self.plain()
        items = lambda: [self.value(depth - 1) for _ in range(r.randrange(4))]
        pairs = lambda: {self.key(): self.value(depth - 1) for _ in range(r.randrange(4))}
        return [
            items,
            lambda: tuple(items()),
            pairs,
            lambda: collections.OrderedDict(pairs()),
            lambda: collections.defaultdict(r.choice([int, str, list, None]), pairs()),
            lambda: collections.Counter({"a": r.randint(0, 5), "b": 2}),
            lambda: {r.randint(-9, 9) for _ in range(4)},
            lambda: frozenset({"a", r.randint(0, 9), (1, 2)}),
            lambda: Pair(self.value(depth - 1), self.value(depth - 1)),
            lambda: torch.max(torch.rand(3, 4, generator=self.generator), 1),
        ][r.randrange(10)]()

    def root(self):
        if self.random.random() < 0.2:
            return self.value(4)
        shared = self.value(3)
        return {
            "function_name": "torch.op",
            "args": [self.value(3) for _ in range(self.random.randrange(4))] + [shared],
            "kwargs": {f"p{n}": self.value(3) for n in range(self.random.randrange(3))} | {"shared": shared},
            "output": self.value(2),
        }


def compare_one(program, number, seed, folder):
    """Makes one capture, and compares how both programs read it. Returns the kind of result, and a message or None."""
    rng = random.Random(f"{seed} {number} form")
    protocol = rng.choice([2, 2, 2, 3, 4, 5])
    zipped = rng.random() < 0.75
    maker = Maker(number, seed, protocol)
    path = folder / f"{number}.pt"
    try:
        torch.save(maker.root(), path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError, ValueError) as error:
        # torch itself cannot save this value.
        return "unsaved", f"{type(error).__name__}: {error}"
    answer = subprocess.run([program, "inspect", "--json", "--digests", path], capture_output=True, text=True, timeout=60)
    found = json.loads(answer.stdout)
    if found["outcome"] != "ok":
        if maker.refused == found["error_kind"]:
            return "refused", None
        return "wrong", f"{found['error_kind']}: {found['message']}"
    if maker.refused:
        return "wrong", "it contains a value that must be refused, but was read"
    describer = ScriptDescriber()
    try:
        loaded = torch.load(path, weights_only=False, map_location="cpu")
    except (RuntimeError, AttributeError) as error:
        # torch cannot read all files that it writes, because its old format cannot represent the newer dtypes.
        return "unloaded", f"{type(error).__name__}: {error}"
    expected = json.loads(json.dumps(describer.describe(loaded)))
    mismatch = difference("root", found["root"], expected)
    if mismatch is None and found["storages"] != json.loads(json.dumps(describer.storages)):
        mismatch = f"storages: {found['storages']}, expected {describer.storages}"
    return ("wrong", mismatch) if mismatch else ("same", None)


def difference(path, found, expected):
    """Returns a description of the first difference between two JSON documents, or None if they are equal."""
    if isinstance(found, dict) and isinstance(expected, dict):
        if found.keys() != expected.keys():
            return f"{path}: keys {sorted(found)}, expected {sorted(expected)}"
        return next(filter(None, (difference(f"{path}.{key}", found[key], expected[key]) for key in found)), None)
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected))
        return next(filter(None, (difference(f"{path}[{n}]", a, b) for n, (a, b) in pairs)), None)
    return None if found == expected else f"{path}: {str(found)[:300]}, expected {str(expected)[:300]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=pathlib.Path, help="the program opt-supervisor")
    parser.add_argument("--captures", type=int, default=500, help="how many captures to compare")
    parser.add_argument("--first", type=int, default=0, help="the number of the first capture")
    parser.add_argument("--seed", default="1", help="the same seed makes the same captures")
    parser.add_argument("--keep", type=pathlib.Path, help="keep files that differ in this folder")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    counts, printed = collections.Counter(), 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for number in range(arguments.first, arguments.first + arguments.captures):
            outcome, why = compare_one(arguments.program.resolve(), number, arguments.seed, folder)
            counts[outcome] += 1
            path = folder / f"{number}.pt"
            if outcome == "wrong":
                if printed < 20:
                    print(f"{number}: {why}", flush=True)
                printed += 1
                if arguments.keep:
                    arguments.keep.mkdir(parents=True, exist_ok=True)
                    (arguments.keep / path.name).write_bytes(path.read_bytes())
            path.unlink(missing_ok=True)
    summary = ", ".join(f"{counts[key]} {key}" for key in ("same", "refused", "unsaved", "unloaded", "wrong"))
    print(f"torch {torch.__version__}, seed {arguments.seed}: {arguments.captures} captures: {summary}")
    return 1 if counts["wrong"] or not counts["same"] else 0


if __name__ == "__main__":
    sys.exit(main())
