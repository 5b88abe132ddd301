//! Parses the outer level of a PTX text: target, files, variables and functions.

use std::collections::HashMap;

use super::lexer::{Lexer, Token, clipped};
use super::number::unsigned;
use super::statement::body;
use super::syntax::{Function, RegisterParam, Source, Space, Variable};
use super::variable::{head, space, variable};
use crate::fault::LoadError;
use crate::limits;

/// Parses a PTX text.
///
/// # Errors
/// The first item that is not PTX, is not supported or exceeds a limit, with its line.
pub fn parse(text: &str) -> Result<Source<'_>, LoadError> {
    if limits::PTX_BYTES < text.len() {
        let what =
            format!("the PTX text has {} bytes, but at most {} are allowed", text.len(), limits::PTX_BYTES);
        return Err(LoadError::limit(1, what));
    }
    let mut lexer = Lexer::new(text)?;
    let mut source = Source::default();
    let mut is_extern = false;
    let mut items = 0;
    loop {
        let line = lexer.line();
        let word = match lexer.peek() {
            Token::End => break,
            // This is an empty statement, which some compilers write.
            Token::Mark(';') => {
                lexer.take()?;
                continue;
            }
            _ => lexer.word("a directive")?,
        };
        match word {
            ".version" => source.version = version(&mut lexer)?,
            ".target" => {
                source.target = lexer.word("an architecture")?;
                while lexer.accept(',')? {
                    lexer.word("an option of the target")?;
                }
            }
            ".address_size" => {
                if unsigned(&mut lexer, "an address size")? != 64 {
                    return Err(LoadError::unsupported(line, "addresses of 32 bits".to_owned()));
                }
            }
            ".file" => file(&mut lexer, &mut source)?,
            ".section" => section(&mut lexer)?,
            ".pragma" => lexer.skip_to(';')?,
            ".extern" => is_extern = true,
            ".visible" | ".weak" | ".common" => {}
            ".entry" | ".func" => {
                let found = function(&mut lexer, word == ".entry")?;
                items += found.body.as_ref().map_or(0, Vec::len);
                if 2 * limits::INSTRUCTIONS < items {
                    let what = format!(
                        "the functions together have more than {} items, such as statements",
                        2 * limits::INSTRUCTIONS
                    );
                    return Err(LoadError::limit(line, what));
                }
                source.functions.push(found);
                is_extern = false;
            }
            ".alias" => return Err(LoadError::unsupported(line, "`.alias`".to_owned())),
            _ => {
                let Some(space) = space(word).filter(|space| !matches!(space, Space::Param)) else {
                    let what = format!("`{}` is not a directive of a module", clipped(word));
                    return Err(LoadError::syntax(line, what));
                };
                for mut found in declaration(&mut lexer, space)? {
                    found.is_extern = is_extern;
                    source.variables.push(found);
                }
                is_extern = false;
            }
        }
    }
    source.shared = by_name(source.variables.iter().map(|v| (v.name, v.space == Space::Shared)));
    source.defined = by_name(source.functions.iter().map(|f| (f.name, f.body.is_some())));
    Ok(source)
}

/// Returns the indices, by name, of the items whose flag is true. If several of them have the same name, this is the
/// index of the first one.
fn by_name<'a>(found: impl Iterator<Item = (&'a str, bool)>) -> HashMap<&'a str, usize> {
    let mut indices = HashMap::new();
    for (index, (name, counts)) in found.enumerate() {
        if counts {
            indices.entry(name).or_insert(index);
        }
    }
    indices
}

/// Parses the variables of one declaration, after its state space.
pub fn declaration<'a>(lexer: &mut Lexer<'a>, space: Space) -> Result<Vec<Variable<'a>>, LoadError> {
    let head = head(lexer, space)?;
    let mut found = vec![variable(lexer, head)?];
    while lexer.accept(',')? {
        found.push(variable(lexer, head)?);
    }
    lexer.expect(';')?;
    Ok(found)
}

fn version(lexer: &mut Lexer<'_>) -> Result<(u32, u32), LoadError> {
    let line = lexer.line();
    let Token::Digits(digits) = lexer.take()? else {
        return Err(LoadError::syntax(line, "`.version` is not followed by a number".to_owned()));
    };
    let (major, minor) = digits.split_once('.').unwrap_or((digits, "0"));
    match (major.parse(), minor.parse()) {
        (Ok(major), Ok(minor)) => Ok((major, minor)),
        _ => Err(LoadError::syntax(line, format!("`{}` is not a version", clipped(digits)))),
    }
}

