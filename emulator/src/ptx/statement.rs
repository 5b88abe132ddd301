//! Parses the body of a function: declarations, labels, source locations and instructions.

use super::lexer::{Lexer, Token, clipped};
use super::module::declaration;
use super::number::{number, unsigned};
use super::syntax::{Item, Operand, Position, Space, Statement};
use super::variable::{element, offset, space};
use crate::fault::LoadError;
use crate::limits;

pub fn body<'a>(lexer: &mut Lexer<'a>) -> Result<Vec<Item<'a>>, LoadError> {
    lexer.expect('{')?;
    let mut items = Vec::new();
    let mut depth = 0;
    loop {
        let line = lexer.line();
        if 2 * limits::INSTRUCTIONS < items.len() {
            let what =
                format!("a function has more than {} items, such as statements", 2 * limits::INSTRUCTIONS);
            return Err(LoadError::limit(line, what));
        }
        match lexer.peek() {
            Token::Mark('{') => {
                lexer.take()?;
                depth += 1;
                if limits::NESTING < depth {
                    let most = limits::NESTING;
                    let what = format!(
                        "the `{{ }}` blocks of a function are nested too deeply (the limit is {most} levels)"
                    );
                    return Err(LoadError::limit(line, what));
                }
                items.push(Item::Open);
            }
            Token::Mark('}') => {
                lexer.take()?;
                if depth == 0 {
                    return Ok(items);
                }
                depth -= 1;
                items.push(Item::Close);
            }
            Token::Mark(';') => {
                lexer.take()?;
            }
            Token::Word(word) if word.starts_with('.') => {
                lexer.take()?;
                directive(lexer, word, line, &mut items)?;
            }
            Token::Word(word) => {
                lexer.take()?;
                if lexer.accept(':')? {
                    label(lexer, word, line, &mut items)?;
                } else {
                    items.push(Item::Statement(statement(lexer, line, None, word)?));
                }
            }
            Token::Mark('@') => {
                lexer.take()?;
                let negated = lexer.accept('!')?;
                let guard = lexer.word("a predicate")?;
                let opcode = lexer.word("an instruction")?;
                items.push(Item::Statement(statement(lexer, line, Some((guard, negated)), opcode)?));
            }
            _ => return Err(lexer.unexpected("an instruction")),
        }
    }
}

fn label<'a>(
    lexer: &mut Lexer<'a>,
    name: &'a str,
    line: u32,
    items: &mut Vec<Item<'a>>,
) -> Result<(), LoadError> {
    match lexer.peek() {
        Token::Word(".branchtargets") => {
            lexer.take()?;
            let mut targets = vec![lexer.word("a label")?];
            while lexer.accept(',')? {
                targets.push(lexer.word("a label")?);
            }
            lexer.expect(';')?;
            items.push(Item::BranchTargets { name, targets });
        }
        Token::Word(".calltargets" | ".callprototype") => {
            // Labels of this kind are skipped, because only indirect calls use them, which the decoder refuses.
            lexer.skip_to(';')?;
        }
        _ => items.push(Item::Label { line, name }),
    }
    Ok(())
}

fn directive<'a>(
    lexer: &mut Lexer<'a>,
    word: &'a str,
    line: u32,
    items: &mut Vec<Item<'a>>,
) -> Result<(), LoadError> {
    match word {
        ".reg" => registers(lexer, items),
        ".loc" => location(lexer, items),
        ".pragma" => lexer.skip_to(';'),
        _ => {
            let Some(space) = space(word).filter(|space| !matches!(space, Space::Global | Space::Const))
            else {
                let what = format!("`{}` is not a directive of a function's body", clipped(word));
                return Err(LoadError::syntax(line, what));
            };
            items.extend(declaration(lexer, space)?.into_iter().map(Item::Variable));
            Ok(())
        }
    }
}

fn registers<'a>(lexer: &mut Lexer<'a>, items: &mut Vec<Item<'a>>) -> Result<(), LoadError> {
    let line = lexer.line();
    let word = lexer.word("a type")?;
    let Some((_, class)) = element(word) else {
        return Err(match word {
            ".b128" | ".v2" | ".v4" => LoadError::unsupported(line, format!("registers of type `{word}`")),
            _ => LoadError::syntax(line, format!("`{}` is not a type", clipped(word))),
        });
    };
    loop {
        let line = lexer.line();
        let name = lexer.word("a register")?;
        let count = if lexer.accept('<')? {
            let count = unsigned(lexer, "a number of registers")?;
            lexer.expect('>')?;
            Some(count)
        } else {
            None
        };
        items.push(Item::Registers { line, name, count, class });
        if !lexer.accept(',')? {
            break;
        }
    }
    lexer.expect(';')
}

