//! Defines asynchronous copies to shared memory, and operations on small matrices that a warp holds in its registers.

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
    /// No bytes if the predicate holds, otherwise all.
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
    /// Waits until only this number of groups, the newest ones, may still be pending.
    WaitForGroups(u32),
    WaitForAll,
}

/// The type of a matrix's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    F16,
    Bf16,
    Tf32,
    F32,
    S8,
    U8,
    S32,
}

/// The place of a matrix in the product `first` · `second` + `sum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    First,
    Second,
    Sum,
}

/// A matrix that the lanes of a warp hold together in their registers.
#[derive(Clone, Copy, Debug)]
pub struct Fragment {
    pub role: Role,
    pub element: Element,
    pub rows: usize,
    pub columns: usize,
    /// The register rows. Only the first `count` of them are used.
    pub registers: [u32; 8],
    pub count: usize,
}

/// A matrix in memory. All lanes have the same address and stride.
#[derive(Clone, Copy, Debug)]
pub struct StoredMatrix {
    pub space: MemorySpace,
    pub at: Address,
    /// The number of elements between the beginnings of two lines (rows or columns). If it is missing, the lines
    /// adjoin.
    pub stride: Option<Slot>,
    /// Whether the lines are columns.
    pub by_columns: bool,
}

/// `mma` and `wmma.mma`: `to = first · second + sum`.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    pub first: Fragment,
    pub second: Fragment,
    pub sum: Fragment,
    pub to: Fragment,
    /// Whether sums of integers are limited to the range of their type. Otherwise, they wrap around.
    pub saturate: bool,
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
    /// `wmma.load`
    LoadFragment {
        from: StoredMatrix,
        to: Fragment,
    },
    /// `wmma.store`
    StoreFragment {
        from: Fragment,
        to: StoredMatrix,
    },
    Product(Product),
}
