//! Decodes the bytes of a pickle (protocols 0 to 5) to opcodes with their arguments.
//!
//! This file reads the lengths and text forms of arguments. It checks every length against the remaining bytes before
//! anything is allocated. `machine` executes the opcodes.

use num_bigint::BigInt;

use crate::capture::error::{ErrorKind, Fault, quoted};
use crate::capture::limits::{
    MAX_INTEGER_BYTES, MAX_INTEGER_DIGITS, MAX_LINE_BYTES, MAX_PICKLE_BYTES, MAX_STRING_BYTES,
};
use crate::units::Bytes;

/// The newest protocol of pickles.
const NEWEST_PROTOCOL: u8 = 5;

#[derive(Debug)]
pub(super) enum Opcode<'a> {
    Protocol,
    Frame,
    Stop,
    Pop,
    PopMark,
    Duplicate,
    Mark,
    None,
    Bool(bool),
    Int(i64),
    BigInt(BigInt),
    Float(f64),
    Str(&'a str),
    EscapedStr(String),
    Bytes(&'a [u8]),
    ByteArray(&'a [u8]),
    EmptyList,
    EmptyTuple,
    EmptyDict,
    EmptySet,
    /// Makes a tuple of the topmost 1, 2 or 3 values.
    ShortTuple(usize),
    /// Makes a tuple of everything above the mark. The next six opcodes use the mark in the same way.
    Tuple,
    List,
    Dict,
    FrozenSet,
    Appends,
    SetItems,
    AddItems,
    Append,
    SetItem,
    Global {
        module: &'a str,
        name: &'a str,
    },
    StackGlobal,
    /// Makes an object of the class that the opcode names, with the arguments above the mark.
    Instance {
        module: &'a str,
        name: &'a str,
    },
    /// Makes an object. Its class and its arguments are above the mark.
    Object,
    NewObject,
    NewObjectWithKeywords,
    Reduce,
    Build,
    PersistentId,
    Put(u32),
    Memoize,
    Get(u32),
    /// A number in `copyreg`'s registry, which identifies a global.
    Extension,
    /// An opcode that refers to data outside the pickle.
    OutOfBand(&'static str),
}

pub(super) struct Decoder<'a> {
    bytes: &'a [u8],
    position: usize,
    /// Number of bytes of the file that follow `bytes` and have not been read.
    unread: u64,
    /// True if decoding failed because `bytes` ended, so that it might succeed with more bytes.
    starved: bool,
}

impl<'a> Decoder<'a> {
    /// Decodes bytes that are all there is: no unread bytes follow them.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0, unread: 0, starved: false }
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn next(&mut self) -> Result<Opcode<'a>, Fault> {
        let at = self.position;
        let [code] = self.array()?;
        Ok(match code {
            0x80 => {
                let [version] = self.array()?;
                if version > NEWEST_PROTOCOL {
                    return Err(Fault::bad_pickle(format!(
                        "its protocol is {version}, and this program reads 0 to {NEWEST_PROTOCOL}"
                    )));
                }
                Opcode::Protocol
            }
            0x95 => {
                // A frame only says how far to read ahead, which is not needed when everything is in memory.
                let length = u64::from_le_bytes(self.array()?);
                self.require(length)?;
                if length > MAX_PICKLE_BYTES {
                    return Err(Fault::limit(
                        "a frame of the pickle is too long",
                        Bytes::new(MAX_PICKLE_BYTES),
                    ));
                }
                if length > self.remaining() {
                    return Err(self.ended());
                }
                Opcode::Frame
            }
            b'.' => Opcode::Stop,
            b'0' => Opcode::Pop,
            b'1' => Opcode::PopMark,
            b'2' => Opcode::Duplicate,
            b'(' => Opcode::Mark,
            b'N' => Opcode::None,
            0x88 => Opcode::Bool(true),
            0x89 => Opcode::Bool(false),
            b'I' => self.text_integer(true)?,
            b'L' => self.text_integer(false)?,
            b'J' => Opcode::Int(i32::from_le_bytes(self.array()?).into()),
            b'K' => Opcode::Int(u8::from_le_bytes(self.array()?).into()),
            b'M' => Opcode::Int(u16::from_le_bytes(self.array()?).into()),
            0x8a => {
                let length = u8::from_le_bytes(self.array()?);
                self.integer(length.into())?
            }
            0x8b => {
                let length = u32::from_le_bytes(self.array()?);
                if length > i32::MAX as u32 {
                    return Err(Fault::bad_pickle("an int has a negative length"));
                }
                self.integer(length.into())?
            }
            b'G' => Opcode::Float(f64::from_be_bytes(self.array()?)),
            b'F' => {
                let line = self.line()?;
                Opcode::Float(
                    line.parse()
                        .map_err(|_| Fault::bad_pickle(format!("{} is not a float", quoted(line))))?,
                )
            }
            b'S' => Opcode::EscapedStr(unquote(self.line()?)?),
            b'V' => Opcode::EscapedStr(unescape(self.line()?)?),
            // `T` and `U` are strings of Python 2, which torch reads as text.
            b'T' => {
                let length = u32::from_le_bytes(self.array()?);
                self.text(length.into())?
            }
            b'U' | 0x8c => {
                let length = u8::from_le_bytes(self.array()?);
                self.text(length.into())?
            }
            b'X' => {
                let length = u32::from_le_bytes(self.array()?);
                self.text(length.into())?
            }
            0x8d => {
                let length = u64::from_le_bytes(self.array()?);
                self.text(length)?
            }
            b'C' => {
                let length = u8::from_le_bytes(self.array()?);
                Opcode::Bytes(self.string(length.into())?)
            }
            b'B' => {
                let length = u32::from_le_bytes(self.array()?);
                Opcode::Bytes(self.string(length.into())?)
            }
            0x8e => {
                let length = u64::from_le_bytes(self.array()?);
                Opcode::Bytes(self.string(length)?)
            }
            0x96 => {
                let length = u64::from_le_bytes(self.array()?);
                Opcode::ByteArray(self.string(length)?)
            }
            b']' => Opcode::EmptyList,
            b')' => Opcode::EmptyTuple,
            b'}' => Opcode::EmptyDict,
            0x8f => Opcode::EmptySet,
            0x85 => Opcode::ShortTuple(1),
            0x86 => Opcode::ShortTuple(2),
            0x87 => Opcode::ShortTuple(3),
            b't' => Opcode::Tuple,
            b'l' => Opcode::List,
            b'd' => Opcode::Dict,
            0x91 => Opcode::FrozenSet,
            b'a' => Opcode::Append,
            b'e' => Opcode::Appends,
            b's' => Opcode::SetItem,
            b'u' => Opcode::SetItems,
            0x90 => Opcode::AddItems,
            b'c' => Opcode::Global { module: self.line()?, name: self.line()? },
            0x93 => Opcode::StackGlobal,
            b'i' => Opcode::Instance { module: self.line()?, name: self.line()? },
            b'o' => Opcode::Object,
            0x81 => Opcode::NewObject,
            0x92 => Opcode::NewObjectWithKeywords,
            b'R' => Opcode::Reduce,
            b'b' => Opcode::Build,
            b'Q' => Opcode::PersistentId,
            b'P' => {
                self.line()?;
                Opcode::OutOfBand("PERSID")
            }
            b'p' => Opcode::Put(self.memo_index()?),
            b'q' => Opcode::Put(u8::from_le_bytes(self.array()?).into()),
            b'r' => Opcode::Put(u32::from_le_bytes(self.array()?)),
            0x94 => Opcode::Memoize,
            b'g' => Opcode::Get(self.memo_index()?),
            b'h' => Opcode::Get(u8::from_le_bytes(self.array()?).into()),
            b'j' => Opcode::Get(u32::from_le_bytes(self.array()?)),
            0x82..=0x84 => {
                self.take(1 << (code - 0x82))?;
                Opcode::Extension
            }
            0x97 => Opcode::OutOfBand("NEXT_BUFFER"),
            0x98 => Opcode::OutOfBand("READONLY_BUFFER"),
            _ => {
                return Err(Fault::bad_pickle(format!("byte {code:#04x} at {at} is not an opcode")));
            }
        })
    }

    fn remaining(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    fn ended(&mut self) -> Fault {
        self.starved = true;
        Fault::new(ErrorKind::Truncated, "the pickle ends too early")
    }

    /// Checks a length against the remaining bytes. A length beyond the end of the file means that the file is damaged,
    /// not that it exceeds a limit.
    fn require(&self, length: u64) -> Result<(), Fault> {
        let available = self.remaining().saturating_add(self.unread);
        if length <= available {
            return Ok(());
        }
        let detail = format!(
            "the pickle ends too early: it announces a part of {length} bytes, and {available} are left"
        );
        Err(Fault::new(ErrorKind::Truncated, detail))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let rest = &self.bytes[self.position..];
        let taken = rest.get(..length).ok_or_else(|| self.ended())?;
        self.position += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let rest = &self.bytes[self.position..];
        let taken = rest.first_chunk().ok_or_else(|| self.ended())?;
        self.position += N;
        Ok(*taken)
    }

    fn string(&mut self, length: u64) -> Result<&'a [u8], Fault> {
        self.require(length)?;
        if length > MAX_STRING_BYTES {
            return Err(Fault::limit("a string of the pickle is too long", Bytes::new(MAX_STRING_BYTES)));
        }
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn text(&mut self, length: u64) -> Result<Opcode<'a>, Fault> {
        let bytes = self.string(length)?;
        let text = std::str::from_utf8(bytes)
            .map_err(|source| Fault::bad_pickle("a string is not UTF-8").because(source))?;
        Ok(Opcode::Str(text))
    }

    fn integer(&mut self, length: u64) -> Result<Opcode<'a>, Fault> {
        self.require(length)?;
        if length > MAX_INTEGER_BYTES as u64 {
            return Err(Fault::limit("an int has too many bytes", MAX_INTEGER_BYTES));
        }
        let bytes = self.take(usize::try_from(length).unwrap_or(usize::MAX))?;
        Ok(narrowed(BigInt::from_signed_bytes_le(bytes)))
    }

    fn text_integer(&mut self, spells_bools: bool) -> Result<Opcode<'a>, Fault> {
        let line = self.line()?;
        if spells_bools && (line == "00" || line == "01") {
            return Ok(Opcode::Bool(line == "01"));
        }
        if line.len() > MAX_INTEGER_DIGITS {
            return Err(Fault::limit("an int has too many digits", MAX_INTEGER_DIGITS));
        }
        let digits = line.strip_suffix('L').unwrap_or(line);
        let value = digits
            .parse::<BigInt>()
            .map_err(|_| Fault::bad_pickle(format!("{} is not an int", quoted(line))))?;
        Ok(narrowed(value))
    }

    fn memo_index(&mut self) -> Result<u32, Fault> {
        let line = self.line()?;
        line.parse().map_err(|_| Fault::bad_pickle(format!("{} is not a memo index", quoted(line))))
    }

    /// Takes the bytes up to and including the next newline.
    fn line(&mut self) -> Result<&'a str, Fault> {
        let rest = &self.bytes[self.position..];
        let window = &rest[..rest.len().min(MAX_LINE_BYTES)];
        let Some(length) = window.iter().position(|&byte| byte == b'\n') else {
            return Err(if rest.len() > MAX_LINE_BYTES {
                Fault::limit("a line of the pickle is too long", Bytes::from(MAX_LINE_BYTES))
            } else {
                self.ended()
            });
        };
        self.position += length + 1;
        std::str::from_utf8(&window[..length])
            .map_err(|source| Fault::bad_pickle("a line is not UTF-8").because(source))
    }
}