/// Parses `.loc file line column`, which may be followed by inlining attributes.
fn location<'a>(lexer: &mut Lexer<'a>, items: &mut Vec<Item<'a>>) -> Result<(), LoadError> {
    let at = position(lexer)?;
    let mut inlined_at = None;
    while lexer.accept(',')? {
        // `function_name LABEL [+ n]` or `inlined_at file line column`
        let what = lexer.word("an attribute of `.loc`")?;
        if what == "function_name" {
            lexer.word("a label")?;
            if lexer.accept('+')? {
                unsigned(lexer, "an offset")?;
            }
        } else {
            inlined_at = Some(position(lexer)?);
        }
    }
    items.push(Item::Location { at, inlined_at });
    Ok(())
}

fn position(lexer: &mut Lexer<'_>) -> Result<Position, LoadError> {
    let file = unsigned(lexer, "the index of a file")?;
    let line = unsigned(lexer, "a line")?;
    let column = unsigned(lexer, "a column")?;
    Ok(Position { file, line, column })
}

/// The maximum number of operands of an instruction.
const MAX_OPERANDS: usize = 64;

fn statement<'a>(
    lexer: &mut Lexer<'a>,
    line: u32,
    guard: Option<(&'a str, bool)>,
    opcode: &'a str,
) -> Result<Statement<'a>, LoadError> {
    let mut operands = Vec::new();
    while !lexer.accept(';')? {
        if !operands.is_empty() {
            lexer.expect(',')?;
        }
        if MAX_OPERANDS <= operands.len() {
            return Err(LoadError::limit(
                line,
                format!("an instruction has more than {MAX_OPERANDS} operands"),
            ));
        }
        let operand = operand(lexer, 0).map_err(|error| match error {
            LoadError::Unsupported { line, what } => {
                LoadError::Unsupported { line, what: format!("`{}`: {what}", clipped(opcode)) }
            }
            other => other,
        });
        operands.push(operand?);
    }
    Ok(Statement { line, guard, opcode: opcode.split('.').collect(), operands })
}

fn operand<'a>(lexer: &mut Lexer<'a>, depth: usize) -> Result<Operand<'a>, LoadError> {
    let line = lexer.line();
    if 4 < depth {
        return Err(LoadError::limit(line, "an operand is nested too deeply".to_owned()));
    }
    match lexer.peek() {
        Token::Mark('[') => {
            lexer.take()?;
            let base = if let Token::Word(name) = lexer.peek() {
                lexer.take()?;
                Some(name)
            } else {
                None
            };
            let distance = match base {
                Some(_) => offset(lexer)?,
                None => super::number::integer(lexer, "an address")?,
            };
            if lexer.is(',') {
                return Err(LoadError::unsupported(line, "operands of tensor maps and textures".to_owned()));
            }
            lexer.expect(']')?;
            Ok(Operand::Address(base, distance))
        }
        Token::Mark('{') => Ok(Operand::Vector(list(lexer, '}', depth)?)),
        Token::Mark('(') => Ok(Operand::List(list(lexer, ')', depth)?)),
        Token::Mark('!') => {
            lexer.take()?;
            Ok(Operand::Not(lexer.word("a predicate")?))
        }
        Token::Word("_") => {
            lexer.take()?;
            if lexer.accept('|')? {
                return Ok(Operand::Pair("_", lexer.word("a predicate")?));
            }
            Ok(Operand::Sink)
        }
        Token::Word(name) => {
            lexer.take()?;
            if lexer.accept('|')? {
                return Ok(Operand::Pair(name, lexer.word("a predicate")?));
            }
            match offset(lexer)? {
                0 => Ok(Operand::Name(name)),
                distance => Ok(Operand::Sum(name, distance)),
            }
        }
        _ => Ok(Operand::Number(number(lexer)?)),
    }
}

fn list<'a>(lexer: &mut Lexer<'a>, end: char, depth: usize) -> Result<Vec<Operand<'a>>, LoadError> {
    lexer.take()?;
    let mut found = Vec::new();
    while !lexer.accept(end)? {
        if !found.is_empty() {
            lexer.expect(',')?;
        }
        if 256 < found.len() {
            return Err(LoadError::limit(lexer.line(), "a list of operands is too long".to_owned()));
        }
        found.push(operand(lexer, depth + 1)?);
    }
    Ok(found)
}
