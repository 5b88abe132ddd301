//! Defines the form of kernels that the interpreter executes: decoded, with every name, label and type resolved.

mod sync;
mod tensor;

pub use sync::{BarrierMode, BarrierOp, MbarrierOp, MbarrierPhase};
pub use tensor::{Address, CopyOp, Element, Fragment, MatrixOp, Product, Role, SourceBytes, StoredMatrix};

use crate::lane::Function;
use crate::ptx::syntax::Location;

/// One of a warp's register files. A register file consists of rows, each of which contains a value for every lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// Predicates, with one bit for each lane.
    Flag,
    /// Values of up to 32 bits, zero-extended.
    Narrow,
    /// Values of 64 bits.
    Wide,
}

/// The row of a register file that holds a register's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub file: File,
    pub row: u32,
    /// The size of a value: 1, 8, 16, 32 or 64 bits.
    pub bits: u32,
}

/// The row of flags that contains the carry.
pub const CARRY: u32 = 0;
/// A row of flags that is set in every lane.
pub const ALWAYS: u32 = 1;

/// A predicate. As the guard of an instruction, it selects the lanes that execute the instruction.
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

/// Operations on two narrow values, which are executed for all lanes of a warp in one loop.
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
    /// Like `Eq`, but also true if an operand is NaN. The next five variants extend `Ne` to `Ge` in the same way.
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

/// The operation of an instruction. Unless a name or a comment says otherwise, the numbers in a variant are rows of
/// registers: first that of the result, then those of the operands. A single number without a name is an index into one
/// of the lists of `Kernel`.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// An instruction that has no effect on this device, such as a prefetch.
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
    /// The low 32 bits of a × b + c.
    MadNarrow(u32, u32, u32, u32),
    MadWide(u32, u32, u32, u32),
    FmaF32 {
        flush: bool,
        rows: [u32; 4],
    },
    FmaF64(u32, u32, u32, u32),
    /// The 64-bit product of two 32-bit values.
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
    /// Any other function of a lane's values: an index into `Kernel::lane_ops`.
    Lane(u32),
    Branch {
        target: u32,
    },
    /// `index` is a row of registers, and `table` is an index into `Kernel::tables`.
    BranchTable {
        index: u32,
        table: u32,
    },
    Exit,
    Trap,
    Memory(u32),
    Warp(u32),
    Barrier(u32),
    Mbarrier(u32),
    Copy(u32),
    Matrix(u32),
    Call(u32),
    /// Writes the mask of lanes that execute this instruction.
    ActiveMask {
        to: u32,
    },
    Clock {
        to: Slot,
    },
    /// Marks `bytes` of local memory, beginning at `offset`, as never written.
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
    /// The second result: the other predicate of `setp`, or the carry.
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
    /// A load. Elements whose target is `None` are discarded.
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

/// The memory-ordering semantics of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOrder {
    Weak,
    Volatile,
    Relaxed,
    Acquire,
    Release,
    AcquireRelease,
}

impl MemoryOrder {
    /// Returns true for a strong access. Such an access must be made as a whole: no other thread may see it half done.
    pub fn is_strong(self) -> bool {
        self != Self::Weak
    }
}

#[derive(Clone, Debug)]
pub struct MemoryOp {
    pub space: MemorySpace,
    pub at: Address,
    /// The size of one element, in bytes.
    pub element: u32,
    /// The size of all elements, in bytes.
    pub bytes: u32,
    pub order: MemoryOrder,
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
    /// Adds 1 to the old value, or stores 0 if the old value is at least the operand.
    Increment,
    /// Subtracts 1 from the old value, or stores the operand if the old value is 0 or greater than the operand.
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

/// An operation that lanes of a warp execute together. `members` is the row that contains the mask of these lanes.
/// `in_range`, `agree` and the `flag` of `Elect` are rows of flags for a second result.
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
    /// Chooses one of the members.
    Elect {
        to: Option<u32>,
        flag: u32,
        members: u32,
    },
}

impl WarpOp {
    /// Returns the row that contains the mask of the lanes; `None` if the lanes are those that are active.
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

/// A call of a function that the device provides.
#[derive(Clone, Copy, Debug)]
pub enum CallOp {
    /// `vprintf`: the addresses of the format and of the arguments, and the result.
    Print { format: Slot, arguments: Slot, to: Option<Slot> },
    /// `__assertfail`: the addresses of the message and the file, the line, and the address of the function's name.
    Assert { message: Slot, file: Slot, line: Slot, function: Slot },
}

/// A value that is in a warp's registers when a block starts.
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
    /// The PTX line of each instruction.
    pub lines: Vec<u32>,
    /// The source location of each instruction, if it is known.
    pub locations: Vec<Option<Location>>,
    pub lane_ops: Vec<LaneOp>,
    pub memory_ops: Vec<MemoryOp>,
    pub warp_ops: Vec<WarpOp>,
    pub barrier_ops: Vec<BarrierOp>,
    pub mbarrier_ops: Vec<MbarrierOp>,
    pub copy_ops: Vec<CopyOp>,
    pub matrix_ops: Vec<MatrixOp>,
    pub call_ops: Vec<CallOp>,
    /// The tables that branches use. They contain positions in `code`.
    pub tables: Vec<Vec<u32>>,
    pub flag_rows: u32,
    pub narrow_rows: u32,
    pub wide_rows: u32,
    pub narrow_constants: Vec<(u32, u32)>,
    pub wide_constants: Vec<(u32, u64)>,
    pub specials: Vec<(u32, Special)>,
    pub params: Vec<Param>,
    pub param_bytes: u64,
    /// The size of the static shared memory, in bytes. Dynamic shared memory follows it.
    pub static_shared: u64,
    pub local_bytes: u64,
    pub largest_block: Option<[u32; 3]>,
    pub required_block: Option<[u32; 3]>,
}