/// Parses `.file 1 "path"`, which may be followed by a time and a size.
fn file<'a>(lexer: &mut Lexer<'a>, source: &mut Source<'a>) -> Result<(), LoadError> {
    let index = unsigned(lexer, "the index of a file")?;
    let Token::Text(path) = lexer.peek() else {
        return Err(lexer.unexpected("a path"));
    };
    lexer.take()?;
    while lexer.accept(',')? {
        lexer.take()?;
    }
    source.files.insert(index, path.to_owned());
    Ok(())
}

/// Skips a section, which consists of debug information in braces.
fn section(lexer: &mut Lexer<'_>) -> Result<(), LoadError> {
    while !lexer.is('{') {
        if lexer.take()? == Token::End {
            return Err(lexer.unexpected("`{`"));
        }
    }
    lexer.skip_to('}')
}

fn function<'a>(lexer: &mut Lexer<'a>, is_entry: bool) -> Result<Function<'a>, LoadError> {
    let mut registers = Vec::new();
    let returns = if lexer.is('(') { parameters(lexer, &mut registers, true)? } else { Vec::new() };
    let name = lexer.word("the name of a function")?;
    let params = if lexer.is('(') { parameters(lexer, &mut registers, false)? } else { Vec::new() };
    let mut function = Function {
        name,
        is_entry,
        returns,
        params,
        registers,
        required_block: None,
        largest_block: None,
        body: None,
    };
    loop {
        match lexer.peek() {
            Token::Mark(';') => {
                lexer.take()?;
                return Ok(function);
            }
            Token::Mark('{') => {
                function.body = Some(body(lexer)?);
                return Ok(function);
            }
            _ => performance_directive(lexer, &mut function)?,
        }
    }
}

fn performance_directive(lexer: &mut Lexer<'_>, function: &mut Function<'_>) -> Result<(), LoadError> {
    let line = lexer.line();
    let word = lexer.word("`{` or `;`")?;
    match word {
        ".reqntid" => function.required_block = Some(block_sizes(lexer)?),
        ".maxntid" => function.largest_block = Some(block_sizes(lexer)?),
        ".minnctapersm" | ".maxnreg" | ".maxnctapersm" => {
            unsigned(lexer, word)?;
        }
        ".noreturn" => {}
        ".pragma" => lexer.skip_to(';')?,
        ".explicitcluster" | ".reqnctapercluster" | ".maxclusterrank" => {
            return Err(LoadError::unsupported(line, format!("clusters (`{word}`)")));
        }
        _ => {
            let what = format!("`{}` is not a directive of a function", clipped(word));
            return Err(LoadError::syntax(line, what));
        }
    }
    Ok(())
}

fn block_sizes(lexer: &mut Lexer<'_>) -> Result<[u32; 3], LoadError> {
    let mut sizes = [1; 3];
    for (index, size) in sizes.iter_mut().enumerate() {
        if index != 0 && !lexer.accept(',')? {
            break;
        }
        *size = unsigned(lexer, "a number of threads")?;
    }
    Ok(sizes)
}

fn parameters<'a>(
    lexer: &mut Lexer<'a>,
    registers: &mut Vec<RegisterParam<'a>>,
    is_result: bool,
) -> Result<Vec<Variable<'a>>, LoadError> {
    let mut found = Vec::new();
    lexer.expect('(')?;
    if lexer.accept(')')? {
        return Ok(found);
    }
    loop {
        let line = lexer.line();
        let word = lexer.word("`.param` or `.reg`")?;
        match word {
            ".param" => {
                let head = head(lexer, Space::Param)?;
                found.push(variable(lexer, head)?);
            }
            ".reg" => {
                head(lexer, Space::Param)?;
                let name = lexer.word("a register")?;
                registers.push(RegisterParam { name, is_result });
            }
            _ => return Err(LoadError::syntax(line, format!("`{}` is not a parameter", clipped(word)))),
        }
        if !lexer.accept(',')? {
            break;
        }
    }
    lexer.expect(')')?;
    Ok(found)
}