fn narrowed<'a>(value: BigInt) -> Opcode<'a> {
    i64::try_from(&value).map_or(Opcode::BigInt(value), Opcode::Int)
}

/// Parses the Python literal in the text opcode `STRING`. Only literals without escapes are supported, because no known
/// writer produces others.
fn unquote(line: &str) -> Result<String, Fault> {
    let inner = ['\'', '"']
        .iter()
        .find_map(|&quote| line.strip_prefix(quote)?.strip_suffix(quote))
        .ok_or_else(|| Fault::bad_pickle(format!("{} is not a quoted string", quoted(line))))?;
    if inner.contains('\\') {
        return Err(Fault::unsupported(format!(
            "the string {} has escapes, which this program does not read",
            quoted(line)
        )));
    }
    Ok(inner.to_owned())
}

/// Parses the text opcode `UNICODE`. `\uXXXX` and `\UXXXXXXXX` are escapes; everything else is literal.
fn unescape(line: &str) -> Result<String, Fault> {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find('\\') {
        text.push_str(&rest[..start]);
        let digits = match rest.as_bytes().get(start + 1) {
            Some(b'u') => 4,
            Some(b'U') => 8,
            _ => 0,
        };
        if digits == 0 {
            text.push('\\');
            rest = &rest[start + 1..];
            continue;
        }
        let end = start + 2 + digits;
        let character = rest
            .get(start + 2..end)
            .filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|hex| u32::from_str_radix(hex, 16).ok())
            .and_then(char::from_u32)
            .ok_or_else(|| {
                Fault::bad_pickle(format!("the string {} has a malformed escape", quoted(line)))
            })?;
        text.push(character);
        rest = &rest[end..];
    }
    text.push_str(rest);
    Ok(text)
}

/// Finds the length of the first pickle in these bytes, without executing it. Returns `None` if the answer depends on
/// the `unread` bytes that follow in the file.
pub(in crate::capture) fn pickle_length(bytes: &[u8], unread: u64) -> Result<Option<usize>, Fault> {
    let mut decoder = Decoder { unread, ..Decoder::new(bytes) };
    loop {
        match decoder.next() {
            Ok(Opcode::Stop) => return Ok(Some(decoder.position())),
            Ok(_) => {}
            Err(_) if decoder.starved && unread > 0 => return Ok(None),
            Err(fault) => return Err(fault),
        }
    }
}
