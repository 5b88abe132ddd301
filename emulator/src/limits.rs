//! Every bound that the emulator puts on what it is given.

/// Longest PTX text that is read, in bytes.
pub const PTX_BYTES: usize = 64 << 20;
/// Most instructions of a kernel, with everything that it calls put in place.
pub const INSTRUCTIONS: usize = 1 << 20;
/// Most registers, constants and special values of a kernel.
pub const REGISTERS: usize = 1 << 16;
/// How deep blocks, vectors and initialisers may be nested.
pub const NESTING: usize = 64;
/// How deep functions may call each other.
pub const CALL_DEPTH: usize = 32;
/// Most bytes of one variable, and of all parameters of a kernel together.
pub const VARIABLE_BYTES: u64 = 1 << 32;
pub const PARAMETER_BYTES: u64 = 32_764;
/// Threads of a block, and blocks of a grid along each axis.
pub const THREADS_OF_A_BLOCK: u32 = 1024;
pub const BLOCK: [u32; 3] = [1024, 1024, 64];
pub const GRID: [u32; 3] = [0x7fff_ffff, 0xffff, 0xffff];
/// Shared memory of a block: what it may declare, and what it may have when it asks at launch.
pub const STATIC_SHARED_BYTES: u64 = 48 << 10;
pub const SHARED_BYTES: u64 = 163 << 10;
/// Local memory of a thread.
pub const LOCAL_BYTES: u64 = 512 << 10;
/// Registers, local and shared memory of the blocks that run at once, in bytes of the host.
pub const STATE_BYTES: u64 = 1 << 30;
/// Host threads that run blocks.
pub const HOST_THREADS: usize = 64;
/// Barriers that a block has.
pub const BARRIERS: usize = 16;
/// Bytes that kernels may print in one launch; what exceeds them is dropped, as on a card whose buffer is full.
pub const PRINTED_BYTES: usize = 1 << 20;
/// Warp instructions that a warp runs before the next one gets its turn.
pub const TURN: u32 = 4096;
/// Backward branches that a part of a warp may take while another part of it waits.
pub const BRANCHES_BEFORE_YIELD: u32 = 512;
