//! Builds a timeline from blocks of samples by adding up the memory of the processes at each moment. The sums are
//! reduced to the number of steps that a report can draw.
//!
//! A run that takes a day can have hundreds of thousands of runners. Their memory is added up block by block, so that
//! the memory that this module needs does not grow with the number of runners.

use std::collections::BTreeMap;

use opt_shared::ids::WorkerId;
use opt_shared::message::Role;
use opt_shared::units::Bytes;

use super::{Block, Group, Kind, Lane, Point, Series, Timeline, Track};

/// Owed and reclaimable memory.
type Figures = (Bytes, Bytes);

/// Builds a timeline from blocks, which must be given in the order in which they were written.
#[derive(Debug)]
pub struct Assembly {
    roles: BTreeMap<WorkerId, Role>,
    /// The width of a step in the drawing, in milliseconds.
    width: u64,
    timeline: Timeline,
    lanes: BTreeMap<WorkerId, Series>,
    /// The processes that existed at the end of the last block, with their latest figures.
    alive: BTreeMap<Track, Figures>,
    /// The sums of the figures in `alive` for each group.
    groups: BTreeMap<Group, Figures>,
    /// The sums of the figures in `alive` for each worker, including its runners.
    workers: BTreeMap<WorkerId, Figures>,
    /// The end of the last block, in milliseconds since 1970.
    end: Option<u64>,
}

/// The longest gap between two samples, in milliseconds, during which the run is assumed to continue. A longer gap
/// means that the run was interrupted and later resumed.
const LONGEST_GAP: u64 = 5_000;

impl Assembly {
    /// Creates an assembly for the time from `from` to `to`, in milliseconds since 1970. `steps` is the number of steps
    /// in the drawing.
    pub fn new(roles: BTreeMap<WorkerId, Role>, from: u64, to: u64, steps: usize) -> Self {
        let width = (to.saturating_sub(from) / steps.max(1) as u64).max(1);
        Self {
            roles,
            width,
            timeline: Timeline { from, to, ..Timeline::default() },
            lanes: BTreeMap::new(),
            alive: BTreeMap::new(),
            groups: BTreeMap::new(),
            workers: BTreeMap::new(),
            end: None,
        }
    }

    /// Adds the next block of samples.
    pub fn take(&mut self, block: &Block) {
        let Some((start, end)) = block.span() else { return };
        let width = self.width;
        for (track, into) in
            [(Track::Tree, &mut self.timeline.tree), (Track::Machine, &mut self.timeline.machine)]
        {
            let Some(series) = block.series.get(&track) else { continue };
            for &point in &series.points {
                // Nothing was owed while the run was interrupted, so the line drops to zero and does not cross the gap.
                if track == Track::Tree && 0 < into.last && into.last + LONGEST_GAP < point.at {
                    let at = into.last + 1;
                    into.push(track, Point { at, first: Bytes::ZERO, second: Bytes::ZERO }, 1);
                }
                into.push(track, point, width);
            }
            into.last = into.last.max(series.last);
        }
        // Processes that are not in this block have ended since the last one.
        let ended: Vec<Track> =
            self.alive.keys().filter(|&track| !block.series.contains_key(track)).copied().collect();
        let before = self.end.map_or(start, |before| start.min(before + 1));
        for track in ended {
            self.change(before, track, None);
        }
        let mut events: Vec<(u64, Track, Option<Figures>)> = Vec::new();
        for (&track, series) in &block.series {
            if matches!(track, Track::Tree | Track::Machine) {
                continue;
            }
            events.extend(
                series.points.iter().map(|point| (point.at, track, Some((point.first, point.second)))),
            );
            if series.last < end {
                events.push((series.last + 1, track, None));
            }
        }
        // The sort is stable, so the last point of a process comes before its end.
        events.sort_by_key(|&(at, ..)| at);
        for (at, track, figures) in events {
            self.change(at, track, figures);
        }
        self.end = Some(end);
    }

    /// Records new figures of a process. If `now` is `None`, records that the process has ended.
    fn change(&mut self, at: u64, track: Track, now: Option<Figures>) {
        let before = match now {
            Some(now) => self.alive.insert(track, now),
            None => self.alive.remove(&track),
        };
        let before = before.unwrap_or_default();
        let width = self.width;
        let update = |sum: &mut Figures| {
            let now = now.unwrap_or_default();
            *sum = (sum.0 - before.0 + now.0, sum.1 - before.1 + now.1);
            Point { at, first: sum.0, second: sum.1 }
        };
        if let Some(group) = self.group(track) {
            let point = update(self.groups.entry(group).or_default());
            self.timeline.groups.entry(group).or_default().push(track, point, width);
        }
        if let Track::Worker { worker, .. } | Track::Runner { worker, .. } = track {
            let point = update(self.workers.entry(worker).or_default());
            self.lanes.entry(worker).or_default().push(track, point, width);
        }
    }

