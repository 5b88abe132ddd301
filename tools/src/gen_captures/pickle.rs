//! Encodes the pickles of captures: protocol 2, with the opcodes and the memo that Python's pickler uses.
//!
//! `capture.rs` decides which values a capture has. A repeated string is written only once, and its further occurrences
//! refer to the memo, as with Python's interned names.

use std::collections::HashMap;

/// The element types that generated captures use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    Bf16,
    I64,
}

impl Element {
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::Bf16 => 2,
            Self::F32 => 4,
            Self::I64 => 8,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::I64 => "int64",
        }
    }

    const fn storage_class(self) -> &'static str {
        match self {
            Self::F32 => "FloatStorage",
            Self::Bf16 => "BFloat16Storage",
            Self::I64 => "LongStorage",
        }
    }
}

/// A contiguous tensor. It is the only tensor of the storage `data/<key>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorValue {
    pub(crate) element: Element,
    pub(crate) shape: Vec<u64>,
    pub(crate) key: usize,
}

impl TensorValue {
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    fn strides(&self) -> Vec<u64> {
        let mut strides = vec![1; self.shape.len()];
        for axis in (1..self.shape.len()).rev() {
            strides[axis - 1] = strides[axis] * self.shape[axis].max(1);
        }
        strides
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PickleValue {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(&'static str),
    List(Vec<PickleValue>),
    Tuple(Vec<PickleValue>),
    Dict(Vec<(&'static str, PickleValue)>),
    Tensor(TensorValue),
}

/// Pickles `value`, from PROTO to STOP.
pub(crate) fn pickle(value: &PickleValue) -> Vec<u8> {
    let mut pickler = Pickler { out: vec![0x80, 2], memo: HashMap::new(), memo_length: 0 };
    pickler.value(value);
    pickler.out.push(b'.');
    pickler.out
}

struct Pickler {
    out: Vec<u8>,
    /// The memo indices of strings and globals. The key of a global is its module, a space and its name, and no string
    /// of a capture has this form.
    memo: HashMap<String, u32>,
    memo_length: u32,
}

impl Pickler {
    fn value(&mut self, value: &PickleValue) {
        match value {
            PickleValue::None => self.out.push(b'N'),
            PickleValue::Bool(true) => self.out.push(0x88),
            PickleValue::Bool(false) => self.out.push(0x89),
            PickleValue::Int(number) => self.int(*number),
            PickleValue::Float(number) => {
                self.out.push(b'G');
                self.out.extend(number.to_be_bytes());
            }
            PickleValue::Str(text) => self.text(text),
            PickleValue::List(items) => {
                self.out.push(b']');
                self.remember();
                self.contents(items.len(), [b'a', b'e'], |pickler, i| pickler.value(&items[i]));
            }
            PickleValue::Tuple(items) => self.tuple(items.len(), |pickler, i| pickler.value(&items[i])),
            PickleValue::Dict(items) => {
                self.out.push(b'}');
                self.remember();
                self.contents(items.len(), [b's', b'u'], |pickler, i| {
                    pickler.text(items[i].0);
                    pickler.value(&items[i].1);
                });
            }
            PickleValue::Tensor(tensor) => self.tensor(tensor),
        }
    }

    /// Adds a call of `_rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks)`.
    fn tensor(&mut self, tensor: &TensorValue) {
        self.global("torch._utils", "_rebuild_tensor_v2");
        self.tuple(6, |pickler, i| match i {
            0 => {
                pickler.tuple(5, |pickler, i| match i {
                    0 => pickler.text("storage"),
                    1 => pickler.global("torch", tensor.element.storage_class()),
                    2 => pickler.text(&tensor.key.to_string()),
                    3 => pickler.text("cpu"),
                    _ => pickler.count(tensor.elements()),
                });
                pickler.out.push(b'Q');
            }
            1 => pickler.int(0),
            2 => pickler.tuple(tensor.shape.len(), |pickler, i| pickler.count(tensor.shape[i])),
            3 => {
                let strides = tensor.strides();
                pickler.tuple(strides.len(), |pickler, i| pickler.count(strides[i]));
            }
            4 => pickler.out.push(0x89),
            _ => {
                pickler.global("collections", "OrderedDict");
                pickler.out.extend(b")R");
                pickler.remember();
            }
        });
        self.out.push(b'R');
        self.remember();
    }

    /// Adds the items of a list or dict that has just been created. The opcode for a single item differs from that for
    /// a batch. Python splits batches at 1000 items, but no capture has that many.
    fn contents(&mut self, count: usize, [single, batch]: [u8; 2], mut item: impl FnMut(&mut Self, usize)) {
        match count {
            0 => {}
            1 => {
                item(self, 0);
                self.out.push(single);
            }
            _ => {
                self.out.push(b'(');
                (0..count).for_each(|i| item(self, i));
                self.out.push(batch);
            }
        }
    }

    fn tuple(&mut self, count: usize, mut item: impl FnMut(&mut Self, usize)) {
        if count == 0 {
            self.out.push(b')'); // never memoised
            return;
        }
        if count > 3 {
            self.out.push(b'(');
        }
        (0..count).for_each(|i| item(self, i));
        self.out.push(match count {
            1 => 0x85,
            2 => 0x86,
            3 => 0x87,
            _ => b't',
        });
        self.remember();
    }

    fn text(&mut self, text: &str) {
        if self.recall(text) {
            return;
        }
        self.out.push(b'X');
        self.out.extend(u32::try_from(text.len()).expect("names are short").to_le_bytes());
        self.out.extend(text.as_bytes());
        self.memo.insert(text.to_owned(), self.memo_length);
        self.remember();
    }

    fn global(&mut self, module: &str, name: &str) {
        let key = format!("{module} {name}");
        if self.recall(&key) {
            return;
        }
        self.out.extend(format!("c{module}\n{name}\n").as_bytes());
        self.memo.insert(key, self.memo_length);
        self.remember();
    }

    fn count(&mut self, number: u64) {
        self.int(i64::try_from(number).unwrap_or(i64::MAX));
    }

    fn int(&mut self, number: i64) {
        if let Ok(byte) = u8::try_from(number) {
            self.out.extend([b'K', byte]);
        } else if let Ok(short) = u16::try_from(number) {
            self.out.push(b'M');
            self.out.extend(short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(number) {
            self.out.push(b'J');
            self.out.extend(int.to_le_bytes());
        } else {
            // LONG1 stores the number in two's complement, little-endian, in as few bytes as preserve the sign.
            let sign = if number < 0 { 0xff } else { 0 };
            let mut bytes = number.to_le_bytes().to_vec();
            while bytes.len() > 1
                && bytes[bytes.len() - 1] == sign
                && (bytes[bytes.len() - 2] ^ sign) & 0x80 == 0
            {
                bytes.pop();
            }
            self.out.extend([0x8a, u8::try_from(bytes.len()).expect("at most 8")]);
            self.out.extend(bytes);
        }
    }

    /// Puts the last value into the memo, under the next number.
    fn remember(&mut self) {
        self.memo_opcode(b'q', b'r', self.memo_length);
        self.memo_length += 1;
    }

    fn recall(&mut self, key: &str) -> bool {
        let Some(&index) = self.memo.get(key) else { return false };
        self.memo_opcode(b'h', b'j', index);
        true
    }

    fn memo_opcode(&mut self, short: u8, long: u8, index: u32) {
        if let Ok(byte) = u8::try_from(index) {
            self.out.extend([short, byte]);
        } else {
            self.out.push(long);
            self.out.extend(index.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_take_the_opcodes_that_python_uses() {
        for (number, opcodes) in [
            (0, &b"K\x00"[..]),
            (255, b"K\xff"),
            (256, b"M\x00\x01"),
            (65_536, b"J\x00\x00\x01\x00"),
            (-1, b"J\xff\xff\xff\xff"),
            (2_147_483_648, b"\x8a\x05\x00\x00\x00\x80\x00"),
            (-2_147_483_649, b"\x8a\x05\xff\xff\xff\x7f\xff"),
            (i64::MIN, b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"),
        ] {
            let whole = pickle(&PickleValue::Int(number));
            assert_eq!(&whole[2..whole.len() - 1], opcodes, "{number}");
        }
    }

    #[test]
    fn memo_indices_above_255_take_the_long_opcodes() {
        let many = PickleValue::List((0..300).map(|_| PickleValue::List(Vec::new())).collect());
        let whole = pickle(&many);
        assert!(whole.windows(5).any(|bytes| bytes == b"r\x00\x01\x00\x00"));
    }
}
