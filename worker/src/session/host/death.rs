//! Derives the verdict on a runner's death: a status, and one line of detail.
//!
//! The facts are the result of `waitid`, the supervisor's orders, the runner's last reports, and whether the worker
//! itself can read an input. A status that blames the candidate needs proof.

use opt_shared::message::KillReason;
use opt_shared::outcome::Status;

use super::placed::Placed;
use super::process::Death;
use crate::runner::control::{FaultedMemory, Phase};
use crate::sandbox::handle::End;
use crate::session::Verdict;

/// The exit code of the dynamic linker after an error that it cannot report to a caller, for example if there is no
/// memory for a thread-local variable that is used for the first time.
const LINKER_FAILURE: i32 = 127;

/// The names of inputs and outputs in messages, by index, and whether the worker itself cannot read an input.
pub(crate) struct Names<'a> {
    pub(crate) inputs: &'a dyn Fn(u32) -> String,
    pub(crate) outputs: &'a dyn Fn(u32) -> String,
    pub(crate) is_unreadable: &'a dyn Fn(u32) -> bool,
}

/// Returns the verdict on a runner's death.
pub(crate) fn death(death: &Death, names: &Names<'_>) -> Verdict {
    let verdict = |status, detail: String| Verdict { status, detail };
    let loading = matches!(death.phase, Phase::Starting | Phase::Mapped | Phase::Loading);
    let during = match death.phase {
        Phase::Starting | Phase::Mapped | Phase::Loading => "while it was being loaded",
        Phase::Planning => "in its plan call",
        Phase::Calling => "in a call",
        Phase::Loaded | Phase::Idle => "between calls",
    };
    let by_supervisor =
        |why: &str| verdict(Status::InfraError, format!("killed {during} by the supervisor: {why}"));
    if let Some(reason) = &death.killed {
        return match reason {
            KillReason::RunnerMemory { owed, limit } => verdict(
                Status::HostMemoryLimit,
                format!("killed {during}: it owed {owed}, and its limit is {limit} (limits.memory)"),
            ),
            KillReason::GroupMemory { limit } => verdict(
                Status::HostMemoryLimit,
                format!(
                    "ended {during} by Linux: its control group reached its limit of {limit} (limits.memory)"
                ),
            ),
            KillReason::Timeout { limit } => {
                verdict(Status::Timeout, format!("killed {during}: not done after {limit:?}"))
            }
            // A process fails to stop only if one of its threads hangs in a system call. The candidate made that call,
            // and the runner's end by SIGKILL shows that Linux still works.
            KillReason::WouldNotStop { limit } => verdict(
                Status::Timeout,
                format!(
                    "killed {during}: it was still running {limit:?} after SIGSTOP, because a thread was in a system call that \
                     only SIGKILL interrupts"
                ),
            ),
            KillReason::HostFloor { available, floor } => verdict(
                Status::InfraError,
                format!(
                    "killed {during} to protect the machine: only {available} of memory were available, and the floor is \
                     {floor} (memory.host_floor)"
                ),
            ),
            KillReason::HostCeiling { owed, ceiling } => verdict(
                Status::InfraError,
                format!(
                    "killed {during}: the run owed {owed}, above its ceiling of {ceiling} \
                     (memory.host_ceiling)"
                ),
            ),
            KillReason::DeviceCeiling { owed, ceiling } => verdict(
                Status::DeviceMemoryLimit,
                format!(
                    "killed {during}: the run held {owed} on the device, above its ceiling of {ceiling} \
                     (memory.device_ceiling)"
                ),
            ),
            KillReason::DeviceLost => {
                verdict(Status::InfraError, format!("killed {during}: the device was lost"))
            }
            KillReason::Stopped => verdict(
                Status::InfraError,
                format!("killed {during}: another process had stopped it and did not continue it"),
            ),
            KillReason::Deadline
            | KillReason::Interrupted
            | KillReason::Orphaned
            | KillReason::NotReady
            | KillReason::WorkerFault
            | KillReason::RunStopped
            | KillReason::Requested
            | KillReason::Cancelled => by_supervisor(reason.words().unwrap_or_default()),
        };
    }
    if !death.locked {
        let how = match death.end {
            End::Signalled { .. } => {
                format!("was killed by {}", death.end.signal_name().unwrap_or("a signal"))
            }
            End::Exited { code } => format!("exited with code {code}"),
        };
        return verdict(
            Status::InfraError,
            format!("a runner {how} before it loaded any code of the candidate"),
        );
    }
    if let Some(fault) = &death.fault {
        // SIGBUS means that a page of the mapped file could not be read. But the candidate can write the report of a
        // fault, or send itself the signal. The proof is that the worker cannot read the input either.
        if matches!(fault.memory, FaultedMemory::Input | FaultedMemory::InputGuard)
            && fault.signal == libc::SIGBUS
            && (names.is_unreadable)(fault.index)
        {
            let what = (names.inputs)(fault.index);
            return verdict(
                Status::InfraError,
                format!(
                    "a page of {what} could not be read {during}: the capture was cut short while it was mapped, or its disk \
                     failed (address {:#x})",
                    fault.address
                ),
            );
        }
        let known = match fault.memory {
            _ if fault.signal == libc::SIGBUS => None,
            FaultedMemory::Input => Some((
                Status::InputMutated,
                format!("stored into {}, which is read-only", (names.inputs)(fault.index)),
            )),
            FaultedMemory::InputGuard => {
                Some((Status::OutOfBounds, format!("reached beyond {}", (names.inputs)(fault.index))))
            }
            FaultedMemory::OutputGuard => {
                Some((Status::OutOfBounds, format!("reached beyond {}", (names.outputs)(fault.index))))
            }
            FaultedMemory::Elsewhere => None,
        };
        if let Some((status, what)) = known {
            return verdict(status, format!("{what}, {during} (address {:#x})", fault.address));
        }
    }
    if let Some(refused) = death.refused
        && let Some(how) = end_for_lack_of_memory(death.end)
    {
        return verdict(
            Status::HostMemoryLimit,
            format!("{how} {during} after a request for {refused} of memory was refused (limits.memory)"),
        );
    }
    match death.end {
        // A service manager that ends a service sends SIGTERM, SIGINT or SIGHUP to all of its processes.
        End::Signalled { signal: signal @ (libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP) } => {
            // Pid 1 of a namespace cannot be killed from inside, so the sender is a process outside. Without a
            // namespace, the sender is unknown, and the core decides after a second death on the same entry.
            let sender =
                if death.namespaced { "by a process outside its namespace" } else { "by an unknown sender" };
            let how = if signal == libc::SIGKILL { "killed" } else { "ended" };
            verdict(Status::InfraError, format!("{how} {during} {sender}"))
        }
        End::Signalled { .. } if loading => verdict(
            Status::LoadError,
            format!("ended by {} {during}", death.end.signal_name().unwrap_or("a signal")),
        ),
        End::Exited { code } if loading => {
            verdict(Status::LoadError, format!("exited with code {code} {during}"))
        }
        End::Signalled { .. } => verdict(
            Status::Crashed,
            format!("ended by {} {during}", death.end.signal_name().unwrap_or("a signal")),
        ),
        End::Exited { code } => verdict(Status::Crashed, format!("exited with code {code} {during}")),
    }
}

