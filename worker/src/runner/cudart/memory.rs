//! Manages device memory: maps inputs and outputs into it, and copies from and to it.

use super::{INVALID_VALUE, Runtime, runtime};

/// The device address of an input equals its captured address modulo this number of bytes.
const INPUT_PHASE: u64 = 64;
/// The device address of an output equals its host address modulo this number of bytes. Apart from that, outputs are
/// aligned as on a card.
const OUTPUT_PHASE: u64 = 4;

/// The kinds of copies (`cudaMemcpyKind`).
const HOST_TO_HOST: i32 = 0;
const TO_DEVICE: i32 = 1;
const TO_HOST: i32 = 2;
const ON_DEVICE: i32 = 3;
const BY_ADDRESS: i32 = 4;

/// Returns the device address of an input. A kernel that stores to an input causes a fault.
pub(in crate::runner) fn show_input(data: *mut u8, bytes: usize, index: usize) -> *mut u8 {
    runtime().show(data, bytes, INPUT_PHASE, true, || format!("input {index}"))
}

/// Returns the device address of a slot of an output.
pub(in crate::runner) fn show_output(data: *mut u8, bytes: usize, index: usize) -> *mut u8 {
    runtime().show(data, bytes, OUTPUT_PHASE, false, || format!("output {index}"))
}

/// Reads bytes of the device's memory. The error says why they cannot be read.
pub(in crate::runner) fn read(address: u64, bytes: &mut [u8]) -> Result<(), String> {
    runtime().device.read(address, bytes).map_err(|fault| fault.to_string())
}

impl Runtime {
    /// Returns the device address of these bytes, or null if there are none or the device cannot map them.
    fn show(
        &mut self,
        data: *mut u8,
        bytes: usize,
        phase: u64,
        read_only: bool,
        name: impl FnOnce() -> String,
    ) -> *mut u8 {
        if data.is_null() || bytes == 0 {
            return std::ptr::null_mut();
        }
        let key = (data.addr(), bytes);
        let known = self.mapped.get(&key).copied();
        let address = known.or_else(|| {
            // SAFETY: inputs and outputs lie in pages of this process that stay mapped as long as the process lives.
            // The candidate runs in the thread that makes the device's calls. If it writes from other threads, only
            // this process is harmed.
            let address = unsafe { self.device.map(data, bytes as u64, phase, read_only) }.ok()?;
            self.mapped.insert(key, address);
            self.names.insert(address, (bytes as u64, name()));
            Some(address)
        });
        let address = address.and_then(|address| usize::try_from(address).ok());
        address.map_or(std::ptr::null_mut(), std::ptr::without_provenance_mut)
    }

    /// Copies bytes within or between the memory of the host and the device. `kind` (a `cudaMemcpyKind`) selects which.
    ///
    /// # Safety
    /// If `from` is a host address, `bytes` bytes must be readable there. If `to` is one, as many must be writable
    /// there.
    pub(super) unsafe fn copy(&mut self, to: usize, from: usize, bytes: usize, kind: i32) -> u32 {
        const WHAT: &str = "in a copy";
        if bytes == 0 {
            return 0;
        }
        if isize::try_from(bytes).is_err() {
            return self.refused(INVALID_VALUE, format!("a copy has {bytes} bytes (is the size negative?)"));
        }
        let (into_device, from_device) = match kind {
            HOST_TO_HOST => (false, false),
            TO_DEVICE => (true, false),
            TO_HOST => (false, true),
            ON_DEVICE => (true, true),
            BY_ADDRESS => (self.is_on_device(to), self.is_on_device(from)),
            _ => {
                return self.refused(
                    INVALID_VALUE,
                    format!("a copy has the kind {kind}, which is no cudaMemcpyKind"),
                );
            }
        };
        let source = std::ptr::with_exposed_provenance::<u8>(from);
        let target = std::ptr::with_exposed_provenance_mut::<u8>(to);
        if self.recording.is_some() && (into_device || from_device) {
            return match (into_device, from_device) {
                (true, true) => self.record_copy(to as u64, from as u64, bytes as u64),
                // SAFETY: the caller's obligation.
                (true, false) => self.record_upload(to as u64, unsafe { std::slice::from_raw_parts(source, bytes) }),
                _ => self.unsupported(
                    "host code copies device memory to the host, and the emulated device records launches before the device holds any data",
                ),
            };
        }
        let result = match (into_device, from_device) {
            (false, false) => {
                // SAFETY: the caller's obligation. `copy` allows overlaps.
                unsafe { std::ptr::copy(source, target, bytes) };
                Ok(())
            }
            (true, false) => {
                // SAFETY: the caller's obligation.
                let source = unsafe { std::slice::from_raw_parts(source, bytes) };
                self.device.write(to as u64, source)
            }
            (false, true) => {
                // SAFETY: the caller's obligation.
                let target = unsafe { std::slice::from_raw_parts_mut(target, bytes) };
                self.device.read(from as u64, target)
            }
            (true, true) => self.device.copy(to as u64, from as u64, bytes as u64),
        };
        self.code_of(result, WHAT)
    }

    pub(super) fn is_on_device(&mut self, address: usize) -> bool {
        if self.recording.is_some() {
            return self.is_recorded_address(address as u64);
        }
        self.device.sticky().is_none() && self.device.read(address as u64, &mut [0]).is_ok()
    }
}
