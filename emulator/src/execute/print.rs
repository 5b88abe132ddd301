//! Implements the functions that the device provides: `vprintf` and `__assertfail`.

use super::block::BlockState;
use super::warp::Warp;
use super::{Stop, lanes};
use crate::code::CallOp;
use crate::fault::FaultKind;

/// The number of bytes of strings that one `printf` formats. What follows is not formatted.
const PRINT_BYTES: usize = 64 << 10;
/// The number of bytes of a string that can be read in the time that an instruction takes.
const TEXT_BYTES_PER_INSTRUCTION: u32 = 8;
/// The longest string that is read from the device, in bytes.
const TEXT_BYTES: u64 = 4096;

impl Warp {
    pub fn call(&mut self, block: &mut BlockState<'_>, op: &CallOp, active: u32) -> Result<(), Stop> {
        match op {
            CallOp::Print { format, arguments, to } => {
                for lane in lanes(active) {
                    let format = self.registers.get(*format, lane);
                    let arguments = self.registers.get(*arguments, lane);
                    let format = self.text(block, format, lane)?;
                    let (text, count) = self.formatted(block, &format, arguments, lane)?;
                    block.print(&text);
                    if let Some(slot) = to {
                        self.registers.set(*slot, lane, count);
                    }
                }
                Ok(())
            }
            CallOp::Assert { message, file, line, function } => {
                let lane = super::first_lane(active);
                let mut text = |slot| {
                    let address = self.registers.get(slot, lane);
                    self.text(block, address, lane)
                };
                let (message, file, function) = (text(*message)?, text(*file)?, text(*function)?);
                let line = self.registers.get(*line, lane);
                Err(Stop::new(FaultKind::Assert(format!("{file}:{line}: {function}: `{message}`")), lane))
            }
        }
    }

    /// Reads a string up to its final zero, but at most `TEXT_BYTES`.
    fn text(&mut self, block: &BlockState<'_>, address: u64, lane: usize) -> Result<String, Stop> {
        let mut bytes = Vec::new();
        for at in 0..TEXT_BYTES {
            match self.byte(block, address.wrapping_add(at), lane)? {
                0 => break,
                byte => bytes.push(byte),
            }
        }
        block.extra.update(|extra| extra + bytes.len() as u32 / TEXT_BYTES_PER_INSTRUCTION);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Formats like `printf`, with simplifications: for example, the flag for a space and the precision of integers are
    /// ignored, `%E` and `%G` write lower-case letters, and widths and precisions are at most 256. After `PRINT_BYTES`
    /// of strings, the rest of the format is printed unchanged. Returns the text and the number of arguments.
    fn formatted(
        &mut self,
        block: &BlockState<'_>,
        format: &str,
        arguments: u64,
        lane: usize,
    ) -> Result<(String, u64), Stop> {
        let mut text = String::new();
        let mut at = arguments;
        let mut count = 0;
        let mut rest = format;
        let mut read = 0;
        while let Some(start) = rest.find('%').filter(|_| read < PRINT_BYTES) {
            text.push_str(&rest[..start]);
            rest = &rest[start + 1..];
            if let Some(after) = rest.strip_prefix('%') {
                text.push('%');
                rest = after;
                continue;
            }
            let Some(end) =
                rest.find(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'l' | 'h' | 'z' | 'j' | 't'))
            else {
                break;
            };
            let (mut flags, kind) = (rest[..end].to_owned(), rest.as_bytes()[end]);
            rest = &rest[end + 1..];
            while flags.contains('*') {
                // The width or the precision is an argument of 32 bits. A negative width means that the output is
                // left-justified. A negative precision is ignored.
                at = aligned(at, 4);
                let width = self.read(block, at, 4, lane)? as u32;
                (at, count) = (at.wrapping_add(4), count + 1);
                flags = flags.replacen('*', &width.cast_signed().to_string(), 1);
            }
            let is_long = flags.contains(['l', 'z', 'j', 't']);
            let bytes = match kind {
                b's' | b'p' | b'e' | b'E' | b'f' | b'F' | b'g' | b'G' | b'a' | b'A' => 8,
                _ if is_long => 8,
                _ => 4,
            };
            at = aligned(at, bytes);
            let value = self.read(block, at, bytes as u32, lane)?;
            at = at.wrapping_add(bytes);
            count += 1;
            let string = if kind == b's' { Some(self.text(block, value, lane)?) } else { None };
            read += string.as_ref().map_or(0, String::len);
            text.push_str(&Directive::new(&flags, kind).format(value, is_long, string));
        }
        text.push_str(rest);
        Ok((text, count))
    }
}

/// Rounds an address up to a multiple of `to`, a power of two.
fn aligned(address: u64, to: u64) -> u64 {
    address.wrapping_add(to - 1) & !(to - 1)
}

/// One `%` directive.
struct Directive {
    kind: u8,
    width: usize,
    precision: Option<usize>,
    left: bool,
    zeros: bool,
    plus: bool,
    alternative: bool,
}

