//! Defines `Expression`, which holds the text of an expression in a plan together with its syntax tree.

use serde::{Deserialize, Serialize};

use super::node::{Node, NodeKind};
use super::{SyntaxError, parse};

/// An expression over shapes and parameters, such as `ceil_div(out.numel, 256)`. Its value is a whole number. It is
/// serialized as its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Expression {
    text: String,
    pub(super) root: Node,
}

impl Expression {
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        Ok(Self { text: text.to_owned(), root: parse::whole(text)? })
    }

    pub fn number(value: u32) -> Self {
        let text = value.to_string();
        let root = Node { at: 0..text.len(), kind: NodeKind::Number(value.into()) };
        Self { text, root }
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

impl TryFrom<String> for Expression {
    type Error = SyntaxError;

    fn try_from(text: String) -> Result<Self, SyntaxError> {
        Self::parse(&text)
    }
}

impl From<Expression> for String {
    fn from(expression: Expression) -> Self {
        expression.text
    }
}
