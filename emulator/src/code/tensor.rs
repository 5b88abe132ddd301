//! Asynchronous copies to shared memory, and operations on small matrices that a warp holds in its registers.

use super::{Guard, MemorySpace, Slot};

/// An address in a register, narrow or wide, to which an offset is added.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub base: Slot,
    pub offset: i64,
}

/// How many bytes a copy reads. The rest of the target is filled with zeros.
#[derive(Clone, Copy, Debug)]
pub enum SourceBytes {
    All,
    /// The number is in a register.
    Some(Slot),
    /// None if the predicate holds, otherwise all.
    Unless(Guard),
}

/// `cp.async` and the instructions that wait for it.
#[derive(Clone, Copy, Debug)]
pub enum CopyOp {
    Start {
        to: Address,
        from: Address,
        bytes: u32,
        source: SourceBytes,
    },
    /// Closes the group of copies that were started since the last commit.
    Commit,
    /// Waits until at most this number of the newest groups are pending.
    WaitForGroups(u32),
    WaitForAll,
}

/// The type of the elements of two matrices that are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    F16,
    Bf16,
    Tf32,
    /// Integers of 8 bits; each matrix is signed or not.
    Bytes {
        signed: [bool; 2],
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulator {
    F16,
    F32,
    S32 { saturate: bool },
}

/// `mma`: a matrix of 16 × depth times a matrix of depth × 8, plus a matrix of 16 × 8. The arrays hold rows of
/// registers. A small product uses only the first ones of an array.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    pub factor: Factor,
    pub accumulator: Accumulator,
    pub depth: u32,
    pub to: [u32; 4],
    pub a: [u32; 4],
    pub b: [u32; 2],
    pub c: [u32; 4],
}

/// An operation that all lanes of a warp execute together.
#[derive(Clone, Copy, Debug)]
pub enum MatrixOp {
    /// `ldmatrix`: loads 1, 2 or 4 matrices of 8 × 8 elements of 16 bits.
    Load {
        space: MemorySpace,
        from: Address,
        count: u32,
        to: [u32; 4],
        transposed: bool,
    },
    Product(Product),
}
