//! Checks the resource limits of this process, which workers and compilers inherit, and raises those that are too low.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The smallest value of a resource limit with which a run works. Below this value, runs fail with errors that do not
/// name the limit.
#[derive(Clone, Copy, Debug)]
struct Needed {
    resource: Resource,
    what: &'static str,
    least: u64,
    /// The option of the shell's `ulimit` that sets the limit.
    option: char,
    /// The unit of the argument of that option, in bytes or files.
    unit: u64,
}

/// The limit on the stack. With 128 KiB, compilers fail as if the source were wrong.
const STACK: Needed = Needed {
    resource: Resource::Stack,
    what: "the stack (in bytes)",
    least: 1 << 20,
    option: 's',
    unit: 1024,
};

/// The smallest hard limit on the stack with which this program can still report the problem. A debug build overflows
/// its stack with 300 KiB.
const STACK_TO_REPORT: Needed = Needed { least: 512 << 10, ..STACK };

/// The limits that are checked and raised.
const NEEDED: [Needed; 5] = [
    // At this limit, Linux ends a process as if somebody had killed it.
    Needed {
        resource: Resource::Cpu,
        what: "the CPU time of a process (in seconds)",
        least: 3600,
        option: 't',
        unit: 1,
    },
    // With 10 MiB, a supervisor may abort. With 49 MiB, it was able to report that its compilers and runners lacked
    // memory.
    Needed {
        resource: Resource::Data,
        what: "private memory (in bytes)",
        least: 64 << 20,
        option: 'd',
        unit: 1024,
    },
    // A run of one small job works with 40 open files. Each entry of a batch needs a few more.
    Needed { resource: Resource::Nofile, what: "open files", least: 64, option: 'n', unit: 1 },
    // A library may have 64 MiB by default. Memory files count as files, so they are limited too.
    Needed {
        resource: Resource::Fsize,
        what: "the size of a file (in bytes)",
        least: 1 << 30,
        option: 'f',
        // Some shells count in units of 512 bytes, others in units of 1024 bytes. With 512, the advice works in all of
        // them.
        unit: 512,
    },
    STACK,
];

/// The error that a resource limit is too low for any run, and that this process may not raise it.
#[derive(Debug, thiserror::Error)]
#[error(
    "the hard limit on {what} is {limit}, but at least {least} is needed (as root, raise it with `ulimit -H{option} {value}` in the shell that starts the run, or raise it in the service manager)"
)]
pub struct LimitTooLow {
    what: &'static str,
    limit: u64,
    least: u64,
    option: char,
    value: u64,
}

/// Raises the limits that are too low. Workers raise their limit on open files even further.
pub fn raise() -> Result<(), LimitTooLow> {
    NEEDED.iter().try_for_each(Needed::raise)
}

/// Raises the limit on the stack of this process. The first thread may use the new limit at once. Fails only if the
/// stack would be too small for any command. Call this before anything that needs much stack.
pub fn raise_stack() -> Result<(), LimitTooLow> {
    // If the limit is too low for runs, `raise` reports this later.
    let _ = STACK.raise();
    STACK_TO_REPORT.raise()
}

impl Needed {
    fn raise(&self) -> Result<(), LimitTooLow> {
        let limit = getrlimit(self.resource);
        if limit.current.is_none_or(|current| self.least <= current) {
            return Ok(());
        }
        let most = limit.maximum.unwrap_or(u64::MAX);
        let raised = Rlimit { current: Some(self.least.min(most)), maximum: limit.maximum };
        // A process may always raise its limit up to the hard limit.
        let _ = setrlimit(self.resource, raised);
        if self.least <= most { Ok(()) } else { Err(self.too_low(most)) }
    }

    fn too_low(&self, limit: u64) -> LimitTooLow {
        let Self { what, least, option, unit, .. } = *self;
        LimitTooLow { what, limit, least, option, value: least / unit }
    }
}
