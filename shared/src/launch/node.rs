//! Defines the nodes of an expression's syntax tree.

use std::ops::Range;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// The byte range of the node in the text.
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

/// A reference to a parameter, an output or a workspace, or to a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) name: String,
    /// The indices after the name, which select an element of a list.
    pub(super) indices: Vec<i64>,
    pub(super) attribute: Option<Attribute>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attribute {
    /// The number of elements.
    Numel,
    Ndim,
    /// The size of an element, in bytes.
    Itemsize,
    /// The size of all elements, or of a workspace, in bytes.
    Bytes,
    /// The number of elements along an axis. A negative axis counts back from the last one.
    Shape(i64),
    /// The stride along an axis, in elements.
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
    /// Division, rounded down.
    Divide,
    Remainder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Min,
    Max,
    /// Division, rounded up.
    CeilDiv,
}

impl Function {
    pub(super) const ALL: [(&'static str, Self); 3] =
        [("min", Self::Min), ("max", Self::Max), ("ceil_div", Self::CeilDiv)];
}
