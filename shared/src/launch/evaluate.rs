//! Evaluates an expression for one entry, with checked arithmetic: a result that does not fit in 64 bits is an error.

use std::ops::Range;

use super::Problem;
use super::names::Names;
use super::node::{Function, Node, NodeKind, Operator};
use super::scalar::Number;

/// A problem, and the byte range of the text that caused it.
pub(super) type Wrong = (Range<usize>, Problem);

/// Evaluates a node that must be a whole number.
pub(super) fn whole(node: &Node, names: &Names<'_>) -> Result<i64, Wrong> {
    match number(node, names)? {
        Number::Int(value) => Ok(value),
        Number::Bool(value) => Ok(value.into()),
        Number::Float(_) => {
            let problem = Problem::NotANumber { found: "a float".to_owned(), wanted: "a whole number" };
            Err((node.at.clone(), problem))
        }
    }
}

/// Evaluates a node. Only a reference to a parameter can be a float.
pub(super) fn number(node: &Node, names: &Names<'_>) -> Result<Number, Wrong> {
    let at_node = |problem| (node.at.clone(), problem);
    let value = match &node.kind {
        NodeKind::Number(value) => Ok(*value),
        NodeKind::Reference(reference) => {
            return names.find(reference).and_then(|named| named.number(reference)).map_err(at_node);
        }
        NodeKind::Negate(inner) => whole(inner, names)?.checked_neg().ok_or(Problem::Overflow),
        NodeKind::Binary(operator, operands) => {
            let [left, right] = &**operands;
            let (a, b) = (whole(left, names)?, whole(right, names)?);
            match operator {
                Operator::Add => a.checked_add(b).ok_or(Problem::Overflow),
                Operator::Subtract => a.checked_sub(b).ok_or(Problem::Overflow),
                Operator::Multiply => a.checked_mul(b).ok_or(Problem::Overflow),
                Operator::Divide => divisor(b).map(|b| a.div_euclid(b)),
                Operator::Remainder => divisor(b).map(|b| a.rem_euclid(b)),
            }
        }
        NodeKind::Call(function, operands) => {
            let values =
                operands.iter().map(|operand| whole(operand, names)).collect::<Result<Vec<_>, _>>()?;
            match (function, &*values) {
                (Function::Min, [first, rest @ ..]) => {
                    Ok(rest.iter().fold(*first, |least, value| least.min(*value)))
                }
                (Function::Max, [first, rest @ ..]) => {
                    Ok(rest.iter().fold(*first, |most, value| most.max(*value)))
                }
                (Function::CeilDiv, [a, b]) => {
                    divisor(*b).map(|b| a.div_euclid(b) + i64::from(a.rem_euclid(b) != 0))
                }
                // The parser has checked the number of operands.
                _ => {
                    let found = "a call with the wrong number of operands".to_owned();
                    Err(Problem::NotANumber { found, wanted: "a number" })
                }
            }
        }
    };
    value.map(Number::Int).map_err(at_node)
}

/// Checks a divisor, which must be positive. Because of this, quotients are rounded down and remainders are never
/// negative.
fn divisor(value: i64) -> Result<i64, Problem> {
    if value > 0 { Ok(value) } else { Err(Problem::Divisor(value)) }
}
