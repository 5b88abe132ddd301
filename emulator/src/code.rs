//! Decoded kernels: what the interpreter executes, with every name, label and type resolved.

use crate::lane::Function;
use crate::ptx::syntax::Location;

/// Which row of a warp's registers, by the file that it lies in. A row has a value for each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// Predicates: one bit for each lane.
    Flag,
    /// Up to 32 bits, zero-extended.
    Narrow,
    /// 64 bits.
    Wide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub file: File,
    pub row: u32,
    /// 1, 8, 16, 32 or 64.
    pub bits: u32,
}

/// The row of flags that holds the carry.
pub const CARRY: u32 = 0;
/// A row of flags that is set in every lane.
pub const ALWAYS: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    pub row: u32,
    pub negated: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    pub guard: Option<Guard>,
    pub op: Op,
}

/// Operations of two narrow values that are run for all lanes of a warp in one loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrow2 {
    Add,
    Sub,
    Mul,
    And,
    Or,
    Xor,
    Shl,
    ShrUnsigned,
    ShrSigned,
    MinSigned,
    MaxSigned,
    MinUnsigned,
    MaxUnsigned,
    AddF32,
    SubF32,
    MulF32,
    MinF32,
    MaxF32,
    AddF32Ftz,
    SubF32Ftz,
    MulF32Ftz,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wide2 {
    Add,
    Sub,
    Mul,
    And,
    Or,
    Xor,
    AddF64,
    SubF64,
    MulF64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WideShift {
    Left,
    RightUnsigned,
    RightSigned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// The same, and true when one side is not a number.
    EqOrNan,
    NeOrNan,
    LtOrNan,
    LeOrNan,
    GtOrNan,
    GeOrNan,
    BothNumbers,
    AnyNan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparable {
    Signed32,
    Unsigned32,
    Float32,
    Signed64,
    Unsigned64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagOp {
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// What has no effect here: prefetches, fences of a single thread.
    Nothing,
    Fence,
    MoveNarrow {
        to: u32,
        from: u32,
    },
    MoveWide {
        to: u32,
        from: u32,
    },
    Narrow2(Narrow2, u32, u32, u32),
    Wide2(Wide2, u32, u32, u32),
    WideShift(WideShift, u32, u32, u32),
    /// a × b + c, the low 32 bits.
    MadNarrow(u32, u32, u32, u32),
    MadWide(u32, u32, u32, u32),
    FmaF32 {
        flush: bool,
        rows: [u32; 4],
    },
    FmaF64(u32, u32, u32, u32),
    /// 32 bits by 32 bits gives 64, perhaps with an addend.
    MulWiden {
        signed: bool,
        rows: [u32; 3],
    },
    MadWiden {
        signed: bool,
        rows: [u32; 4],
    },
    Widen {
        signed: bool,
        to: u32,
        from: u32,
    },
    Truncate {
        to: u32,
        from: u32,
    },
    Compare(Compare, Comparable, u32, u32, u32),
    SelectNarrow {
        to: u32,
        yes: u32,
        no: u32,
        flag: u32,
    },
    SelectWide {
        to: u32,
        yes: u32,
        no: u32,
        flag: u32,
    },
    Flags(FlagOp, u32, u32, u32),
    FlagNot {
        to: u32,
        from: u32,
    },
    FlagMove {
        to: u32,
        from: u32,
    },
    /// Anything else that maps a lane's values to a value: an index into `Kernel::lane_ops`.
    Lane(u32),
    Branch {
        target: u32,
    },
    /// An index into `Kernel::tables`.
    BranchTable {
        index: u32,
        table: u32,
    },
    Exit,
    Trap,
    Memory(u32),
    Warp(u32),
    Barrier(u32),
    Call(u32),
    /// The lanes that execute this.
    ActiveMask {
        to: u32,
    },
    Clock {
        to: Slot,
    },
    /// `bytes` of local memory from `offset` on hold nothing any more.
    EnterLocal {
        offset: u32,
        bytes: u32,
    },
}

/// A function of a lane's own values.
#[derive(Clone, Debug)]
pub struct LaneOp {
    pub function: Function,
    pub to: Slot,
    /// The second result: the other predicate of `setp`, the carry, or the `n`th part of what is unpacked.
    pub second: Option<Slot>,
    pub from: Vec<Slot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySpace {
    Global,
    Shared,
    Local,
    Param,
    Generic,
}

#[derive(Clone, Debug)]
pub enum MemoryAction {
    /// `None`: the element goes nowhere.
    Load {
        signed: bool,
        to: Vec<Option<Slot>>,
    },
    Store {
        from: Vec<Slot>,
    },
    Atomic {
        op: AtomicOp,
        kind: AtomicKind,
        to: Option<Slot>,
        first: Slot,
        second: Option<Slot>,
    },
}

#[derive(Clone, Debug)]
pub struct MemoryOp {
    pub space: MemorySpace,
    /// Narrow or wide; `offset` is added to it.
    pub base: Slot,
    pub offset: i64,
    /// Bytes of one element, and of all.
    pub element: u32,
    pub bytes: u32,
    /// Read or written as one: volatile, relaxed, acquire, release.
    pub is_strong: bool,
    pub action: MemoryAction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    And,
    Or,
    Xor,
    Exchange,
    CompareExchange,
    Add,
    /// Wraps to zero above the operand.
    Increment,
    /// Wraps to the operand below zero.
    Decrement,
    Min,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicKind {
    Bits16,
    Bits32,
    Bits64,
    Unsigned32,
    Unsigned64,
    Signed32,
    Signed64,
    F32,
    F64,
    F16,
    Bf16,
    F16x2,
    Bf16x2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteMode {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    Add,
    MinSigned,
    MaxSigned,
    MinUnsigned,
    MaxUnsigned,
    And,
    Or,
    Xor,
}

/// What lanes of a warp do together. `members` names the lanes.
#[derive(Clone, Copy, Debug)]
pub enum WarpOp {
    Shuffle {
        mode: ShuffleMode,
        to: u32,
        in_range: Option<u32>,
        value: u32,
        lane: u32,
        clamp: u32,
        members: Option<u32>,
    },
    Vote {
        mode: VoteMode,
        to: Slot,
        flag: Guard,
        members: Option<u32>,
    },
    Match {
        all: bool,
        to: u32,
        agree: Option<u32>,
        value: Slot,
        members: u32,
    },
    Reduce {
        op: ReduceOp,
        to: u32,
        value: u32,
        members: u32,
    },
    Sync {
        members: u32,
    },
    /// One lane of the members is chosen.
    Elect {
        to: Option<u32>,
        flag: u32,
        members: u32,
    },
}

impl WarpOp {
    /// The row that names the lanes; `None`: those that are there.
    pub fn members(&self) -> Option<u32> {
        match *self {
            Self::Shuffle { members, .. } | Self::Vote { members, .. } => members,
            Self::Match { members, .. }
            | Self::Reduce { members, .. }
            | Self::Sync { members }
            | Self::Elect { members, .. } => Some(members),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierMode {
    Sync,
    Arrive,
    /// Reduces a predicate over all threads.
    And,
    Or,
    Count,
}

#[derive(Clone, Copy, Debug)]
pub struct BarrierOp {
    pub mode: BarrierMode,
    pub index: u32,
    /// Threads that take part; `None`: all of the block.
    pub threads: Option<u32>,
    pub aligned: bool,
    pub to: Option<Slot>,
    pub flag: Option<Guard>,
}

/// Functions that the device provides.
#[derive(Clone, Copy, Debug)]
pub enum CallOp {
    /// Address of the format, address of the arguments, result.
    Print { format: Slot, arguments: Slot, to: Option<Slot> },
    /// Addresses of the message and the file, the line, and the address of the function's name.
    Assert { message: Slot, file: Slot, line: Slot, function: Slot },
}

/// Values that a warp finds in its registers when a block starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    Thread(usize),
    BlockSize(usize),
    Block(usize),
    GridSize(usize),
    Lane,
    Warp,
    Warps,
    LanesEqual,
    LanesBelow,
    LanesUpTo,
    LanesAbove,
    LanesFrom,
    DynamicShared,
    TotalShared,
    Number(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    pub offset: u64,
    pub bytes: u64,
}

#[derive(Debug, Default)]
pub struct Kernel {
    pub name: String,
    pub code: Vec<Instruction>,
    /// For each instruction its line, and where that comes from.
    pub lines: Vec<u32>,
    pub locations: Vec<Option<Location>>,
    pub lane_ops: Vec<LaneOp>,
    pub memory_ops: Vec<MemoryOp>,
    pub warp_ops: Vec<WarpOp>,
    pub barrier_ops: Vec<BarrierOp>,
    pub call_ops: Vec<CallOp>,
    pub tables: Vec<Vec<u32>>,
    pub flag_rows: u32,
    pub narrow_rows: u32,
    pub wide_rows: u32,
    pub narrow_constants: Vec<(u32, u32)>,
    pub wide_constants: Vec<(u32, u64)>,
    pub specials: Vec<(u32, Special)>,
    pub params: Vec<Param>,
    pub param_bytes: u64,
    /// Shared memory that is declared with a size; dynamic memory follows it.
    pub static_shared: u64,
    pub local_bytes: u64,
    pub largest_block: Option<[u32; 3]>,
    pub required_block: Option<[u32; 3]>,
}
