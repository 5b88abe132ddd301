//! Why a healthy worker is replaced: between leases only, never in the middle of one.
//!
//! Compares given numbers, nothing else. A reason is only ever replaced by a stronger one; `Ord` is that order.

use std::time::Duration;

use opt_shared::settings::{BeforeProfile, RecycleSettings};
use opt_shared::units::Bytes;

/// Weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecycleReason {
    /// `max_age`.
    Age,
    /// `after_leases`.
    Leases,
    /// `growth`.
    Growth,
    /// Nothing but its memory is in the way of the next lease.
    MakeRoom,
    /// The machine is short of memory, and it is not at work.
    Pressure,
    /// It finished an attempt and left runners behind that it had not accounted for.
    LeftRunners,
    /// A profiler is to start clean.
    BeforeProfile,
    /// The user asked for it.
    Requested,
}

impl RecycleReason {
    /// It is time for it, and no more: one at a time will do.
    pub const fn is_wear(self) -> bool {
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
            Self::BeforeProfile => "before_profile",
            Self::Requested => "requested",
        }
    }
}

/// What is known of an idle worker.
#[derive(Clone, Copy, Debug)]
pub struct Wear {
    pub age: Duration,
    pub leases: u32,
    /// Owed when it became ready, and now.
    pub owed_when_ready: Bytes,
    pub owed: Bytes,
    /// Captured bytes it has gone through since its birth.
    pub validated: Bytes,
}

/// Whether an idle worker should be replaced before its next lease. One that has done nothing is as good as its
/// successor would be; replacing it could go on for ever.
pub fn from_wear(settings: &RecycleSettings, wear: &Wear) -> Option<RecycleReason> {
    if wear.leases == 0 {
        return None;
    }
    if has_grown(settings, wear) {
        return Some(RecycleReason::Growth);
    }
    if settings.after_leases <= wear.leases {
        return Some(RecycleReason::Leases);
    }
    (settings.max_age <= wear.age).then_some(RecycleReason::Age)
}

/// Memory that it should have given back after its leases.
pub fn has_grown(settings: &RecycleSettings, wear: &Wear) -> bool {
    0 < wear.leases && settings.growth < wear.owed - wear.owed_when_ready
}

/// Whether an idle verifier has to go before a profiler is leased anything: the plan's rule. Memory that did not
/// come back is `has_grown`, which no plan can switch off.
pub fn before_profile(settings: &RecycleSettings, wear: &Wear) -> Option<RecycleReason> {
    let needed = match settings.before_profile {
        BeforeProfile::Always => 0 < wear.leases,
        BeforeProfile::Large => settings.large_job <= wear.validated && 0 < wear.leases,
        BeforeProfile::Never => false,
    };
    needed.then_some(RecycleReason::BeforeProfile)
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

    fn wear() -> Wear {
        Wear {
            age: Duration::ZERO,
            leases: 1,
            owed_when_ready: Bytes::mib(5),
            owed: Bytes::mib(5),
            validated: Bytes::ZERO,
        }
    }

    #[test]
    fn each_limit_is_a_reason_and_the_stronger_wins() {
        let settings = settings();
        assert_eq!(from_wear(&settings, &wear()), None);
        let grown = Wear { owed: Bytes::mib(262), ..wear() };
        assert_eq!(from_wear(&settings, &grown), Some(RecycleReason::Growth));
        assert_eq!(from_wear(&settings, &Wear { owed: Bytes::mib(261), ..wear() }), None);
        let served = Wear { leases: 64, ..wear() };
        assert_eq!(from_wear(&settings, &served), Some(RecycleReason::Leases));
        assert_eq!(from_wear(&settings, &Wear { leases: 63, ..wear() }), None);
        assert_eq!(from_wear(&settings, &Wear { leases: 64, ..grown }), Some(RecycleReason::Growth));
        let old = Wear { age: Duration::from_secs(3600), ..wear() };
        assert_eq!(from_wear(&settings, &old), Some(RecycleReason::Age));
        for unused in [Wear { leases: 0, ..grown }, Wear { leases: 0, ..old }] {
            assert_eq!(from_wear(&settings, &unused), None, "its successor would be no better");
            assert!(!has_grown(&settings, &unused));
        }
    }

    #[test]
    fn large_verification_is_followed_by_a_recycle() {
        let at = |before_profile, validated, leases| {
            super::before_profile(
                &RecycleSettings { before_profile, ..settings() },
                &Wear { validated, leases, ..wear() },
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
    fn reasons_have_names_and_some_can_wait() {
        let all = [
            (RecycleReason::Age, "max_age", true),
            (RecycleReason::Leases, "after_leases", true),
            (RecycleReason::Growth, "growth", true),
            (RecycleReason::MakeRoom, "make_room", false),
            (RecycleReason::Pressure, "pressure", false),
            (RecycleReason::LeftRunners, "left_runners", false),
            (RecycleReason::BeforeProfile, "before_profile", false),
            (RecycleReason::Requested, "requested", false),
        ];
        for (reason, name, wear) in all {
            assert_eq!((reason.name(), reason.is_wear()), (name, wear));
        }
    }
}
