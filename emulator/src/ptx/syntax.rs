//! Defines the syntax tree of a PTX module. Names are borrowed from the text.

use std::collections::{BTreeMap, HashMap};

/// A parsed module.
#[derive(Debug, Default)]
pub struct Source<'a> {
    /// `.version`, major and minor.
    pub version: (u32, u32),
    /// The architecture: the first word of `.target`.
    pub target: &'a str,
    pub variables: Vec<Variable<'a>>,
    pub functions: Vec<Function<'a>>,
    /// The indices of the shared variables, by name.
    pub shared: HashMap<&'a str, usize>,
    /// The indices of the functions that have a body, by name.
    pub defined: HashMap<&'a str, usize>,
    /// The index and path of each `.file`.
    pub files: BTreeMap<u32, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Global,
    Const,
    Shared,
    Local,
    Param,
    Generic,
}

#[derive(Clone, Debug)]
pub struct Variable<'a> {
    pub line: u32,
    pub name: &'a str,
    pub space: Space,
    pub align: u64,
    pub bytes: u64,
    /// Whether the variable is an array without a stated size: dynamic shared memory, a variable that is defined
    /// elsewhere, or an array that is as long as its initialiser.
    pub unsized_array: bool,
    pub is_extern: bool,
    pub initial: Vec<Initial<'a>>,
}

/// One value of an initialiser.
#[derive(Clone, Debug)]
pub struct Initial<'a> {
    pub offset: u64,
    pub bytes: usize,
    pub value: InitialValue<'a>,
}

#[derive(Clone, Debug)]
pub enum InitialValue<'a> {
    Bits(u64),
    /// The address of a variable in global or constant memory. In these memories, it is equal to the generic address.
    Address {
        name: &'a str,
        offset: i64,
    },
}

#[derive(Debug)]
pub struct Function<'a> {
    pub name: &'a str,
    pub is_entry: bool,
    pub returns: Vec<Variable<'a>>,
    pub params: Vec<Variable<'a>>,
    pub registers: Vec<RegisterParam<'a>>,
    /// `.reqntid`.
    pub required_block: Option<[u32; 3]>,
    /// `.maxntid`.
    pub largest_block: Option<[u32; 3]>,
    /// The body; `None` for a declaration.
    pub body: Option<Vec<Item<'a>>>,
}

/// A parameter or result of a function that is passed in a register.
#[derive(Clone, Copy, Debug)]
pub struct RegisterParam<'a> {
    pub name: &'a str,
    pub is_result: bool,
}

/// The class of a register: a predicate, or a value of some number of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterClass {
    Predicate,
    /// 8, 16 or 32 bits.
    Narrow(u32),
    Wide,
}

#[derive(Debug)]
pub enum Item<'a> {
    Open,
    Close,
    /// A declaration of registers. `name<count>` declares `name0`, `name1` and so on; without a count, only `name`
    /// is declared.
    Registers {
        line: u32,
        name: &'a str,
        count: Option<u32>,
        class: RegisterClass,
    },
    Variable(Variable<'a>),
    Label {
        line: u32,
        name: &'a str,
    },
    BranchTargets {
        name: &'a str,
        targets: Vec<&'a str>,
    },
    Location {
        at: Position,
        /// The position at which the function that contains `at` was inlined.
        inlined_at: Option<Position>,
    },
    Statement(Statement<'a>),
}

/// The line of a source that is reported for an instruction. `file` is the index of a `.file`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    pub file: u32,
    pub line: u32,
}

/// A position in a source, from `.loc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    pub file: u32,
    pub line: u32,
    pub column: u32,
}

#[derive(Debug)]
pub struct Statement<'a> {
    pub line: u32,
    /// The predicate, and whether it is negated.
    pub guard: Option<(&'a str, bool)>,
    /// The opcode and its qualifiers, such as `["ld", "global", "v4", "f32"]`.
    pub opcode: Vec<&'a str>,
    pub operands: Vec<Operand<'a>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Operand<'a> {
    Name(&'a str),
    /// `!%p1`
    Not(&'a str),
    Number(Number),
    /// `name+4` outside brackets, for example as an operand of `mov`.
    Sum(&'a str, i64),
    /// `[name+4]`, or an absolute address without a name.
    Address(Option<&'a str>, i64),
    Vector(Vec<Operand<'a>>),
    /// `(a, b)` in a call.
    List(Vec<Operand<'a>>),
    /// `p|q`
    Pair(&'a str, &'a str),
    /// `_`
    Sink,
}

impl Operand<'_> {
    /// Returns the number of operands that this operand directly contains, plus 1 for the operand itself.
    pub fn parts(&self) -> usize {
        match self {
            Self::Vector(parts) | Self::List(parts) => parts.len() + 1,
            _ => 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// The low 64 bits of an integer.
    Integer(u64),
    /// `0f…`
    Single(u32),
    /// `0d…`, or a decimal number with a point or an exponent.
    Double(u64),
}
