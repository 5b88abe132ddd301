//! Defines the emulator's errors: why a PTX text cannot be loaded, and the faults of the device with their details.

use std::fmt;

/// Why a PTX text was not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("PTX line {line}: {what}")]
    Syntax { line: u32, what: String },
    /// PTX that the emulator does not execute.
    #[error("PTX line {line}: the emulated device does not support {what}")]
    Unsupported { line: u32, what: String },
    #[error("PTX line {line}: {what}")]
    Limit { line: u32, what: String },
    /// The variables of the module do not fit into the device's memory, or the call failed with a fault that was
    /// injected, or with an earlier sticky fault.
    #[error("{0}")]
    Device(Box<Fault>),
}

impl LoadError {
    pub(crate) fn syntax(line: u32, what: String) -> Self {
        Self::Syntax { line, what }
    }

    pub(crate) fn unsupported(line: u32, what: String) -> Self {
        Self::Unsupported { line, what }
    }

    pub(crate) fn limit(line: u32, what: String) -> Self {
        Self::Limit { line, what }
    }

    /// Returns the CUDA error code that a driver would return.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            // CUDA_ERROR_INVALID_PTX
            Self::Syntax { .. } | Self::Limit { .. } => 218,
            // CUDA_ERROR_NOT_SUPPORTED
            Self::Unsupported { .. } => 801,
            Self::Device(fault) => fault.code(),
        }
    }

    /// The line of the PTX text, counted from 1.
    #[must_use]
    pub fn line(&self) -> Option<u32> {
        match self {
            Self::Syntax { line, .. } | Self::Unsupported { line, .. } | Self::Limit { line, .. } => {
                Some(*line)
            }
            Self::Device(_) => None,
        }
    }
}

/// The kind of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    Read,
    Write,
    Atomic,
}

impl AccessKind {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Atomic => "atomic operation",
        }
    }
}

/// The state space of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Global,
    Shared,
    Local,
    /// The kernel's parameters.
    Param,
}

/// The live buffer that is nearest to an access, or the freed buffer that contained its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// The buffer's address. `bytes` is its size.
    pub start: u64,
    pub bytes: u64,
    /// The distance in bytes between the beginning of the access and the buffer. If the access begins before the
    /// buffer, the distance is negative and counted from the buffer's start. If it begins after the buffer, the
    /// distance is counted from the buffer's end. `None` if the access begins inside the buffer.
    pub distance: Option<i64>,
}

/// A memory access that the device refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub kind: AccessKind,
    pub memory: Memory,
    pub address: u64,
    /// The size of one thread's access, in bytes.
    pub bytes: u64,
    /// The nearest buffer, for illegal and misaligned accesses to global memory, uses after free, and refused writes by
    /// the host. `None` for other accesses, or if there is no buffer.
    pub nearest: Option<Nearest>,
}

/// The earlier of two accesses that race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherAccess {
    pub kind: AccessKind,
    pub site: FaultSite,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An access that is not completely inside one live buffer, or not inside the shared, local or parameter memory.
    IllegalAddress(Access),
    /// An access that begins in a freed buffer.
    UseAfterFree(Access),
    Misaligned(Access),
    /// A write or atomic operation on constant memory, on a parameter, or on memory of the process that is mapped
    /// read-only.
    ReadOnly(Access),
    /// A read or atomic operation that needs a value of which no byte was ever written.
    Uninitialised(Access),
    /// A read or atomic operation on bytes of shared memory that an asynchronous copy may not have written yet, because
    /// the thread that started the copy has not waited for it.
    Pending(Access),
    /// Two accesses to the same bytes of shared memory, at least one of them a write, that no barrier or fence orders.
    Race {
        access: Access,
        other: Box<OtherAccess>,
    },
    /// Threads of one warp wait for a barrier at different instructions, although all must execute the same one.
    BarrierDivergence,
    /// Lanes wait at an instruction that needs other lanes of the warp, but those lanes will never reach it.
    WarpDivergence,
    /// All remaining threads wait at barriers that no other thread will reach.
    Deadlock,
    /// `trap` or `brkpt` was executed, or a branch through a table had an index outside the table.
    Trap,
    Assert(String),
    /// The launch exceeds a limit of the device.
    LaunchLimits(String),
    /// The launch exceeded its limit of warp instructions or of time.
    Timeout(String),
    OutOfMemory {
        wanted: u64,
        free: u64,
    },
    /// A function of the device, or an instruction, got an invalid value.
    InvalidValue(String),
    /// An unsupported operation that could be detected only during execution.
    Unsupported(String),
    /// A fault that was injected by `fail_call`.
    Injected {
        call: &'static str,
        code: u32,
    },
}

/// The thread and the instruction that caused a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultSite {
    pub function: String,
    pub block: [u32; 3],
    pub thread: [u32; 3],
    pub warp: u32,
    pub lane: u32,
    /// The line of the PTX text, counted from 1.
    pub line: u32,
    pub source: Option<SourceLine>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    pub file: String,
    pub line: u32,
}

impl SourceLine {
    /// Returns the file's name without its folder, because the folder is deleted after a build.
    #[must_use]
    pub fn name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or_default()
    }
}

