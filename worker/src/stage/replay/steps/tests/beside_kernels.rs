//! Tests replays whose pool must not release memory while a kernel runs.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::residency::device::{Buffer, DeviceError, Event, Marks};

/// The host device, which acts as if a kernel ran during each step. During a step, it must not be asked to release
/// memory.
struct BesideKernels {
    device: HostDevice,
    is_running: Arc<AtomicBool>,
}

impl Device for BesideKernels {
    type Slot = <HostDevice as Device>::Slot;

    fn name(&self) -> &'static str {
        self.device.name()
    }

    fn capacity(&self) -> Bytes {
        self.device.capacity()
    }

    fn grain(&self) -> Bytes {
        self.device.grain()
    }

    fn allocate(&mut self, bytes: Bytes) -> Result<Buffer, DeviceError> {
        self.device.allocate(bytes)
    }

    fn release_waits_for_kernels(&self) -> bool {
        true
    }

    fn release(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        assert!(!self.is_running.load(Ordering::SeqCst), "a release would wait for the kernel");
        self.device.release(buffer)
    }

    fn slot(&mut self, bytes: Bytes) -> Result<Self::Slot, DeviceError> {
        assert!(!self.is_running.load(Ordering::SeqCst), "host memory is allocated before the first step");
        self.device.slot(bytes)
    }

    fn drop_slot(&mut self, slot: Self::Slot) {
        self.device.drop_slot(slot);
    }

    fn upload(
        &mut self,
        slot: Self::Slot,
        bytes: Bytes,
        to: &Buffer,
        at: Bytes,
    ) -> Result<Event, DeviceError> {
        self.device.upload(slot, bytes, to, at)
    }

    fn download(
        &mut self,
        slot: Self::Slot,
        bytes: Bytes,
        from: &Buffer,
        at: Bytes,
    ) -> Result<Event, DeviceError> {
        self.device.download(slot, bytes, from, at)
    }

    fn fill(&mut self, buffer: &Buffer, value: u8) -> Result<Event, DeviceError> {
        self.device.fill(buffer, value)
    }

    fn reclaim(&mut self) -> Result<Option<Self::Slot>, DeviceError> {
        self.device.reclaim()
    }

    fn is_done(&mut self, event: Event) -> Result<bool, DeviceError> {
        self.device.is_done(event)
    }

    fn wait(&mut self, event: Event) -> Result<(), DeviceError> {
        self.device.wait(event)
    }

    fn marks(&self) -> Marks {
        self.device.marks()
    }

    fn reset_marks(&mut self) {
        self.device.reset_marks();
    }
}

/// A caller whose calls take a while. During a call, a kernel counts as running.
struct Running<'a> {
    reading: Reading<'a>,
    is_running: Arc<AtomicBool>,
}

impl Caller for Running<'_> {
    type Error = Wrong;

    fn needs(&mut self, step: usize) -> Result<Option<(Step, Vec<Need>)>, Wrong> {
        self.reading.needs(step)
    }

    fn call(&mut self, step: usize, slots: &[ReadySlot]) -> Result<Launches, Wrong> {
        self.is_running.store(true, Ordering::SeqCst);
        // This gives the pool's thread time to move something. If the thread moves nothing, the test still passes, but
        // shows less.
        std::thread::yield_now();
        let launches = self.reading.call(step, slots);
        self.is_running.store(false, Ordering::SeqCst);
        launches
    }
}

#[test]
fn pool_releases_nothing_while_a_kernel_runs_and_still_keeps_its_budget() {
    let truth = model();
    let recording = record(&truth);
    let page = Bytes::from(rustix::param::page_size());
    let (sets, slots) = (recording.working_sets(), recording.slots(page));
    let bytes: Vec<Bytes> = recording.constants.iter().map(|it| it.bytes).collect();
    let mut budget = floor(&recording);
    while budget <= whole(&recording) {
        let wanted = Wanted { sets: &sets, slots: &slots, bytes: &bytes, pinned: &[], budget, depth: 3 };
        let planned = planner::plan(wanted).expect("above the floor");
        let device = HostDevice::create(budget).expect("an arena");
        let arena = device.reader().expect("a reader");
        let is_running = Arc::new(AtomicBool::new(false));
        let device = BesideKernels { device, is_running: Arc::clone(&is_running) };
        let keys = recording.constants.iter().map(|it| it.key.0[0] - 1).collect();
        let pool = Pool::new(device, Memory { keys, spoiled: None }, &recording.constants, &planned, &sets);
        let reading = Reading { truth: &truth, arena, called: Arc::default() };
        let done =
            replay(&recording, &planned, pool, &mut Running { reading, is_running }).expect("replayed");
        assert!(done.moved.peak <= budget, "{} of {budget}", done.moved.peak);
        assert_eq!(done.moved.bytes, planned.bytes_moved);
        assert_eq!(done.moved.evictions, planned.evictions);
        budget += page.saturating_mul(7);
    }
}
