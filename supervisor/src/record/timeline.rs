//! Defines how samples of memory over time are stored (as blocks of tracks) and shown (as a timeline).
//!
//! This module also reduces the number of samples, in such a way that the worst value of each figure is preserved. The
//! store encodes blocks as bytes, and the report draws a [`Timeline`].
//!
//! A track is a step function: the figures of a point apply until the next point or, if it is the last one, until the
//! process was last seen.

mod assemble;
#[cfg(test)]
pub(crate) mod samples;

use std::collections::BTreeMap;

use opt_shared::ids::WorkerId;
use opt_shared::message::Role;
use opt_shared::units::Bytes;

use super::{Stage, UtcTime};

pub use assemble::Assembly;

/// The subject of a series of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Track {
    /// The run's whole process tree. Each known memory file is counted once.
    Tree,
    /// The machine: its available memory, and the swapped memory of the run's process tree.
    Machine,
    Supervisor,
    Worker {
        worker: WorkerId,
        pid: u32,
    },
    /// A runner of this worker, with its children.
    Runner {
        worker: WorkerId,
        pid: u32,
    },
}

/// Two figures at one moment. For processes, these are owed and reclaimable memory. For the machine, they are available
/// memory, and the run's memory in swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Milliseconds since 1970.
    pub at: u64,
    pub first: Bytes,
    pub second: Bytes,
}

/// The points of one track, or of the sum of several tracks, in order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    pub points: Vec<Point>,
    /// The time at which the process was last seen, in milliseconds since 1970. It may be later than the last point,
    /// because unchanged figures are not stored.
    pub last: u64,
}

impl Series {
    /// Adds a later point. If its figures are those of the last point, nothing is stored. For each step of `width`
    /// milliseconds, at most two points are kept: one with the worst value of each figure, and the last one. Returns
    /// whether the number of points has grown by one.
    pub fn push(&mut self, track: Track, point: Point, width: u64) -> bool {
        self.last = self.last.max(point.at);
        let step = |it: &Point| it.at / width.max(1);
        match self.points.as_mut_slice() {
            [.., latest] if (latest.first, latest.second) == (point.first, point.second) => false,
            [.., worst, latest] if step(worst) == step(latest) && step(&point) <= step(latest) => {
                worst.first = worse(track, worst.first, latest.first);
                worst.second = worst.second.max(latest.second);
                *latest = point;
                false
            }
            _ => {
                self.points.push(point);
                true
            }
        }
    }

    /// Divides `from..to` into `columns` equal parts, and returns the highest first figure in each. A part is `None` if
    /// the process did not exist during that time.
    pub fn columns(&self, from: u64, to: u64, columns: usize) -> Vec<Option<Bytes>> {
        let mut worst: Vec<Option<Bytes>> = vec![None; columns];
        let span = to.saturating_sub(from).max(1);
        let column = |at: u64| {
            let index = u128::from(at.saturating_sub(from)) * columns as u128 / u128::from(span);
            usize::try_from(index).unwrap_or(usize::MAX).min(columns.saturating_sub(1))
        };
        for (index, point) in self.points.iter().enumerate() {
            let until = self.points.get(index + 1).map_or(self.last, |next| next.at);
            // A point applies until the next point begins. If that is exactly the end of a column, the point does not
            // count for the next column.
            let end = column(until.saturating_sub(1).max(point.at));
            for cell in worst.iter_mut().take(end + 1).skip(column(point.at)) {
                *cell = Some(cell.map_or(point.first, |seen| seen.max(point.first)));
            }
        }
        worst
    }

    pub fn peak(&self) -> Bytes {
        self.points.iter().map(|point| point.first).max().unwrap_or_default()
    }
}

/// Returns the worse of two first figures, which is the lower one for the machine and the higher one for a process.
fn worse(track: Track, one: Bytes, other: Bytes) -> Bytes {
    if track == Track::Machine { one.min(other) } else { one.max(other) }
}

/// The samples of all tracks during some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The width of a step, in milliseconds. The samples of a track within one step are reduced to at most two points.
    pub width: u64,
    pub series: BTreeMap<Track, Series>,
}

impl Block {
    pub fn new(width: u64) -> Self {
        Self { width, series: BTreeMap::new() }
    }

    /// Adds a later point to a track. Returns whether the number of points has grown by one.
    pub fn push(&mut self, track: Track, point: Point) -> bool {
        let width = self.width;
        self.series.entry(track).or_default().push(track, point, width)
    }

    pub fn points(&self) -> usize {
        self.series.values().map(|series| series.points.len()).sum()
    }

    /// Returns the first and the last moment of the block, in milliseconds since 1970, or `None` if the block is empty.
    pub fn span(&self) -> Option<(u64, u64)> {
        let first = self.series.values().filter_map(|series| series.points.first()).map(|it| it.at).min()?;
        let last = self.series.values().map(|series| series.last).max()?;
        Some((first, last.max(first)))
    }