fn end_for_lack_of_memory(end: End) -> Option<String> {
    match end {
        End::Signalled { .. } => Some(format!("ended by {}", end.signal_name().unwrap_or("a signal"))),
        End::Exited { code: LINKER_FAILURE } => Some(format!("exited with code {LINKER_FAILURE}")),
        End::Exited { .. } => None,
    }
}

/// Like `death`, with the names of the entry `placed`, which was called last.
pub(super) fn verdict(facts: &Death, placed: Option<&Placed>) -> Verdict {
    let Some(placed) = placed else {
        return death(
            facts,
            &Names {
                inputs: &|at| format!("input {at}"),
                outputs: &|at| format!("output {at}"),
                is_unreadable: &|_| false,
            },
        );
    };
    let input = |at: u32| {
        placed.argument_of(at).map_or_else(|| format!("input {at}"), |path| format!("the input `{path}`"))
    };
    let output = |at: u32| {
        let recorded = placed.as_ref().outputs.get(at as usize);
        recorded.map_or_else(
            || format!("output {at}"),
            |output| {
                let kind = if output.arguments.is_empty() { "output" } else { "argument" };
                format!("the {kind} `{}`", output.path)
            },
        )
    };
    let is_unreadable = |at: u32| placed.is_unreadable(at);
    death(facts, &Names { inputs: &input, outputs: &output, is_unreadable: &is_unreadable })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use opt_shared::outcome::RunnerEnd;
    use opt_shared::units::Bytes;

    use super::*;
    use crate::session::host::process::Fault;

    fn death_by(end: End) -> Death {
        Death {
            end,
            killed: None,
            tasks_refused: false,
            peak_owed: Bytes::ZERO,
            report: RunnerEnd::default(),
            refused: None,
            fault: None,
            phase: Phase::Calling,
            locked: true,
            namespaced: true,
        }
    }

    fn check(death_facts: Death, status: Status, fragment: &str) {
        check_with_readability(death_facts, false, status, fragment);
    }

    /// `unreadable` is true if the worker cannot read the inputs either.
    fn check_with_readability(death_facts: Death, unreadable: bool, status: Status, fragment: &str) {
        let names = Names {
            inputs: &|index| format!("input {index}"),
            outputs: &|index| format!("output {index}"),
            is_unreadable: &|_| unreadable,
        };
        let verdict = death(&death_facts, &names);
        assert_eq!(verdict.status, status, "{death_facts:?}");
        assert!(verdict.detail.contains(fragment), "{}", verdict.detail);
    }

    #[test]
    fn death_maps_each_end_to_its_status() {
        let fault = |memory| Some(Fault { memory, index: 1, address: 0x10, signal: libc::SIGSEGV });
        let cut_short = |memory| Death {
            fault: Some(Fault { memory, index: 1, address: 0x10, signal: libc::SIGBUS }),
            ..death_by(End::Signalled { signal: libc::SIGBUS })
        };
        check_with_readability(
            cut_short(FaultedMemory::Input),
            true,
            Status::InfraError,
            "a page of input 1 could not be read",
        );
        // The worker can read the input, so the candidate forged the report.
        check(cut_short(FaultedMemory::Input), Status::Crashed, "SIGBUS");
        check(cut_short(FaultedMemory::Elsewhere), Status::Crashed, "SIGBUS");
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            check(death_by(End::Signalled { signal }), Status::InfraError, "ended in a call");
        }
        check(death_by(End::Signalled { signal: libc::SIGSEGV }), Status::Crashed, "SIGSEGV");
        check(death_by(End::Exited { code: 0 }), Status::Crashed, "code 0");
        check(
            Death { phase: Phase::Loading, ..death_by(End::Signalled { signal: libc::SIGABRT }) },
            Status::LoadError,
            "SIGABRT",
        );
        check(
            Death { phase: Phase::Loading, ..death_by(End::Exited { code: 1 }) },
            Status::LoadError,
            "code 1",
        );
        let faulted =
            |memory| Death { fault: fault(memory), ..death_by(End::Signalled { signal: libc::SIGSEGV }) };
        check(faulted(FaultedMemory::Input), Status::InputMutated, "input 1");
        check(faulted(FaultedMemory::InputGuard), Status::OutOfBounds, "input 1");
        check(faulted(FaultedMemory::OutputGuard), Status::OutOfBounds, "output 1");
        check(faulted(FaultedMemory::Elsewhere), Status::Crashed, "SIGSEGV");
        check(
            Death { refused: Some(Bytes::gib(1)), ..death_by(End::Signalled { signal: libc::SIGABRT }) },
            Status::HostMemoryLimit,
            "1.00 GiB",
        );
        check(
            Death { refused: Some(Bytes::gib(1)), ..death_by(End::Exited { code: LINKER_FAILURE }) },
            Status::HostMemoryLimit,
            "code 127 in a call after a request for 1.00 GiB",
        );
        check(death_by(End::Exited { code: LINKER_FAILURE }), Status::Crashed, "code 127");
        // A refused allocation proves nothing about an ordinary exit.
        check(
            Death { refused: Some(Bytes::gib(1)), ..death_by(End::Exited { code: 3 }) },
            Status::Crashed,
            "code 3",
        );
        let killed =
            |reason| Death { killed: Some(reason), ..death_by(End::Signalled { signal: libc::SIGKILL }) };
        check(killed(KillReason::Stopped), Status::InfraError, "had stopped it");
        check(killed(KillReason::Timeout { limit: Duration::from_secs(2) }), Status::Timeout, "2s");
        check(
            Death {
                phase: Phase::Idle,
                ..killed(KillReason::WouldNotStop { limit: Duration::from_secs(10) })
            },
            Status::Timeout,
            "killed between calls: it was still running 10s after SIGSTOP",
        );
        check(
            killed(KillReason::RunnerMemory { owed: Bytes::gib(2), limit: Bytes::gib(1) }),
            Status::HostMemoryLimit,
            "limit is 1.00 GiB",
        );
        check(
            killed(KillReason::GroupMemory { limit: Bytes::gib(1) }),
            Status::HostMemoryLimit,
            "limit of 1.00 GiB",
        );
        check(
            killed(KillReason::Deadline),
            Status::InfraError,
            "by the supervisor: the attempt did not finish",
        );
        check(
            death_by(End::Signalled { signal: libc::SIGKILL }),
            Status::InfraError,
            "outside its namespace",
        );
        // No code of the candidate had run.
        for (end, how) in [
            (End::Exited { code: 2 }, "exited with code 2 before it loaded any code"),
            (End::Signalled { signal: libc::SIGKILL }, "was killed by SIGKILL before it loaded any code"),
        ] {
            let unlocked = Death { phase: Phase::Starting, locked: false, ..death_by(end) };
            check(unlocked, Status::InfraError, how);
        }
    }
}
