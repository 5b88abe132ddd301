//! Describes how kernels without host code are launched: the plan's `[[job.candidate.launch]]` and
//! `[[job.candidate.workspace]]`.
//!
//! A plan gives grids, blocks, sizes and arguments as short expressions over the shapes and parameters of a call, such
//! as `ceil_div(out.numel, 256)`. The expressions are parsed together with the plan, and evaluated for every entry.
//! `resolve` computes the numbers for an entry's arguments, with checked arithmetic, and refuses numbers that exceed
//! the limits of CUDA.

mod argument;
mod error;
mod evaluate;
mod expression;
mod names;
mod node;
mod parse;
mod resolve;
mod scalar;
#[cfg(test)]
mod tests;
mod token;

use serde::{Deserialize, Serialize};

pub use argument::LaunchArg;
pub use error::{LaunchError, Problem, SyntaxError};
pub use expression::Expression;
pub use names::Pointer;
pub use resolve::{Address, ResolvedLaunch, ResolvedStep, Value, resolve};
pub use scalar::{Scalar, ScalarType};
pub use token::is_name;

/// The largest number of launches of one call.
pub const MAX_STEPS: usize = 64;
/// The largest number of buffers that a candidate can request in addition to its outputs.
pub const MAX_WORKSPACES: usize = 64;
/// The largest number of arguments of one launch. Every version of CUDA accepts 4 KiB, which is 512 pointers.
pub const MAX_ARGS: usize = 512;
/// The largest size of an expression, in bytes.
pub const MAX_TEXT: usize = 1024;
/// The largest depth of an expression's syntax tree. Parentheses, calls, signs, and chains of operators make the tree
/// deeper.
pub const MAX_DEPTH: usize = 32;
/// The largest number of blocks of a grid in x, y and z.
pub const MAX_GRID: [u32; 3] = [0x7fff_ffff, 65_535, 65_535];
/// The largest number of threads of a block in x, y and z.
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// The largest number of threads of a block.
pub const MAX_BLOCK_THREADS: u32 = 1024;
/// The largest dynamic shared memory of a block, in bytes. No card offers more.
pub const MAX_SHARED: u32 = 227 * 1024;

/// The launches of a candidate's call, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The launches. Empty if the candidate has host code, which launches its own kernels.
    pub steps: Vec<LaunchStep>,
    pub workspaces: Vec<Workspace>,
}

/// One launch of one kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchStep {
    /// The name of the entry point in the artifact.
    pub symbol: String,
    /// The number of blocks in x, y and z.
    pub grid: [Expression; 3],
    /// The number of threads of a block in x, y and z.
    pub block: [Expression; 3],
    /// The dynamic shared memory of a block, in bytes.
    pub shared_mem: Expression,
    /// The arguments, in the order of the kernel's parameters.
    pub args: Vec<LaunchArg>,
}

/// A device buffer that a call's launches share. Its contents before a call are undefined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workspace {
    /// The name by which arguments refer to the buffer's address.
    pub name: String,
    pub bytes: Expression,
}
