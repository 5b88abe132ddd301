//! Parses declarations of variables and parameters, with their state space, alignment, type, size and initialiser.

use super::lexer::{Lexer, Token, clipped};
use super::number::{integer, number};
use super::syntax::{Initial, InitialValue, Number, RegisterClass, Space, Variable};
use crate::fault::LoadError;
use crate::limits;

/// The part of a declaration before its name.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub space: Space,
    pub align: u64,
    /// The size of one array element, in bytes. For `.v2` and `.v4`, this is the size of the whole vector.
    pub element: u64,
}

pub fn space(word: &str) -> Option<Space> {
    Some(match word {
        ".global" => Space::Global,
        ".const" => Space::Const,
        ".shared" | ".shared::cta" => Space::Shared,
        ".local" => Space::Local,
        ".param" => Space::Param,
        _ => return None,
    })
}

/// Returns the size of a type in bytes, and the class of its registers.
pub fn element(word: &str) -> Option<(u64, RegisterClass)> {
    Some(match word {
        ".pred" => (1, RegisterClass::Predicate),
        ".b8" | ".u8" | ".s8" => (1, RegisterClass::Narrow(8)),
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => (2, RegisterClass::Narrow(16)),
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => (4, RegisterClass::Narrow(32)),
        ".b64" | ".u64" | ".s64" | ".f64" => (8, RegisterClass::Wide),
        _ => return None,
    })
}

/// Parses the alignment, attributes and type that follow a state space.
pub fn head(lexer: &mut Lexer<'_>, space: Space) -> Result<Head, LoadError> {
    let mut align = None;
    let mut vector = 1;
    loop {
        let line = lexer.line();
        let word = lexer.word("a type")?;
        match word {
            ".align" => {
                let value = integer(lexer, "an alignment")?;
                let valid = u64::try_from(value).ok().filter(|v| v.is_power_of_two() && *v <= 1 << 20);
                align = Some(valid.ok_or_else(|| {
                    LoadError::syntax(
                        line,
                        format!("the alignment {value} is not a power of two up to 1048576"),
                    )
                })?);
            }
            ".v2" => vector = 2,
            ".v4" => vector = 4,
            ".ptr" => pointer_attributes(lexer)?,
            ".attribute" | ".managed" => {
                return Err(LoadError::unsupported(line, format!("variables or parameters with `{word}`")));
            }
            _ => match element(word) {
                Some((bytes, _)) => {
                    // `.param .u64 .ptr .global .align 16 name`
                    if lexer.peek() == Token::Word(".ptr") {
                        lexer.take()?;
                        pointer_attributes(lexer)?;
                    }
                    let element = bytes * vector;
                    return Ok(Head { space, align: align.unwrap_or(element), element });
                }
                None if matches!(word, ".b128" | ".texref" | ".samplerref" | ".surfref") => {
                    return Err(LoadError::unsupported(
                        line,
                        format!("variables or parameters of type `{word}`"),
                    ));
                }
                None => {
                    return Err(LoadError::syntax(line, format!("`{}` is not a type", clipped(word))));
                }
            },
        }
    }
}

fn pointer_attributes(lexer: &mut Lexer<'_>) -> Result<(), LoadError> {
    loop {
        match lexer.peek() {
            Token::Word(word) if space(word).is_some() => {
                lexer.take()?;
            }
            Token::Word(".align") => {
                lexer.take()?;
                integer(lexer, "an alignment")?;
            }
            _ => return Ok(()),
        }
    }
}

/// Parses a name with its dimensions and initialiser.
pub fn variable<'a>(lexer: &mut Lexer<'a>, head: Head) -> Result<Variable<'a>, LoadError> {
    let line = lexer.line();
    let name = lexer.word("a name")?;
    let too_large = || {
        let most = limits::VARIABLE_BYTES;
        let what = format!("the size of `{}` is negative or too large (limit: {most} bytes)", clipped(name));
        LoadError::limit(line, what)
    };
    let mut bytes = head.element;
    let mut unsized_array = false;
    while lexer.accept('[')? {
        if lexer.accept(']')? {
            unsized_array = true;
            continue;
        }
        let count = u64::try_from(integer(lexer, "a size")?).map_err(|_| too_large())?;
        lexer.expect(']')?;
        bytes =
            bytes.checked_mul(count).filter(|all| *all <= limits::VARIABLE_BYTES).ok_or_else(too_large)?;
    }
    let mut variable = Variable {
        line,
        name,
        space: head.space,
        align: head.align,
        bytes: if unsized_array { 0 } else { bytes },
        unsized_array,
        is_extern: false,
        initial: Vec::new(),
    };
    if lexer.accept('=')? {
        let mut at = 0;
        initialiser(lexer, head.element, &mut variable.initial, &mut at, 0)?;
        if unsized_array {
            variable.bytes = at;
        } else if variable.bytes < at {
            return Err(LoadError::syntax(line, format!("`{}` has too many initial values", clipped(name))));
        }
    }
    Ok(variable)
}

fn initialiser<'a>(
    lexer: &mut Lexer<'a>,
    element: u64,
    found: &mut Vec<Initial<'a>>,
    at: &mut u64,
    depth: usize,
) -> Result<(), LoadError> {
    let line = lexer.line();
    if lexer.accept('{')? {
        if limits::NESTING <= depth {
            return Err(LoadError::limit(line, "an initialiser is nested too deeply".to_owned()));
        }
        while !lexer.accept('}')? {
            initialiser(lexer, element, found, at, depth + 1)?;
            if !lexer.accept(',')? && !lexer.is('}') {
                return Err(lexer.unexpected("`,` or `}`"));
            }
        }
        return Ok(());
    }
    let value = match lexer.peek() {
        Token::Word("generic") => {
            lexer.take()?;
            lexer.expect('(')?;
            let name = lexer.word("a name")?;
            lexer.expect(')')?;
            InitialValue::Address { name, offset: offset(lexer)? }
        }
        Token::Word(name) => {
            lexer.take()?;
            if lexer.is('(') {
                return Err(LoadError::unsupported(line, format!("initial values with `{}`", clipped(name))));
            }
            InitialValue::Address { name, offset: offset(lexer)? }
        }
        _ => InitialValue::Bits(match number(lexer)? {
            Number::Integer(bits) => bits,
            Number::Single(bits) => u64::from(bits),
            // A decimal constant is rounded to the width of the element.
            Number::Double(bits) if element == 4 => u64::from(single(bits)),
            Number::Double(bits) => bits,
        }),
    };
    let bytes = usize::try_from(element).unwrap_or(8);
    found.push(Initial { offset: *at, bytes, value });
    *at += element;
    Ok(())
}

/// Converts an `f64` constant to `f32`.
#[expect(clippy::cast_possible_truncation, reason = "PTX rounds decimal constants to the required type")]
pub fn single(bits: u64) -> u32 {
    (f64::from_bits(bits) as f32).to_bits()
}

/// Parses an optional offset: `+4`, `-4` or `+-4`.
pub fn offset(lexer: &mut Lexer<'_>) -> Result<i64, LoadError> {
    if lexer.accept('+')? || lexer.is('-') { integer(lexer, "an offset") } else { Ok(0) }
}