/// A fault of the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Fault {
    pub kind: FaultKind,
    /// The thread and instruction that caused the fault; `None` if no thread did.
    pub site: Option<Box<FaultSite>>,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind) -> Self {
        Self { kind, site: None }
    }

    pub(crate) fn invalid(what: String) -> Self {
        Self::new(FaultKind::InvalidValue(what))
    }

    /// Returns the CUDA error code with which the fault is reported. A real driver would not detect all of these
    /// faults.
    #[must_use]
    pub fn code(&self) -> u32 {
        match &self.kind {
            FaultKind::InvalidValue(_) => 1,
            FaultKind::OutOfMemory { .. } => 2,
            FaultKind::IllegalAddress(_) | FaultKind::UseAfterFree(_) | FaultKind::ReadOnly(_) => 700,
            FaultKind::LaunchLimits(_) => 701,
            FaultKind::Timeout(_) | FaultKind::Deadlock | FaultKind::WarpDivergence => 702,
            FaultKind::Assert(_) => 710,
            FaultKind::Misaligned(_) => 716,
            FaultKind::Trap
            | FaultKind::BarrierDivergence
            | FaultKind::Uninitialised(_)
            | FaultKind::Race { .. }
            | FaultKind::Pending(_) => 719,
            FaultKind::Unsupported(_) => 801,
            FaultKind::Injected { code, .. } => *code,
        }
    }

    /// Whether later calls of the device fail with the same fault until `forget_fault` is called. Functions that have
    /// no variant of `Call`, such as `unload`, still work.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        !matches!(self.code(), 1 | 2 | 701 | 801)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.name();
        let memory = match self.memory {
            Memory::Global => "global",
            Memory::Shared => "shared",
            Memory::Local => "local",
            Memory::Param => "parameter",
        };
        write!(f, "{kind} of {} at {:#x} in {memory} memory", count(self.bytes, "byte"), self.address)?;
        let Some(nearest) = self.nearest else { return Ok(()) };
        let (start, bytes) = (nearest.start, nearest.bytes);
        match nearest.distance {
            None => {
                let past = self.address.saturating_add(self.bytes).saturating_sub(start + bytes);
                let reach = if past == 0 {
                    String::new()
                } else {
                    format!("reaching {} past the end of", count(past, "byte"))
                };
                let relation = if past == 0 { "in" } else { &reach };
                write!(f, ", {relation} a buffer of {} at {start:#x}", count(bytes, "byte"))
            }
            Some(0) => {
                write!(f, ", directly past the end of a buffer of {} at {start:#x}", count(bytes, "byte"))
            }
            Some(distance) => {
                let side = if distance < 0 { "before" } else { "past the end of" };
                let gap = count(distance.unsigned_abs(), "byte");
                write!(f, ", {gap} {side} a buffer of {} at {start:#x}", count(bytes, "byte"))
            }
        }
    }
}

fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IllegalAddress(access) => write!(f, "illegal {access}"),
            Self::UseAfterFree(access) => write!(f, "use after free: {access}"),
            Self::Misaligned(access) => write!(f, "misaligned {access}"),
            Self::ReadOnly(access) => write!(f, "write to read-only memory: {access}"),
            Self::Uninitialised(access) => write!(f, "read of bytes that were never written: {access}"),
            Self::Pending(access) => {
                write!(
                    f,
                    "read of bytes that `cp.async` has not yet copied, because the thread that started the copy has \
                     not waited for it: {access}"
                )
            }
            Self::Race { access, other: earlier } => {
                let OtherAccess { kind, site } = &**earlier;
                let [x, y, z] = site.thread;
                write!(
                    f,
                    "race: {access}, and an earlier {} by thread ({x}, {y}, {z}) at PTX line {}",
                    kind.name(),
                    site.line
                )?;
                if let Some(source) = &site.source {
                    write!(f, ", {}:{}", source.name(), source.line)?;
                }
                f.write_str("; no barrier or fence orders them")
            }
            Self::BarrierDivergence => f.write_str(
                "threads of one warp wait for a barrier at different instructions, although all of them must execute \
                 the same one",
            ),
            Self::WarpDivergence => {
                f.write_str("lanes wait at an instruction that needs other lanes of the warp, which never reach it")
            }
            Self::Deadlock => {
                f.write_str("deadlock: all remaining threads wait at barriers that no other thread reaches")
            }
            Self::Trap => {
                f.write_str("the kernel executed `trap` or `brkpt`, or branched beyond the end of a branch table")
            }
            Self::Assert(what) => write!(f, "assertion failed: {what}"),
            Self::LaunchLimits(what) => write!(f, "the launch exceeds a limit of the device: {what}"),
            Self::Timeout(what) => write!(f, "the launch exceeded its limit of {what}"),
            Self::OutOfMemory { wanted, free } => {
                write!(f, "out of device memory: {wanted} bytes requested, {free} free")
            }
            Self::InvalidValue(what) => write!(f, "invalid value: {what}"),
            Self::Unsupported(what) => write!(f, "the emulated device does not support {what}"),
            Self::Injected { call, code } => write!(f, "a test made {call} fail with error {code}"),
        }
    }
}

impl fmt::Display for FaultSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.thread;
        let [bx, by, bz] = self.block;
        write!(
            f,
            "`{}`, block ({bx}, {by}, {bz}), thread ({x}, {y}, {z}), lane {}, PTX line {}",
            self.function, self.lane, self.line
        )?;
        match &self.source {
            Some(source) => write!(f, ", {}:{}", source.name(), source.line),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        match &self.site {
            Some(site) => write!(f, " ({site})"),
            None => Ok(()),
        }
    }
}