    /// Joins this block and a later one into a single block, in steps of `width` milliseconds.
    #[must_use]
    pub fn joined(self, later: Self, width: u64) -> Self {
        let mut whole = Self::new(width);
        for block in [self, later] {
            for (track, series) in block.series {
                let into = whole.series.entry(track).or_default();
                for point in series.points {
                    into.push(track, point, width);
                }
                into.last = into.last.max(series.last);
            }
        }
        whole
    }
}

/// A group of processes that is drawn as one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    Runners(Kind),
    Workers(Kind),
    Supervisor,
}

/// A worker's [`Role`]. The variants are in the order in which a run uses the roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Verifier,
    Profiler,
}

impl From<Role> for Kind {
    fn from(role: Role) -> Self {
        match role {
            Role::Verifier => Self::Verifier,
            Role::Profiler => Self::Profiler,
        }
    }
}

impl Group {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor",
            Self::Workers(Kind::Verifier) => "verifier",
            Self::Workers(Kind::Profiler) => "profiler",
            Self::Runners(Kind::Verifier) => "verifier's runners",
            Self::Runners(Kind::Profiler) => "profiler's runners",
        }
    }
}

/// The period during which one worker ran a stage. Times are in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseSpan {
    pub worker: WorkerId,
    pub stage: Stage,
    /// The job's name. A phase of a replay has the replay's name instead, and no candidate.
    pub job: String,
    pub candidate: Option<String>,
    pub started: u64,
    pub ended: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    KilledRunner,
    KilledWorker,
    Recycled,
}

/// An event of a worker that the timeline shows, with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Milliseconds since 1970.
    pub at: u64,
    pub worker: WorkerId,
    pub kind: MarkKind,
    pub reason: String,
}

/// One worker and its runners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    pub worker: WorkerId,
    pub role: Role,
    pub series: Series,
}

/// A run's memory over time, reduced to what a report can draw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The start and the end, in milliseconds since 1970.
    pub from: u64,
    pub to: u64,
    pub ceiling: Option<Bytes>,
    pub predicted: Option<Bytes>,
    pub tree: Series,
    pub machine: Series,
    pub groups: BTreeMap<Group, Series>,
    pub lanes: Vec<Lane>,
    pub phases: Vec<PhaseSpan>,
    pub marks: Vec<Mark>,
}

impl Timeline {
    /// Returns whether there is nothing to draw, because the run kept no samples.
    pub fn is_empty(&self) -> bool {
        self.tree.points.is_empty()
    }
}

/// Converts a time in a record to milliseconds since 1970.
pub fn milliseconds(time: UtcTime) -> u64 {
    u64::try_from(time.as_millisecond()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::samples::any_block;
    use super::*;

    fn mib(at: u64, first: u64) -> Point {
        Point { at, first: Bytes::mib(first), second: Bytes::ZERO }
    }

    #[test]
    fn push_stores_nothing_for_unchanged_figures() {
        let mut block = Block::new(1);
        for at in 0..1000 {
            block.push(Track::Tree, mib(at, 1 + at / 500));
        }
        let series = &block.series[&Track::Tree];
        assert_eq!(series.points, [mib(0, 1), mib(500, 2)]);
        assert_eq!(series.last, 999);
    }

    #[test]
    fn columns_end_when_the_process_was_last_seen() {
        let series = Series { points: vec![mib(10, 3), mib(20, 1), mib(22, 5), mib(24, 1)], last: 29 };
        let seen = series.columns(0, 50, 5);
        let mib = |mib| Some(Bytes::mib(mib));
        assert_eq!(seen, [None, mib(3), mib(5), None, None]);
        assert_eq!(Series::default().columns(0, 0, 3), [None; 3]);
    }

    proptest! {
        #[test]
        fn thinning_keeps_extreme_values(one in any_block(), other in any_block(), width in 1u64..5000) {
            let whole = one.clone().joined(other.clone(), 1);
            let thin = one.joined(other, width);
            prop_assert!(thin.points() <= whole.points());
            prop_assert_eq!(thin.span(), whole.span());
            for (track, series) in &whole.series {
                let thinned = &thin.series[track];
                prop_assert_eq!(thinned.last, series.last);
                let current = |series: &Series| series.points.last().map(|it| (it.first, it.second));
                prop_assert_eq!(current(thinned), current(series));
                let seconds = |series: &Series| series.points.iter().map(|point| point.second).max();
                prop_assert_eq!(seconds(thinned), seconds(series));
                let firsts = |series: &Series| {
                    let firsts = series.points.iter().map(|point| point.first);
                    if *track == Track::Machine { firsts.min() } else { firsts.max() }
                };
                prop_assert_eq!(firsts(thinned), firsts(series));
            }
        }
    }
}
