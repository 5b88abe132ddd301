//! What an expression is made of.

use std::ops::Range;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Bytes of the text.
    pub(super) at: Range<usize>,
    pub(super) kind: NodeKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    Number(i64),
    Reference(Reference),
    Negate(Box<Node>),
    Binary(Operator, Box<[Node; 2]>),
    Call(Function, Vec<Node>),
}

/// A name, with what of it is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) name: String,
    /// Behind the name: the element of a list.
    pub(super) indices: Vec<i64>,
    pub(super) attribute: Option<Attribute>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attribute {
    /// Elements.
    Numel,
    Ndim,
    /// Bytes of an element.
    Itemsize,
    /// Bytes of all elements; of a workspace, its size.
    Bytes,
    /// Elements along an axis; from the last one back if negative.
    Shape(i64),
    /// Elements from one to the next along an axis.
    Stride(i64),
}

impl Attribute {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Numel => "numel",
            Self::Ndim => "ndim",
            Self::Itemsize => "itemsize",
            Self::Bytes => "bytes",
            Self::Shape(_) => "shape",
            Self::Stride(_) => "stride",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    /// Rounds down.
    Divide,
    Remainder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Min,
    Max,
    /// A quotient, rounded up.
    CeilDiv,
}

impl Function {
    pub(super) const ALL: [(&'static str, Self); 3] =
        [("min", Self::Min), ("max", Self::Max), ("ceil_div", Self::CeilDiv)];
}
