//! Finds the PTX in a fat binary, which is the container in which nvcc embeds device code in a library.

use std::ffi::c_void;

/// The architecture of the emulated device, in the notation of fat binaries.
const DEVICE: u32 = 80;
/// The first four bytes of the structure that refers to a fat binary, and below it those of the fat binary itself.
const WRAPPER_MAGIC: u32 = 0x4662_43b1;
const MAGIC: u32 = 0xba55_ed50;
/// The kind of an entry that contains PTX.
const KIND_OF_PTX: u16 = 1;
/// The kind of an entry that contains machine code, as an ELF file.
const KIND_OF_MACHINE_CODE: u16 = 2;
const ELF: &[u8] = b"\x7fELF";
/// The offsets of fields in the header of an entry, in bytes.
const HEADER_BYTES_AT: usize = 4;
const PAYLOAD_BYTES_AT: usize = 8;
const ARCHITECTURE_AT: usize = 28;
/// The smallest size of an entry's header, in bytes.
const MIN_HEADER_BYTES: usize = 48;

/// The structure that the constructor of a candidate's library passes to `__cudaRegisterFatBinary`.
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    data: *const u8,
    name: *const c_void,
}

/// The device code of a library.
pub(super) struct DeviceCode {
    /// The PTX for the newest architecture that the device can run, or the reason why there is no such PTX.
    pub(super) text: Result<String, String>,
    /// The machine code for the device, if the library has it.
    pub(super) machine_code: Option<Vec<u8>>,
}

/// Returns the device code for a card of this architecture or, if it is `None`, for the emulated device.
///
/// # Safety
/// `wrapper` must be the pointer that nvcc's code passes to `__cudaRegisterFatBinary`.
pub(super) unsafe fn device_code(wrapper: *const c_void, card: Option<u32>) -> DeviceCode {
    // SAFETY: the caller's obligation; the magic numbers are checked before anything that follows them is read.
    let bytes = unsafe {
        let wrapper = &*wrapper.cast::<Wrapper>();
        if wrapper.magic != WRAPPER_MAGIC || wrapper.data.cast::<u32>().read_unaligned() != MAGIC {
            let text = Err("the library's device code has an unknown format".to_owned());
            return DeviceCode { text, machine_code: None };
        }
        let header = usize::from(wrapper.data.add(6).cast::<u16>().read_unaligned());
        let length = wrapper.data.add(8).cast::<u64>().read_unaligned();
        let length = usize::try_from(length).unwrap_or(0);
        std::slice::from_raw_parts(wrapper.data.add(header), length)
    };
    DeviceCode {
        // The emulated device understands the PTX for its own architecture best.
        text: ptx_of(bytes, DEVICE).or_else(|error| card.map_or(Err(error), |card| ptx_of(bytes, card))),
        machine_code: card.and_then(|card| machine_code_of(bytes, card)),
    }
}

fn entries(mut bytes: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    std::iter::from_fn(move || {
        let entry = Entry::first(bytes)?;
        bytes = entry.rest;
        Some(entry)
    })
}

fn machine_code_of(bytes: &[u8], architecture: u32) -> Option<Vec<u8>> {
    let is_for = |entry: &Entry<'_>| {
        entry.kind == KIND_OF_MACHINE_CODE
            && entry.architecture == architecture
            && entry.payload.starts_with(ELF)
    };
    entries(bytes).find(is_for).map(|entry| entry.payload.to_vec())
}

/// Returns the PTX for the newest architecture, up to this one.
fn ptx_of(bytes: &[u8], newest: u32) -> Result<String, String> {
    let is_fit = |entry: &Entry<'_>| entry.kind == KIND_OF_PTX && entry.architecture <= newest;
    // Of several entries for one architecture, the first counts.
    let best = entries(bytes)
        .filter(is_fit)
        .reduce(|best, entry| if best.architecture < entry.architecture { entry } else { best });
    let Some(Entry { payload, .. }) = best else {
        return Err(format!(
            "the library has no PTX that the emulated device runs (build for the device's architecture, `compute_{DEVICE}`)"
        ));
    };
    let end = payload.iter().position(|byte| *byte == 0).unwrap_or(payload.len());
    match std::str::from_utf8(&payload[..end]) {
        Ok(text) if text.contains(".version") => Ok(text.to_owned()),
        _ => Err("the library's PTX is compressed (build with `--no-compress`)".to_owned()),
    }
}

/// An image in a fat binary, and the bytes that follow it.
struct Entry<'a> {
    kind: u16,
    architecture: u32,
    payload: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Entry<'a> {
    fn first(bytes: &'a [u8]) -> Option<Self> {
        let head = bytes.get(..MIN_HEADER_BYTES)?;
        let word = |at: usize| head[at..].first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let long = head[PAYLOAD_BYTES_AT..].first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let header =
            usize::try_from(word(HEADER_BYTES_AT)).ok().filter(|bytes| MIN_HEADER_BYTES <= *bytes)?;
        let end = header.checked_add(usize::try_from(long).ok()?)?;
        Some(Self {
            kind: u16::from_le_bytes([head[0], head[1]]),
            architecture: word(ARCHITECTURE_AT),
            payload: bytes.get(header..end)?,
            rest: &bytes[end..],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: u16, architecture: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..2].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&64_u32.to_le_bytes());
        bytes[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        bytes[28..32].copy_from_slice(&architecture.to_le_bytes());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn newest_ptx_that_the_device_runs_is_found() {
        let all = [
            entry(2, 80, b"machine code"),
            entry(1, 75, b".version 1\0"),
            entry(1, 80, b".version 2\0\0"),
            entry(1, 90, b".version 3\0"),
        ];
        assert_eq!(ptx_of(&all.concat(), DEVICE), Ok(".version 2".to_owned()));
        assert!(
            ptx_of(&all[3], DEVICE).expect_err("too new").contains("no PTX that the emulated device runs")
        );
        assert!(ptx_of(&entry(1, 80, b"\x01\x02"), DEVICE).expect_err("no text").contains("is compressed"));
        assert_eq!(ptx_of(&all.concat(), 90), Ok(".version 3\0".trim_end_matches('\0').to_owned()));
        // The first case has a length beyond the end, and the second has a header that is too short.
        let mut cut = entry(1, 80, b".version 2\0");
        cut.truncate(70);
        assert!(ptx_of(&cut, DEVICE).is_err());
        assert!(ptx_of(&[0; 200], DEVICE).is_err());
    }

    #[test]
    fn machine_code_is_found_for_its_architecture_only() {
        let all = [
            entry(1, 80, b".version 1\0"),
            entry(2, 80, b"\x7fELF80"),
            entry(2, 90, b"\x7fELF90"),
            entry(2, 86, b"?"),
        ];
        assert_eq!(machine_code_of(&all.concat(), 90).as_deref(), Some(&b"\x7fELF90"[..]));
        assert_eq!(machine_code_of(&all.concat(), 89), None);
        assert_eq!(machine_code_of(&all.concat(), 86), None, "it is compressed");
    }
}
