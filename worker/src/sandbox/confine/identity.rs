//! Gives a sandboxed process its own user, takes away its capabilities, and prevents other processes from reading it.

use opt_shared::message::Protection;
use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::{ConfineError, protection};

/// The first user id of a range from which no system assigns ids (systemd lists the ids from 0x7000_0000 on as unused).
/// The runner with user number n gets this id plus n modulo `OWN_USER_COUNT`.
const OWN_USER_BASE: u32 = 0x7000_0000;
const OWN_USER_COUNT: u32 = 0x0800_0000;

/// The first user id of the range that is used in containers which map only 16 bits of user ids. From this range,
/// systemd assigns users to running services.
const SMALL_USER_BASE: u32 = 61_184;
const SMALL_USER_COUNT: u32 = 65_519 - SMALL_USER_BASE + 1;

/// One more than the highest capability number that fits into a 64-bit mask.
const CAPABILITY_END: u32 = 64;

/// Switches to a user of the runner's own, if this process is root with CAP_KILL. The new user owns no files and may
/// not signal other processes, and Linux counts its processes separately. In any case, gives up all capabilities.
pub(super) fn become_own_user(number: u32) -> Result<Vec<Protection>, ConfineError> {
    if !rustix::process::geteuid().is_root() {
        let detail = "the worker is not root, so runners share its user";
        let mut protections = vec![protection("own_user", false, detail)];
        protections.extend(give_up_capabilities()?);
        return Ok(protections);
    }
    // Without CAP_KILL, neither the worker nor the supervisor could stop or kill a process of another user.
    if !rustix::thread::capabilities(None).is_ok_and(|it| it.effective.contains(CapabilitySet::KILL)) {
        let detail = "the worker lacks CAP_KILL, so it may not kill processes of another user";
        let mut protections = vec![protection("own_user", false, detail)];
        protections.extend(give_up_capabilities()?);
        return Ok(protections);
    }
    clear_bounding_set()?;
    let ids = [OWN_USER_BASE + number % OWN_USER_COUNT, SMALL_USER_BASE + number % SMALL_USER_COUNT];
    let mut refusal = None;
    for id in ids {
        match change_user(id) {
            Ok(()) => {
                let mut protections = vec![protection("own_user", true, id.to_string())];
                protections.extend(give_up_capabilities()?);
                return Ok(protections);
            }
            Err(error) => refusal = Some(error),
        }
    }
    // The container has only one user, or does not allow changing users. The process keeps uid 0, but loses its
    // privileges.
    let detail = refusal.map(|error| error.to_string()).unwrap_or_default();
    let mut protections =
        vec![protection("own_user", false, format!("the user cannot be changed: {detail}"))];
    protections.extend(give_up_capabilities()?);
    Ok(protections)
}

fn change_user(id: u32) -> std::io::Result<()> {
    // The C library's wrappers would change all threads of a process. This process has a single thread, so plain system
    // calls suffice. SAFETY: the arguments are plain integers, and an empty list needs no pointer.
    unsafe {
        for result in
            [libc::setresgid(id, id, id), libc::setgroups(0, std::ptr::null()), libc::setresuid(id, id, id)]
        {
            if result != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

/// Empties this process's capability sets. `clear_bounding_set` explains why exec cannot fill them again.
pub(super) fn give_up_capabilities() -> Result<Vec<Protection>, ConfineError> {
    clear_bounding_set()?;
    let _ = rustix::thread::clear_ambient_capability_set();
    let empty = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, empty).map_err(ConfineError::refused("giving up capabilities"))?;
    let remaining =
        rustix::thread::capabilities(None).map_err(ConfineError::refused("reading capabilities"))?;
    Ok(vec![protection(
        "no_capabilities",
        remaining.permitted.is_empty() && remaining.inheritable.is_empty(),
        "",
    )])
}

/// Clears the set of capabilities that exec could gain. Does nothing without CAP_SETPCAP. In that case, no_new_privs
/// prevents exec from gaining any.
fn clear_bounding_set() -> Result<(), ConfineError> {
    let held = rustix::thread::capabilities(None).map_err(ConfineError::refused("reading capabilities"))?;
    if !held.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    for capability in 0..CAPABILITY_END {
        // SAFETY: plain integers. EINVAL marks the first capability that Linux does not have.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
            break;
        }
    }
    Ok(())
}

/// Makes the process not dumpable: it leaves no core dump, and no other process of the same user may read or trace it.
pub(super) fn hide_memory() -> Result<Protection, ConfineError> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(ConfineError::refused("hiding memory from other processes"))?;
    Ok(protection("not_dumpable", true, ""))
}

/// Sets no_new_privs, so that programs which the process executes gain no privileges.
pub(super) fn refuse_new_privileges() -> Result<Protection, ConfineError> {
    rustix::thread::set_no_new_privs(true).map_err(ConfineError::refused("setting no_new_privs"))?;
    Ok(protection("no_new_privileges", true, ""))
}
