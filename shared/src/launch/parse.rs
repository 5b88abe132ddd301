//! Parses expressions by recursive descent. Errors point to the part of the text that caused them.

use super::node::{Attribute, Function, Node, NodeKind, Operator, Reference};
use super::token::{Token, Tokens};
use super::{MAX_DEPTH, MAX_TEXT, SyntaxError};

/// Parses a whole text.
pub(super) fn whole(text: &str) -> Result<Node, SyntaxError> {
    part(text, text.len())
}

/// Parses the first `end` bytes of a text.
pub(super) fn part(text: &str, end: usize) -> Result<Node, SyntaxError> {
    if text.len() > MAX_TEXT {
        let message = format!("an expression has at most {MAX_TEXT} bytes");
        let cut = text.floor_char_boundary(MAX_TEXT.min(32));
        return Err(SyntaxError { text: format!("{}…", &text[..cut]), at: 0..0, message });
    }
    let mut tokens = Tokens::new(text, end)?;
    let node = sum(&mut tokens, 0)?;
    match tokens.peek() {
        Token::End => Ok(node),
        _ => Err(tokens.unexpected("an operator or the end")),
    }
}

fn sum(tokens: &mut Tokens<'_>, depth: usize) -> Result<Node, SyntaxError> {
    chain(tokens, depth, product, &[('+', Operator::Add), ('-', Operator::Subtract)])
}

fn product(tokens: &mut Tokens<'_>, depth: usize) -> Result<Node, SyntaxError> {
    let operators = [('*', Operator::Multiply), ('/', Operator::Divide), ('%', Operator::Remainder)];
    chain(tokens, depth, signed, &operators)
}

type Level = fn(&mut Tokens<'_>, usize) -> Result<Node, SyntaxError>;

/// Parses a chain of operators with the same precedence, from left to right. Every operator makes the tree one level
/// deeper, so each counts towards the limit.
fn chain(
    tokens: &mut Tokens<'_>,
    depth: usize,
    operand: Level,
    operators: &[(char, Operator)],
) -> Result<Node, SyntaxError> {
    let mut left = operand(tokens, depth)?;
    let mut links = 0;
    while let Some((_, operator)) = operators.iter().find(|(sign, _)| tokens.peek() == Token::Sign(*sign)) {
        links += 1;
        within_depth(tokens, depth + links)?;
        tokens.take()?;
        let right = operand(tokens, depth)?;
        let at = left.at.start..right.at.end;
        left = Node { at, kind: NodeKind::Binary(*operator, Box::new([left, right])) };
    }
    Ok(left)
}

fn signed(tokens: &mut Tokens<'_>, depth: usize) -> Result<Node, SyntaxError> {
    let start = tokens.at().start;
    if tokens.took('-')? {
        within_depth(tokens, depth + 1)?;
        let inner = signed(tokens, depth + 1)?;
        return Ok(Node { at: start..inner.at.end, kind: NodeKind::Negate(Box::new(inner)) });
    }
    primary(tokens, depth)
}

fn primary(tokens: &mut Tokens<'_>, depth: usize) -> Result<Node, SyntaxError> {
    let start = tokens.at().start;
    let kind = match tokens.peek() {
        Token::Number(number) => {
            tokens.take()?;
            NodeKind::Number(number)
        }
        Token::Sign('(') => {
            within_depth(tokens, depth + 1)?;
            tokens.take()?;
            let inner = sum(tokens, depth + 1)?;
            tokens.expect(')')?;
            inner.kind
        }
        Token::Name(name) => {
            tokens.take()?;
            if tokens.peek() == Token::Sign('(') {
                call(name, start, tokens, depth)?
            } else {
                reference(name, tokens)?
            }
        }
        Token::Sign(_) | Token::End => return Err(tokens.unexpected("a number, a name or `(`")),
    };
    Ok(Node { at: start..tokens.last, kind })
}

fn call(name: &str, start: usize, tokens: &mut Tokens<'_>, depth: usize) -> Result<NodeKind, SyntaxError> {
    let Some((_, function)) = Function::ALL.into_iter().find(|(known, _)| *known == name) else {
        let message = format!("`{name}` is not a function (known: min, max, ceil_div)");
        return Err(tokens.error(start..start + name.len(), message));
    };
    within_depth(tokens, depth + 1)?;
    tokens.expect('(')?;
    let mut operands = vec![sum(tokens, depth + 1)?];
    while tokens.took(',')? {
        operands.push(sum(tokens, depth + 1)?);
    }
    tokens.expect(')')?;
    let fits = match function {
        Function::Min | Function::Max => operands.len() >= 2,
        Function::CeilDiv => operands.len() == 2,
    };
    if !fits {
        let wanted = if function == Function::CeilDiv { "two operands" } else { "at least two operands" };
        let message = format!("`{name}` takes {wanted}, found {}", operands.len());
        return Err(tokens.error(start..tokens.last, message));
    }
    Ok(NodeKind::Call(function, operands))
}

fn reference(name: &str, tokens: &mut Tokens<'_>) -> Result<NodeKind, SyntaxError> {
    let mut indices = Vec::new();
    while tokens.peek() == Token::Sign('[') {
        within_depth(tokens, indices.len())?;
        indices.push(index(tokens)?);
    }
    let attribute = if tokens.took('.')? { Some(attribute(tokens)?) } else { None };
    Ok(NodeKind::Reference(Reference { name: name.to_owned(), indices, attribute }))
}

fn attribute(tokens: &mut Tokens<'_>) -> Result<Attribute, SyntaxError> {
    const EXPECTED: &str = "`numel`, `shape[…]`, `stride[…]`, `ndim`, `itemsize` or `bytes`";
    let Token::Name(name) = tokens.peek() else { return Err(tokens.unexpected(EXPECTED)) };
    let unknown = tokens.unexpected(EXPECTED);
    tokens.take()?;
    Ok(match name {
        "numel" => Attribute::Numel,
        "ndim" => Attribute::Ndim,
        "itemsize" => Attribute::Itemsize,
        "bytes" => Attribute::Bytes,
        "shape" => Attribute::Shape(index(tokens)?),
        "stride" => Attribute::Stride(index(tokens)?),
        _ => return Err(unknown),
    })
}

/// Parses a number in brackets, which may be negative.
fn index(tokens: &mut Tokens<'_>) -> Result<i64, SyntaxError> {
    tokens.expect('[')?;
    let negative = tokens.took('-')?;
    let Token::Number(number) = tokens.peek() else { return Err(tokens.unexpected("a number")) };
    tokens.take()?;
    tokens.expect(']')?;
    Ok(if negative { -number } else { number })
}

fn within_depth(tokens: &Tokens<'_>, depth: usize) -> Result<(), SyntaxError> {
    if depth < MAX_DEPTH {
        return Ok(());
    }
    Err(tokens.error(tokens.at(), format!("the expression has more than {MAX_DEPTH} nested operations")))
}
