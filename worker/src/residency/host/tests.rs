//! Tests of copies, capacity, protection and errors of the host device. Some compare the device's bytes with those that
//! Linux counts for the arena.

use std::os::fd::AsFd;

use opt_shared::units::to_index;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::*;
use crate::residency::ledger::{Accounted, Kind};
use crate::residency::staging::{Ring, Source, StagingError};

struct Pattern(u64);

impl Pattern {
    fn at(index: u64) -> u8 {
        (index * 31 + index / 4093).to_le_bytes()[0]
    }
}

impl Source for Pattern {
    fn bytes(&self) -> Bytes {
        Bytes::new(self.0)
    }

    fn describe(&self) -> String {
        "a pattern".to_owned()
    }

    fn read_at(&mut self, at: Bytes, into: &mut [u8]) -> io::Result<()> {
        for (index, byte) in into.iter_mut().enumerate() {
            *byte = Self::at(at.get() + index as u64);
        }
        Ok(())
    }
}

/// Checks that Linux has allocated as many bytes for the arena as the device has placed.
fn check_agreement(device: &HostDevice) {
    assert_eq!(device.counted().expect("Linux reports the size"), device.marks().placed);
}

#[test]
fn uploaded_bytes_arrive_in_the_arena() {
    let mut on = Accounted::new(HostDevice::create(Bytes::mib(4)).expect("an arena"));
    let mut ring = Ring::new(3, Bytes::kib(64));
    for bytes in [0, 1, 65_536, 65_537, 1_000_003] {
        let buffer = on.allocate(Kind::Weight, Bytes::new(bytes)).expect("room");
        let done = ring.upload(&mut on, &mut Pattern(bytes), &buffer).expect("queued");
        assert_eq!(done.is_none(), bytes == 0);
        if let Some(done) = done {
            on.device().wait(done).expect("copied");
            assert!(on.device().is_done(done).expect("the device works"));
        }
        check_agreement(on.device());
        let mut found = vec![0; to_index(bytes)];
        let reader = on.device().reader().expect("a reader");
        reader.read_exact_at(&mut found, buffer.address()).expect("read");
        assert!(found.iter().enumerate().all(|(at, &byte)| byte == Pattern::at(at as u64)), "{bytes}");
        on.release(Kind::Weight, buffer).expect("released");
        check_agreement(on.device());
    }
    assert_eq!(on.device().marks().staged_peak, Bytes::kib(192));
    ring.dissolve(&mut on).expect("dissolved");
    assert_eq!((on.ledger().sum(), on.device().marks().staged), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!(
        on.ledger().peak(),
        Bytes::kib(192) + whole_grains(Bytes::new(1_000_003), Bytes::from(page()))
    );
}

fn page() -> usize {
    rustix::param::page_size()
}

#[test]
fn downloads_and_fills_run_in_order() {
    let mut device = HostDevice::create(Bytes::mib(1)).expect("an arena");
    let buffer = device.allocate(Bytes::new(5000)).expect("room");
    device.fill(&buffer, 0xa5).expect("queued");
    let mut slot = device.slot(Bytes::new(4096)).expect("a slot");
    slot.as_mut().fill(7);
    device.upload(slot, Bytes::new(100), &buffer, Bytes::new(4000)).expect("queued");
    let slot = device.slot(Bytes::new(8192)).expect("a slot");
    let done = device.download(slot, Bytes::new(5000), &buffer, Bytes::ZERO).expect("queued");
    let first = device.reclaim().expect("copied").expect("the uploaded slot");
    let second = device.reclaim().expect("copied").expect("the downloaded slot");
    assert!(device.is_done(done).expect("the device works"));
    assert!(device.reclaim().expect("the device works").is_none());
    assert_eq!((first.as_ref().len(), second.as_ref().len()), (4096, 8192));
    let read = &second.as_ref()[..5000];
    assert!(read[..4000].iter().chain(&read[4100..]).all(|&byte| byte == 0xa5));
    assert!(read[4000..4100].iter().all(|&byte| byte == 7));
}

#[test]
fn capacity_is_exact_and_only_a_dense_arena_fragments() {
    let page = page() as u64;
    let mut device = HostDevice::create(Bytes::new(4 * page)).expect("an arena");
    let mut held: Vec<Buffer> = (0..4).map(|_| device.allocate(Bytes::new(page)).expect("room")).collect();
    let refused = device.allocate(Bytes::new(1)).expect_err("full");
    assert!(matches!(refused, DeviceError::NoRoom { free: Bytes::ZERO, .. }), "{refused:?}");
    // Every other page is free, so the first four pages contain no free range of two.
    device.release(held.remove(2)).expect("released");
    device.release(held.remove(0)).expect("released");
    let wide = device.allocate(Bytes::new(2 * page)).expect("a piece elsewhere");
    device.fill(&wide, 1).expect("queued");
    assert_eq!(device.marks().placed_peak, Bytes::new(4 * page));
    device.release(wide).expect("released");
    // In a dense arena, the same buffer finds no range.
    let mut dense = HostDevice::dense(Bytes::new(4 * page)).expect("an arena");
    let mut held: Vec<Buffer> = (0..4).map(|_| dense.allocate(Bytes::new(page)).expect("room")).collect();
    dense.release(held.remove(2)).expect("released");
    dense.release(held.remove(0)).expect("released");
    let refused = dense.allocate(Bytes::new(2 * page)).expect_err("in pieces");
    assert!(matches!(refused, DeviceError::NoPlace { .. }), "{refused:?}");
}

#[test]
fn arena_is_read_only_for_others_and_cannot_be_resized() {
    let mut device = HostDevice::create(Bytes::mib(1)).expect("an arena");
    let buffer = device.allocate(Bytes::kib(4)).expect("room");
    let done = device.fill(&buffer, 9).expect("queued");
    device.wait(done).expect("filled");
    let reader = device.reader().expect("a reader");
    assert!(reader.write_at(&[1], 0).is_err());
    let map = |protection, flags| {
        // SAFETY: Linux chooses the address, so no other mapping is replaced.
        unsafe { mmap(std::ptr::null_mut(), page(), protection, flags, reader.as_fd(), 0) }
    };
    assert!(map(ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).is_err());
    let mapped = map(ProtFlags::READ, MapFlags::SHARED).expect("readable");
    // SAFETY: the mapping above. Linux refuses to make it writable.
    let widened = unsafe {
        rustix::mm::mprotect(
            mapped,
            page(),
            rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
        )
    };
    assert!(widened.is_err());
    // SAFETY: one readable byte of the mapping.
    assert_eq!(unsafe { mapped.cast::<u8>().read() }, 9);
    // SAFETY: the mapping above, not used any more.
    unsafe { rustix::mm::munmap(mapped, page()) }.expect("unmapped");
    assert!(rustix::fs::ftruncate(&*device.arena, 0).is_err());
    assert!(rustix::fs::ftruncate(&*device.arena, 1 << 50).is_err());
    check_agreement(&device);
}

#[test]
fn invalid_requests_are_refused() {
    let mut device = HostDevice::create(Bytes::mib(1)).expect("an arena");
    let buffer = device.allocate(Bytes::new(100)).expect("room");
    for (bytes, at) in [(101, 0), (1, 100), (50, 51), (10, u64::MAX)] {
        let slot = device.slot(Bytes::new(4096)).expect("a slot");
        let error = device.upload(slot, Bytes::new(bytes), &buffer, Bytes::new(at));
        assert!(matches!(error, Err(DeviceError::OutOfRange { .. })), "{bytes} at {at}");
    }
    let slot = device.slot(Bytes::new(10)).expect("a slot");
    let error = device.upload(slot, Bytes::new(11), &buffer, Bytes::ZERO);
    assert!(matches!(error, Err(DeviceError::OutOfRange { .. })));
    let unknown = Buffer::new(buffer.address(), Bytes::new(50), buffer.placed());
    assert!(matches!(device.release(unknown), Err(DeviceError::Unknown { .. })));
    let mut on = Accounted::new(device);
    let mut ring = Ring::new(1, Bytes::kib(4));
    let error = ring.upload(&mut on, &mut Pattern(99), &buffer);
    assert!(matches!(error, Err(StagingError::Size { .. })));
}

#[test]
fn failed_copy_poisons_the_device() {
    let arena = HostDevice::create(Bytes::mib(1)).expect("an arena");
    let unwritable = arena.reader().expect("a reader");
    let mut device = HostDevice::from_arena(unwritable, Bytes::mib(1), Bytes::mib(1)).expect("an arena");
    let buffer = device.allocate(Bytes::kib(4)).expect("room");
    let slot = device.slot(Bytes::kib(4)).expect("a slot");
    let event = device.upload(slot, Bytes::kib(4), &buffer, Bytes::ZERO).expect("queued");
    assert!(matches!(device.wait(event), Err(DeviceError::Poisoned { .. })));
    assert!(matches!(device.is_done(event), Err(DeviceError::Poisoned { .. })));
    assert!(matches!(device.fill(&buffer, 1), Err(DeviceError::Poisoned { .. })));
    assert!(matches!(device.reclaim(), Err(DeviceError::Poisoned { .. })));
    assert!(matches!(device.allocate(Bytes::new(1)), Err(DeviceError::Poisoned { .. })));
}
