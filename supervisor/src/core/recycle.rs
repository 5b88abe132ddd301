//! Decides whether a healthy worker is replaced, and names the reason. Only idle workers are considered.

use std::time::Duration;

use opt_shared::settings::{BeforeProfile, RecycleSettings};
use opt_shared::units::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecycleReason {
    /// The worker has reached `max_age`.
    Age,
    /// The worker has held `after_leases` leases.
    Leases,
    /// The memory that the worker owes has grown by more than `growth` since it was ready.
    Growth,
    /// The next lease needs the worker's memory.
    MakeRoom,
    Pressure,
    /// The worker finished an attempt, but left runners behind.
    LeftRunners,
    /// A kernel destroyed the worker's context on the device.
    ContextLost,
    /// The plan requires idle verifiers to end before the next profile.
    BeforeProfile,
    Requested,
}

impl RecycleReason {
    /// Returns whether this reason only makes a worker due for replacement, without being urgent. Workers with such a
    /// reason are replaced one at a time.
    pub const fn is_routine(self) -> bool {
        matches!(self, Self::Age | Self::Leases | Self::Growth)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Age => "max_age",
            Self::Leases => "after_leases",
            Self::Growth => "growth",
            Self::MakeRoom => "make_room",
            Self::Pressure => "pressure",
            Self::LeftRunners => "left_runners",
            Self::ContextLost => "context_lost",
            Self::BeforeProfile => "before_profile",
            Self::Requested => "requested",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub age: Duration,
    pub leases: u32,
    pub owed_when_ready: Bytes,
    /// The memory that the worker owed in the last sample.
    pub owed: Bytes,
}

/// Returns why an idle worker is due for replacement. Growth comes before leases, and leases before age. A worker that
/// has held no lease is never due for replacement, because its successor would be no better and could be replaced at
/// once in turn, without end.
pub fn reason_to_replace(settings: &RecycleSettings, usage: &Usage) -> Option<RecycleReason> {
    if usage.leases == 0 {
        return None;
    }
    if has_grown(settings, usage) {
        return Some(RecycleReason::Growth);
    }
    if settings.after_leases <= usage.leases {
        return Some(RecycleReason::Leases);
    }
    (settings.max_age <= usage.age).then_some(RecycleReason::Age)
}

/// Returns whether a worker that is idle now has kept too much memory.
pub fn has_grown(settings: &RecycleSettings, usage: &Usage) -> bool {
    0 < usage.leases && settings.growth < usage.owed - usage.owed_when_ready
}

/// Returns `BeforeProfile` if the plan requires an idle verifier to be replaced before the next profile. `validated` is
/// the sum of the captured bytes that all living verifiers have verified since they started. It covers all verifiers,
/// because the size of a job does not depend on how many verifiers share it. This function does not check the memory
/// that the verifier kept; `has_grown` does.
pub fn before_profile(settings: &RecycleSettings, usage: &Usage, validated: Bytes) -> Option<RecycleReason> {
    let needed = match settings.before_profile {
        BeforeProfile::Always => true,
        BeforeProfile::Large => settings.large_job <= validated,
        BeforeProfile::Never => false,
    };
    (needed && 0 < usage.leases).then_some(RecycleReason::BeforeProfile)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> RecycleSettings {
        RecycleSettings {
            before_profile: BeforeProfile::Large,
            large_job: Bytes::gib(1),
            after_leases: 64,
            growth: Bytes::mib(256),
            max_age: Duration::from_secs(3600),
        }
    }

    fn usage() -> Usage {
        Usage { age: Duration::ZERO, leases: 1, owed_when_ready: Bytes::mib(5), owed: Bytes::mib(5) }
    }

    #[test]
    fn each_limit_gives_a_reason_and_growth_comes_first() {
        let settings = settings();
        assert_eq!(reason_to_replace(&settings, &usage()), None);
        let grown = Usage { owed: Bytes::mib(262), ..usage() };
        assert_eq!(reason_to_replace(&settings, &grown), Some(RecycleReason::Growth));
        assert_eq!(reason_to_replace(&settings, &Usage { owed: Bytes::mib(261), ..usage() }), None);
        let served = Usage { leases: 64, ..usage() };
        assert_eq!(reason_to_replace(&settings, &served), Some(RecycleReason::Leases));
        assert_eq!(reason_to_replace(&settings, &Usage { leases: 63, ..usage() }), None);
        assert_eq!(reason_to_replace(&settings, &Usage { leases: 64, ..grown }), Some(RecycleReason::Growth));
        let old = Usage { age: Duration::from_secs(3600), ..usage() };
        assert_eq!(reason_to_replace(&settings, &old), Some(RecycleReason::Age));
        for unused in [Usage { leases: 0, ..grown }, Usage { leases: 0, ..old }] {
            assert_eq!(reason_to_replace(&settings, &unused), None, "its successor would be no better");
            assert!(!has_grown(&settings, &unused));
        }
    }

    #[test]
    fn large_verification_is_followed_by_a_recycle() {
        let at = |before_profile, validated, leases| {
            super::before_profile(
                &RecycleSettings { before_profile, ..settings() },
                &Usage { leases, ..usage() },
                validated,
            )
        };
        let large = Some(RecycleReason::BeforeProfile);
        assert_eq!(at(BeforeProfile::Large, Bytes::gib(1), 1), large);
        assert_eq!(at(BeforeProfile::Large, Bytes::gib(1) - Bytes::new(1), 1), None);
        assert_eq!(at(BeforeProfile::Always, Bytes::ZERO, 1), large);
        assert_eq!(at(BeforeProfile::Always, Bytes::ZERO, 0), None, "a worker that did nothing is clean");
        assert_eq!(at(BeforeProfile::Large, Bytes::gib(1), 0), None);
        assert_eq!(at(BeforeProfile::Never, Bytes::gib(100), 9), None);
    }

    #[test]
    fn each_reason_has_a_name_and_says_whether_it_is_routine() {
        let all = [
            (RecycleReason::Age, "max_age", true),
            (RecycleReason::Leases, "after_leases", true),
            (RecycleReason::Growth, "growth", true),
            (RecycleReason::MakeRoom, "make_room", false),
            (RecycleReason::Pressure, "pressure", false),
            (RecycleReason::LeftRunners, "left_runners", false),
            (RecycleReason::BeforeProfile, "before_profile", false),
            (RecycleReason::Requested, "requested", false),
            (RecycleReason::ContextLost, "context_lost", false),
        ];
        for (reason, name, is_routine) in all {
            assert_eq!((reason.name(), reason.is_routine()), (name, is_routine));
        }
    }
}
