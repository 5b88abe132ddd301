//! How kernels without host code are launched: `[[job.candidate.launch]]` and `[[job.candidate.workspace]]`.
//!
//! A plan gives grids, blocks, sizes and arguments as short texts over the shapes and parameters of a call
//! (`ceil_div(out.numel, 256)`). They are read once, when the plan is, and evaluated for every entry: `resolve` turns
//! steps and an entry's arguments into figures, with checked arithmetic and within the limits of CUDA.

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
pub use resolve::{ResolvedLaunch, ResolvedStep, Value, resolve};
pub use scalar::{Scalar, ScalarType};
pub use token::is_name;

/// Launches of one call.
pub const MAX_STEPS: usize = 64;
/// Buffers that a candidate asks for beside its outputs.
pub const MAX_WORKSPACES: usize = 64;
/// Arguments of one launch. CUDA takes 4 KiB of them, 512 pointers.
pub const MAX_ARGS: usize = 512;
/// Characters of one expression.
pub const MAX_TEXT: usize = 1024;
/// Parentheses, calls and signs within each other.
pub const MAX_DEPTH: usize = 32;
/// Blocks of a grid in each direction.
pub const MAX_GRID: [u32; 3] = [0x7fff_ffff, 65_535, 65_535];
/// Threads of a block in each direction.
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Threads of a block.
pub const MAX_BLOCK_THREADS: u32 = 1024;
/// Dynamic shared memory of a block, in bytes: what the largest cards have.
pub const MAX_SHARED: u32 = 227 * 1024;

/// How a candidate is called: its launches one after another, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// None where the candidate has host code, which launches for itself.
    pub steps: Vec<LaunchStep>,
    pub workspaces: Vec<Workspace>,
}

/// One launch of one kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchStep {
    /// The entry point, as the artifact names it.
    pub symbol: String,
    /// Blocks in x, y and z.
    pub grid: [Expression; 3],
    /// Threads of a block in x, y and z.
    pub block: [Expression; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_mem: Expression,
    /// In the order of the kernel's parameters.
    pub args: Vec<LaunchArg>,
}

/// A buffer of the device that a call's launches share. What it holds before a call is anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workspace {
    /// By which arguments mean its address.
    pub name: String,
    pub bytes: Expression,
}