impl Directive {
    fn new(flags: &str, kind: u8) -> Self {
        let marks = flags.len() - flags.trim_start_matches(['-', '+', '0', ' ', '#']).len();
        let (marks, sizes) = flags.split_at(marks);
        let sizes = sizes.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let (width, precision) = sizes.split_once('.').map_or((sizes, None), |(w, p)| (w, Some(p)));
        // Width and precision are limited, so that a directive cannot request huge output.
        let bounded = |digits: &str| digits.parse::<usize>().unwrap_or(0).min(256);
        Self {
            kind,
            width: bounded(width),
            precision: precision.filter(|digits| !digits.starts_with('-')).map(bounded),
            left: marks.contains('-'),
            zeros: marks.contains('0'),
            plus: marks.contains('+'),
            alternative: marks.contains('#'),
        }
    }

    fn format(&self, value: u64, is_long: bool, string: Option<String>) -> String {
        let signed = if is_long { value.cast_signed() } else { i64::from(value as u32 as i32) };
        let unsigned = if is_long { value } else { value & 0xffff_ffff };
        let float = f64::from_bits(value);
        let precision = self.precision.unwrap_or(6);
        let prefix = |text: &str| if self.alternative { text.to_owned() } else { String::new() };
        let mut body = match self.kind {
            b'd' | b'i' => signed.to_string(),
            b'u' => unsigned.to_string(),
            b'x' => prefix("0x") + &format!("{unsigned:x}"),
            b'X' => prefix("0X") + &format!("{unsigned:X}"),
            b'o' => prefix("0") + &format!("{unsigned:o}"),
            b'p' => format!("{value:#x}"),
            b'c' => char::from(value as u8).to_string(),
            b's' => {
                let text = string.unwrap_or_default();
                self.precision.map_or(text.clone(), |most| text.chars().take(most).collect())
            }
            _ if !float.is_finite() => {
                let name = if float.is_nan() { "nan" } else { "inf" };
                if float.is_sign_negative() { format!("-{name}") } else { name.to_owned() }
            }
            b'e' | b'E' => exponential(float, precision),
            b'g' | b'G' => general(float, precision.max(1)),
            b'a' => hexadecimal(float, self.precision),
            b'A' => hexadecimal(float, self.precision).to_uppercase(),
            _ => format!("{float:.precision$}"),
        };
        let is_number = !matches!(self.kind, b'c' | b's' | b'p');
        if self.plus && is_number && !body.starts_with('-') {
            body.insert(0, '+');
        }
        let missing = self.width.saturating_sub(body.chars().count());
        if self.left {
            body + &" ".repeat(missing)
        } else if self.zeros && is_number {
            let sign = usize::from(body.starts_with(['-', '+']));
            body.insert_str(sign, &"0".repeat(missing));
            body
        } else {
            " ".repeat(missing) + &body
        }
    }
}

fn exponential(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Formats a number like `%a`. The digits are exact unless a precision is given.
fn hexadecimal(value: f64, precision: Option<usize>) -> String {
    const DIGITS: usize = 13;
    let bits = value.to_bits();
    let (exponent, mut fraction) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
    let mut whole = u64::from(exponent != 0);
    let exponent = match (exponent, fraction) {
        (0, 0) => 0,
        (0, _) => -1022,
        _ => exponent - 1023,
    };
    let digits = match precision.filter(|digits| *digits < DIGITS) {
        Some(digits) => {
            // This rounds to the nearest digit, or to the even one of two equally near digits.
            let dropped = 4 * (DIGITS - digits);
            let all = whole << 52 | fraction;
            let (kept, rest, half) = (all >> dropped, all & ((1 << dropped) - 1), 1_u64 << (dropped - 1));
            let kept = kept + u64::from(half < rest || half == rest && kept & 1 == 1);
            (whole, fraction) = (kept >> (4 * digits), kept & ((1 << (4 * digits)) - 1));
            if digits == 0 { String::new() } else { format!(".{fraction:0digits$x}") }
        }
        None => {
            let text = format!(".{fraction:013x}");
            let text =
                if precision.is_none() { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
            format!("{text:0<width$}", width = precision.map_or(0, |digits| digits + 1))
        }
    };
    let sign = if value.is_sign_negative() { "-" } else { "" };
    format!("{sign}0x{whole}{digits}p{exponent:+}")
}

/// Formats a number like `%g`: in decimal or exponential notation, depending on the exponent, and without trailing
/// zeros.
fn general(value: f64, precision: usize) -> String {
    let text = format!("{value:.*e}", precision - 1);
    let exponent: i32 = text.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trimmed = |text: String| {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    if exponent < -4 || precision as i32 <= exponent {
        let text = exponential(value, precision - 1);
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{exponent}", trimmed(digits.to_owned()));
    }
    let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
    trimmed(format!("{value:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_numbers_are_written_as_in_c() {
        for (value, precision, text) in [
            (1.0, None, "0x1p+0"),
            (0.1, None, "0x1.999999999999ap-4"),
            (-2.5, None, "-0x1.4p+1"),
            (0.0, None, "0x0p+0"),
            (5e-324, None, "0x0.0000000000001p-1022"),
            (1.5, Some(0), "0x2p+0"),
            (1.0, Some(2), "0x1.00p+0"),
            (0.1, Some(3), "0x1.99ap-4"),
            (1.0, Some(15), "0x1.000000000000000p+0"),
        ] {
            assert_eq!(hexadecimal(value, precision), text, "{value} {precision:?}");
        }
    }
}
