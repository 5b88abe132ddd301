//! Parses constants (integers and floats) in PTX.

use super::lexer::{Lexer, Token, clipped};
use super::syntax::Number;
use crate::fault::LoadError;

/// Parses a constant with an optional sign.
pub fn number(lexer: &mut Lexer<'_>) -> Result<Number, LoadError> {
    let negative = lexer.accept('-')?;
    if !negative {
        lexer.accept('+')?;
    }
    let line = lexer.line();
    let Token::Digits(digits) = lexer.peek() else {
        return Err(lexer.unexpected("a number"));
    };
    let number = parse(digits)
        .ok_or_else(|| LoadError::syntax(line, format!("`{}` is not a number", clipped(digits))))?;
    lexer.take()?;
    Ok(if negative { negated(number) } else { number })
}

pub fn integer(lexer: &mut Lexer<'_>, what: &str) -> Result<i64, LoadError> {
    let line = lexer.line();
    match number(lexer)? {
        Number::Integer(value) => Ok(value.cast_signed()),
        _ => Err(LoadError::syntax(line, format!("{what} must be an integer"))),
    }
}

pub fn unsigned(lexer: &mut Lexer<'_>, what: &str) -> Result<u32, LoadError> {
    let line = lexer.line();
    u32::try_from(integer(lexer, what)?)
        .map_err(|_| LoadError::syntax(line, format!("{what} is out of range")))
}

fn negated(number: Number) -> Number {
    match number {
        Number::Integer(value) => Number::Integer(value.wrapping_neg()),
        Number::Single(bits) => Number::Single(bits ^ (1 << 31)),
        Number::Double(bits) => Number::Double(bits ^ (1 << 63)),
    }
}

fn parse(text: &str) -> Option<Number> {
    let hexadecimal = |digits: &str, length| {
        (digits.len() == length).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
    };
    let after = |prefixes: [&str; 2]| prefixes.iter().find_map(|prefix| text.strip_prefix(prefix));
    if let Some(digits) = after(["0f", "0F"]) {
        return Some(Number::Single(u32::try_from(hexadecimal(digits, 8)?).ok()?));
    }
    if let Some(digits) = after(["0d", "0D"]) {
        return Some(Number::Double(hexadecimal(digits, 16)?));
    }
    let whole = |digits: &str, base| {
        let digits = digits.strip_suffix('U').or(digits.strip_suffix('u')).unwrap_or(digits);
        u64::from_str_radix(digits, base).ok().map(Number::Integer)
    };
    if let Some(digits) = after(["0x", "0X"]) {
        return whole(digits, 16);
    }
    if let Some(digits) = after(["0b", "0B"]) {
        return whole(digits, 2);
    }
    if text.contains('.') || text.contains(['e', 'E']) {
        return text.parse::<f64>().ok().map(|value| Number::Double(value.to_bits()));
    }
    if text.len() > 1 && text.starts_with('0') && !text.ends_with(['u', 'U']) {
        return whole(&text[1..], 8);
    }
    whole(text, 10)
}
