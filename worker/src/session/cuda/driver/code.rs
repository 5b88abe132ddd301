//! The driver's error codes, with their names, their causes, and whether they end the context.

use std::fmt;

/// A `CUresult` as a number, because a newer driver may have codes that our list lacks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Code(pub(crate) u32);

/// The cause of an error, if the code alone shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The kernel performed an operation that is not allowed.
    Kernel,
    Time,
    /// The request was refused, such as a launch of an impossible shape.
    Request,
    /// The module could not be loaded, or has no such symbol.
    Image,
    /// The device or its driver lacks a feature.
    Lacking,
    Memory,
    /// The machine or the worker failed.
    Host,
}

struct Row {
    code: u32,
    name: &'static str,
    cause: Cause,
    /// True if the context cannot be used any more.
    sticky: bool,
}

const fn row(code: u32, name: &'static str, cause: Cause, sticky: bool) -> Row {
    Row { code, name, cause, sticky }
}

use Cause::{Host, Image, Kernel, Lacking, Memory, Request, Time};

const ROWS: [Row; 48] = [
    row(1, "CUDA_ERROR_INVALID_VALUE", Request, false),
    row(2, "CUDA_ERROR_OUT_OF_MEMORY", Memory, false),
    row(3, "CUDA_ERROR_NOT_INITIALIZED", Host, true),
    row(4, "CUDA_ERROR_DEINITIALIZED", Host, true),
    row(34, "CUDA_ERROR_STUB_LIBRARY", Host, true),
    row(46, "CUDA_ERROR_DEVICE_UNAVAILABLE", Host, true),
    row(100, "CUDA_ERROR_NO_DEVICE", Host, true),
    row(101, "CUDA_ERROR_INVALID_DEVICE", Host, true),
    row(200, "CUDA_ERROR_INVALID_IMAGE", Image, false),
    row(201, "CUDA_ERROR_INVALID_CONTEXT", Host, true),
    row(209, "CUDA_ERROR_NO_BINARY_FOR_GPU", Image, false),
    row(214, "CUDA_ERROR_ECC_UNCORRECTABLE", Host, true),
    row(215, "CUDA_ERROR_UNSUPPORTED_LIMIT", Lacking, false),
    row(218, "CUDA_ERROR_INVALID_PTX", Image, false),
    row(220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", Host, true),
    row(221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", Lacking, false),
    row(222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", Lacking, false),
    row(223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", Lacking, false),
    row(226, "CUDA_ERROR_CONTAINED", Host, true),
    row(300, "CUDA_ERROR_INVALID_SOURCE", Image, false),
    row(302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", Image, false),
    row(304, "CUDA_ERROR_OPERATING_SYSTEM", Host, false),
    row(400, "CUDA_ERROR_INVALID_HANDLE", Host, false),
    row(401, "CUDA_ERROR_ILLEGAL_STATE", Host, false),
    row(500, "CUDA_ERROR_NOT_FOUND", Image, false),
    row(600, "CUDA_ERROR_NOT_READY", Host, false),
    row(700, "CUDA_ERROR_ILLEGAL_ADDRESS", Kernel, true),
    row(701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", Request, false),
    row(702, "CUDA_ERROR_LAUNCH_TIMEOUT", Time, true),
    row(703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", Request, false),
    row(709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", Host, true),
    row(710, "CUDA_ERROR_ASSERT", Kernel, true),
    row(714, "CUDA_ERROR_HARDWARE_STACK_ERROR", Kernel, true),
    row(715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", Kernel, true),
    row(716, "CUDA_ERROR_MISALIGNED_ADDRESS", Kernel, true),
    row(717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", Kernel, true),
    row(718, "CUDA_ERROR_INVALID_PC", Kernel, true),
    row(719, "CUDA_ERROR_LAUNCH_FAILED", Kernel, true),
    row(720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", Request, false),
    row(721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", Kernel, true),
    row(800, "CUDA_ERROR_NOT_PERMITTED", Host, false),
    row(801, "CUDA_ERROR_NOT_SUPPORTED", Lacking, false),
    row(802, "CUDA_ERROR_SYSTEM_NOT_READY", Host, true),
    row(803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", Host, true),
    row(805, "CUDA_ERROR_MPS_CONNECTION_FAILED", Host, true),
    row(807, "CUDA_ERROR_MPS_SERVER_NOT_READY", Host, true),
    row(908, "CUDA_ERROR_TIMEOUT", Host, false),
    row(999, "CUDA_ERROR_UNKNOWN", Host, true),
];

impl Code {
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const INVALID_DEVICE: Self = Self(101);
    pub(crate) const INVALID_HANDLE: Self = Self(400);
    pub(crate) const NOT_FOUND: Self = Self(500);
    pub(crate) const NOT_READY: Self = Self(600);
    pub(crate) const ILLEGAL_ADDRESS: Self = Self(700);
    pub(crate) const LAUNCH_TIMEOUT: Self = Self(702);
    pub(crate) const CONTEXT_IS_DESTROYED: Self = Self(709);
    pub(crate) const NOT_SUPPORTED: Self = Self(801);

    fn known(self) -> Option<&'static Row> {
        ROWS.iter().find(|row| row.code == self.0)
    }

    /// The driver's name for this code; `None` for a code that is newer than this list.
    pub(crate) fn name(self) -> Option<&'static str> {
        self.known().map(|row| row.name)
    }

    pub(crate) fn cause(self) -> Cause {
        self.known().map_or(Host, |row| row.cause)
    }

    /// Returns true if the context cannot be used after this error. Also true for unknown codes, because a new process
    /// costs little.
    pub(crate) fn ends_the_context(self) -> bool {
        self.known().is_none_or(|row| row.sticky)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "error {} of the driver", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_in_order_and_faults_and_unknown_codes_end_the_context() {
        assert!(ROWS.windows(2).all(|pair| pair[0].code < pair[1].code));
        let unknown = Code(4242);
        assert_eq!((unknown.cause(), unknown.ends_the_context()), (Host, true));
        assert_eq!(unknown.to_string(), "error 4242 of the driver");
        assert_eq!(Code::ILLEGAL_ADDRESS.to_string(), "CUDA_ERROR_ILLEGAL_ADDRESS (700)");
        // Faults of a kernel end its context; refused requests do not.
        for row in &ROWS {
            if matches!(row.cause, Kernel | Time) {
                assert!(row.sticky, "{}", row.name);
            }
            if matches!(row.cause, Request | Image | Lacking | Memory) {
                assert!(!row.sticky, "{}", row.name);
            }
        }
    }
}
