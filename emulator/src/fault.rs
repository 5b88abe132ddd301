//! What can go wrong: a text that cannot be loaded, and a fault of a device with everything that is known about it.

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
    /// The variables of the module do not fit into the device's memory, or the device has failed before.
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

    /// The CUDA error that a driver would return.
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

    /// The line of the PTX text, from 1.
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

/// What an access was about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    Read,
    Write,
    Atomic,
}

/// The memory that an access went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Global,
    Shared,
    Local,
    /// Parameters of the kernel.
    Param,
}

/// Where an address lies relative to the buffer that is nearest to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// Address and size of the buffer.
    pub start: u64,
    pub bytes: u64,
    /// Bytes from the buffer's first byte (negative) or from the one behind its last to the access; `None`: it begins inside.
    pub distance: Option<i64>,
}

/// An access that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub kind: AccessKind,
    pub memory: Memory,
    pub address: u64,
    /// Bytes of the whole access of one thread.
    pub bytes: u64,
    /// Only of global memory.
    pub nearest: Option<Nearest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Outside of every live buffer, or of the shared, local or parameter memory that there is.
    IllegalAddress(Access),
    /// In a buffer that was freed.
    UseAfterFree(Access),
    Misaligned(Access),
    /// A store to constant memory or to a parameter.
    ReadOnly(Access),
    /// A read of bytes that were never written.
    Uninitialised(Access),
    /// Threads of one warp wait at different barriers that they must pass together.
    BarrierDivergence,
    /// Lanes wait for others of their warp, which an instruction names, and which will not come.
    WarpDivergence,
    /// Every thread that is left waits at a barrier that no other thread will reach.
    Deadlock,
    Trap,
    Assert(String),
    /// The launch asks for more than the device has.
    LaunchLimits(String),
    /// More warp instructions or more time than the launch may take.
    Timeout(String),
    OutOfMemory {
        wanted: u64,
        free: u64,
    },
    /// A call of the device's functions with a wrong argument.
    InvalidValue(String),
    /// Something that was found to be unsupported only when it was executed.
    Unsupported(String),
    /// A fault that the caller ordered.
    Injected {
        call: &'static str,
        code: u32,
    },
}

/// Where in a launch it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub function: String,
    pub block: [u32; 3],
    pub thread: [u32; 3],
    pub warp: u32,
    pub lane: u32,
    /// Line of the PTX text, from 1.
    pub line: u32,
    pub source: Option<SourceLine>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    pub file: String,
    pub line: u32,
}

/// A fault of the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Fault {
    pub kind: FaultKind,
    /// `None` where no thread did it.
    pub place: Option<Box<Place>>,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind) -> Self {
        Self { kind, place: None }
    }

    pub(crate) fn invalid(what: String) -> Self {
        Self::new(FaultKind::InvalidValue(what))
    }

    /// The CUDA error that a driver would return.
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
            FaultKind::Trap | FaultKind::BarrierDivergence | FaultKind::Uninitialised(_) => 719,
            FaultKind::Unsupported(_) => 801,
            FaultKind::Injected { code, .. } => *code,
        }
    }

    /// Whether everything that is asked of the device afterwards fails in the same way.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        !matches!(self.code(), 1 | 2 | 701 | 801)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
            AccessKind::Atomic => "atomic operation",
        };
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
                let place = if past == 0 { "in" } else { &reach };
                write!(f, ", {place} a buffer of {} at {start:#x}", count(bytes, "byte"))
            }
            Some(0) => write!(f, ", right behind a buffer of {} at {start:#x}", count(bytes, "byte")),
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
            Self::ReadOnly(access) => write!(f, "store to read-only memory: {access}"),
            Self::Uninitialised(access) => write!(f, "read of bytes that were never written: {access}"),
            Self::BarrierDivergence => {
                f.write_str("threads of one warp wait at different barriers that a warp must pass together")
            }
            Self::WarpDivergence => {
                f.write_str("lanes wait for other lanes that an instruction names, and that will not come")
            }
            Self::Deadlock => {
                f.write_str("deadlock: every thread left waits at a barrier that no other reaches")
            }
            Self::Trap => f.write_str("trap"),
            Self::Assert(what) => write!(f, "assertion failed: {what}"),
            Self::LaunchLimits(what) => write!(f, "the launch asks for more than there is: {what}"),
            Self::Timeout(what) => write!(f, "the launch did not end within {what}"),
            Self::OutOfMemory { wanted, free } => {
                write!(f, "out of device memory: {wanted} bytes were asked for, {free} are free")
            }
            Self::InvalidValue(what) => write!(f, "invalid value: {what}"),
            Self::Unsupported(what) => write!(f, "the emulated device does not support {what}"),
            Self::Injected { call, code } => write!(f, "{call} was told to fail with error {code}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.thread;
        let [bx, by, bz] = self.block;
        write!(
            f,
            "`{}`, block ({bx}, {by}, {bz}), thread ({x}, {y}, {z}), lane {}, PTX line {}",
            self.function, self.lane, self.line
        )?;
        match &self.source {
            Some(source) => write!(f, ", {}:{}", source.file, source.line),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        match &self.place {
            Some(place) => write!(f, " ({place})"),
            None => Ok(()),
        }
    }
}
