//! Defines the emulator's limits on PTX texts and launches, and on its own memory and threads.

/// The largest PTX text, in bytes.
pub const PTX_BYTES: usize = 16 << 20;
/// The largest number of instructions of a kernel, with all calls inlined.
pub const INSTRUCTIONS: usize = 1 << 20;
/// The largest number of registers, constants and special values of a kernel.
pub const REGISTERS: usize = 1 << 16;
/// The largest number of items that are decoded for all kernels of a module together. Items are statements,
/// declarations, source locations, operands, branch targets and so on. The items of a function are counted again in
/// every place where the function is inlined.
pub const DECODED: usize = 4 << 20;
/// The largest total size of a module's variables in global and constant memory, in bytes. A worker's memory lease does
/// not include them.
pub const MODULE_BYTES: u64 = 64 << 20;
/// The largest nesting depth of the `{ }` blocks of a function, and of initialisers.
pub const NESTING: usize = 64;
/// The largest depth of calls, in which the kernel itself is counted as one.
pub const CALL_DEPTH: usize = 32;
/// The largest size of a variable, in bytes.
pub const VARIABLE_BYTES: u64 = 1 << 32;
/// The largest total size of a kernel's parameters, in bytes.
pub const PARAMETER_BYTES: u64 = 32_764;
/// The largest number of threads of a block.
pub const BLOCK_THREADS: u32 = 1024;
/// The largest number of threads of a block along each axis.
pub const BLOCK: [u32; 3] = [1024, 1024, 64];
/// The largest number of blocks of a grid along each axis.
pub const GRID: [u32; 3] = [0x7fff_ffff, 0xffff, 0xffff];
/// The largest size of the shared memory that a kernel declares, in bytes.
pub const STATIC_SHARED_BYTES: u64 = 48 << 10;
/// The largest shared memory of a block, with the dynamic memory that the launch requests, in bytes.
pub const SHARED_BYTES: u64 = 163 << 10;
/// The largest local memory of a thread, in bytes.
pub const LOCAL_BYTES: u64 = 512 << 10;
/// The largest host memory for the state of the blocks that run at once, in bytes: registers, local and shared memory,
/// pending copies, and the records of the race detector.
pub const STATE_BYTES: u64 = 1 << 30;
/// The largest number of host threads that run blocks.
pub const HOST_THREADS: usize = 64;
/// The number of barriers of a block.
pub const BARRIERS: usize = 16;
/// The largest total output of `printf` in a launch, in bytes. A text that would exceed it is dropped.
pub const PRINTED_BYTES: usize = 1 << 20;
/// The largest number of instructions that a warp executes before the next warp gets its turn.
pub const TURN_INSTRUCTIONS: u32 = 4096;
/// The number of backward branches that a diverged warp may take before its running part yields to another.
pub const BRANCHES_BEFORE_YIELD: u32 = 512;
