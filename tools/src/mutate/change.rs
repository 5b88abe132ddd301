//! Derives a changed input from the number of a try.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// The maximum number of changes to one input. More changes would turn any input into noise.
const MAX_CHANGES: usize = 8;
/// The maximum number of bytes that one change cuts out, replaces, or repeats up to 64 times. A piece that is taken
/// from another input may be four times as long. Only a change that cuts off the end of the input may affect more
/// bytes.
const MAX_PIECE: usize = 64;

/// Numbers at which computations with sizes and offsets often go wrong.
const EDGES: [u64; 16] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_ffff,
];

/// Fragments of pickles.
const PICKLE: [&[u8]; 30] = [
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch._utils\n_rebuild_tensor_v3\n",
    b"ctorch._tensor\n_rebuild_from_type_v2\n",
    b"ctorch\nFloatStorage\n",
    b"ctorch.storage\nUntypedStorage\n",
    b"ctorch\nfloat8_e4m3fn\n",
    b"ccollections\nOrderedDict\n",
    b"ccollections\ndefaultdict\n",
    b"cbuiltins\nset\n",
    b"cbuiltins\nrange\n",
    b"cnumpy\ndtype\n",
    b"cnumpy\nndarray\n",
    b"cnumpy.core.numeric\n_frombuffer\n",
    b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cnumpy.core.multiarray\nscalar\n",
    b"c_codecs\nencode\n",
    b"cmod\nName\n",
    b"\x8c\x07storage",
    b"(",
    b"t",
    b"R",
    b"b",
    b"}",
    b"]",
    b"\x85",
    b"\x86",
    b"\x81",
    b"\x92",
    b"\x93",
    b"\x94",
];
/// Fragments of the text formats: plans, JSON and messages.
const LINES: [&[u8]; 22] = [
    b"{",
    b"}",
    b"[[job]]\n",
    b"[",
    b"]",
    b"\"",
    b"\"jsonrpc\":\"2.0\",",
    b"null",
    b"1e999",
    b"-1",
    b"99999999999999999999",
    b"\"512MiB\"",
    b"\"75%\"",
    b"\n",
    b"\\u0000",
    b"=",
    b",",
    b".",
    b"[memory]\n",
    b"[[replay]]\n",
    b"\xff",
    b"{{{{{{{{",
];

pub(crate) fn changed(inputs: &[Vec<u8>], target: &str, number: u64) -> Vec<u8> {
    let seed = blake3::hash(format!("{target} {number}").as_bytes());
    let mut random = SmallRng::from_seed(*seed.as_bytes());
    let mut bytes = inputs.choose(&mut random).cloned().unwrap_or_default();
    for _ in 0..random.random_range(1..=MAX_CHANGES) {
        change(&mut bytes, inputs, target, &mut random);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, inputs: &[Vec<u8>], target: &str, random: &mut SmallRng) {
    let at = random.random_range(0..=bytes.len());
    let end = (at + random.random_range(1..=MAX_PIECE)).min(bytes.len());
    match random.random_range(0..10) {
        0 | 1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.random_range(0..8);
            }
        }
        2 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.random();
            }
        }
        3 | 4 => {
            // Write a number of random width and byte order.
            let width = *[1, 2, 4, 8].choose(random).unwrap_or(&8);
            let edge =
                EDGES.choose(random).copied().unwrap_or(0).wrapping_add_signed(random.random_range(-2..=2));
            let mut number = edge.to_le_bytes()[..width].to_vec();
            if random.random() {
                number.reverse();
            }
            let end = (at + width).min(bytes.len());
            bytes.splice(at..end, number);
        }
        5 => drop(bytes.drain(at..end)),
        6 => {
            let piece = bytes[at..end].to_vec();
            let times = random.random_range(1..=64);
            bytes.splice(at..at, piece.repeat(times));
        }
        7 => {
            let words: &[&[u8]] = match target {
                "archive" | "pickle" | "legacy" => &PICKLE,
                _ => &LINES,
            };
            let word = words.choose(random).copied().unwrap_or_default();
            bytes.splice(at..at, word.iter().copied());
        }
        8 => {
            if let Some(other) = inputs.choose(random).filter(|other| !other.is_empty()) {
                let from = random.random_range(0..other.len());
                let to = (from + random.random_range(1..=4 * MAX_PIECE)).min(other.len());
                bytes.splice(at..end, other[from..to].iter().copied());
            }
        }
        _ => bytes.truncate(at),
    }
}