    fn group(&self, track: Track) -> Option<Group> {
        let kind = |worker: &WorkerId| self.roles.get(worker).map(|&role| Kind::from(role));
        match track {
            Track::Tree | Track::Machine => None,
            Track::Supervisor => Some(Group::Supervisor),
            Track::Worker { worker, .. } => kind(&worker).map(Group::Workers),
            Track::Runner { worker, .. } => kind(&worker).map(Group::Runners),
        }
    }

    pub fn finish(mut self) -> Timeline {
        let end = self.end.unwrap_or(self.timeline.to);
        for (track, _) in std::mem::take(&mut self.alive) {
            if let Some(series) = self.group(track).and_then(|group| self.timeline.groups.get_mut(&group)) {
                series.last = series.last.max(end);
            }
            if let Track::Worker { worker, .. } = track
                && let Some(lane) = self.lanes.get_mut(&worker)
            {
                lane.last = lane.last.max(end);
            }
        }
        let roles = &self.roles;
        self.timeline.lanes = self
            .lanes
            .into_iter()
            .filter_map(|(worker, series)| Some(Lane { worker, role: *roles.get(&worker)?, series }))
            .collect();
        self.timeline
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::samples::any_block;
    use super::*;

    const VERIFIER: WorkerId = WorkerId(1);

    fn runner(pid: u32) -> Track {
        Track::Runner { worker: VERIFIER, pid }
    }

    fn mib(at: u64, first: u64) -> Point {
        Point { at, first: Bytes::mib(first), second: Bytes::ZERO }
    }

    fn roles() -> BTreeMap<WorkerId, Role> {
        [(VERIFIER, Role::Verifier), (WorkerId(2), Role::Profiler)].into()
    }

    #[test]
    fn successive_runners_are_not_added_up() {
        let mut assembly = Assembly::new(roles(), 0, 1000, 1000);
        let mut block = Block::new(1);
        block.push(Track::Worker { worker: VERIFIER, pid: 7 }, mib(0, 2));
        for start in (0..1000).step_by(100) {
            let pid = u32::try_from(start).expect("small") + 10;
            block.push(runner(pid), mib(start, 50));
            block.push(runner(pid), mib(start + 90, 60));
            block.push(Track::Worker { worker: VERIFIER, pid: 7 }, mib(start + 99, 2));
        }
        assembly.take(&block);
        let timeline = assembly.finish();
        assert_eq!(timeline.groups[&Group::Runners(Kind::Verifier)].peak(), Bytes::mib(60));
        assert_eq!(timeline.lanes.len(), 1);
        assert_eq!(timeline.lanes[0].series.peak(), Bytes::mib(62));
        assert_eq!(timeline.lanes[0].series.last, 999);
    }

    #[test]
    fn simultaneous_processes_are_added_up_across_blocks() {
        let mut assembly = Assembly::new(roles(), 0, 400, 400);
        let mut one = Block::new(1);
        one.push(runner(1), mib(0, 5));
        one.push(runner(2), mib(100, 7));
        one.push(runner(1), mib(100, 5));
        let mut two = Block::new(1);
        two.push(runner(2), mib(200, 7));
        two.push(Track::Supervisor, mib(300, 9));
        assembly.take(&one);
        assembly.take(&two);
        let timeline = assembly.finish();
        let runners = &timeline.groups[&Group::Runners(Kind::Verifier)];
        let seen: Vec<Bytes> = runners.points.iter().map(|point| point.first).collect();
        assert_eq!(seen, [5, 12, 7, 0].map(Bytes::mib), "{runners:?}");
    }

    proptest! {
        #[test]
        fn sums_never_exceed_the_processes_figures(blocks in proptest::collection::vec(any_block(), 0..4)) {
            let mut assembly = Assembly::new(roles(), 0, 2_000_000_000_000, 100);
            for block in &blocks {
                assembly.take(block);
            }
            let timeline = assembly.finish();
            let all: Bytes = blocks.iter().flat_map(|block| block.series.values()).map(Series::peak).sum();
            for series in timeline.groups.values().chain(timeline.lanes.iter().map(|lane| &lane.series)) {
                prop_assert!(series.peak() <= all);
            }
        }
    }
}
