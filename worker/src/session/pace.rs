//! How fast a device runs: its clock, its power, and what limits them.

use std::ops::BitOr;

/// The clock rate and the power of a device, and what limits them. A figure that the device does not report is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pace {
    /// The clock rate of its multiprocessors.
    pub(crate) clock_mhz: Option<u32>,
    pub(crate) power_watts: Option<f64>,
    pub(crate) limits: Option<Limits>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) power: bool,
    pub(crate) heat: bool,
    /// Something outside the device, such as the power supply.
    pub(crate) external: bool,
}

impl Limits {
    /// The names of the reasons that apply, as results write them.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        [(self.power, "power"), (self.heat, "heat"), (self.external, "external")]
            .into_iter()
            .filter_map(|(applies, name)| applies.then_some(name))
    }
}

impl BitOr for Limits {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self {
            power: self.power || other.power,
            heat: self.heat || other.heat,
            external: self.external || other.external,
        }
    }
}

impl Pace {
    /// Returns the pace of a block from the readings before and after it: the lower clock, the higher power, and all
    /// limits.
    pub(crate) fn around(self, after: Self) -> Self {
        let lower = |one: Option<u32>, other: Option<u32>| one.into_iter().chain(other).min();
        Self {
            clock_mhz: lower(self.clock_mhz, after.clock_mhz),
            power_watts: self.power_watts.into_iter().chain(after.power_watts).reduce(f64::max),
            limits: self.limits.into_iter().chain(after.limits).reduce(BitOr::bitor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_of_a_block_is_the_worse_of_both_readings() {
        let heat = Limits { heat: true, ..Limits::default() };
        let hot = Some(heat);
        let before =
            Pace { clock_mhz: Some(1980), power_watts: Some(300.0), limits: Some(Limits::default()) };
        let after = Pace { clock_mhz: Some(1200), power_watts: Some(200.0), limits: hot };
        let worse = Pace { clock_mhz: Some(1200), power_watts: Some(300.0), limits: hot };
        assert_eq!((before.around(after), after.around(before)), (worse, worse));
        assert_eq!(before.around(Pace::default()), before);
        assert_eq!(heat.names().collect::<Vec<_>>(), ["heat"]);
    }
}
