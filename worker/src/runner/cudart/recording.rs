//! Records what host code does with the CUDA runtime, instead of doing it.
//!
//! Each tensor and each allocation gets a range of addresses that no memory has. They are so far apart that every
//! address that lies at a multiple of 8 in a parameter can be attributed to one of them. Fills and copies are recorded
//! as launches of our own kernels, which `kernels` returns as PTX.

use std::fmt::Write as _;

use opt_shared::device::CardShape;
use opt_shared::launch::{Address, Pointer};

use super::super::recording_format::{
    MAX_ALLOCATION, MAX_STEPS, MAX_WORKSPACES, RecordedCall, RecordedParam, RecordedStep,
};
use super::report::{CallErrors, UNSUPPORTED};
use super::{DEVICE_NAME, INVALID_CONFIGURATION, INVALID_VALUE, OUT_OF_MEMORY, Runtime, properties, runtime};

/// A range of addresses for the buffers of a recording.
#[derive(Clone, Copy, Debug)]
pub(in crate::runner) struct Places {
    /// The first address. No memory of the host has addresses from here on.
    first: u64,
    /// The distance between two buffers' ranges. A buffer begins in the middle of its range.
    span: u64,
}

/// Each call is recorded in both places. What differs between the two recordings is an address, and what does not is
/// data, even if it looks like an address. The spans are different, so the distance between two buffers differs too.
pub(in crate::runner) const PLACES: [Places; 2] = [
    Places { first: 0x5ab1_0000_0000_0000, span: 1 << 40 },
    Places { first: 0x63d7_0000_0000_0000, span: 3 << 39 },
];
/// The most bytes that host code can copy to the device in one call. They become parameters of launches.
const MAX_UPLOAD: usize = 4096;
/// The number of bytes that one launch stores, and the number of its parameters that contain them.
const STORED: usize = 128;
const WORDS: usize = STORED / 8;
const THREADS: u32 = 256;
/// The largest number of blocks that fill or copy memory.
const MAX_BLOCKS: u64 = 4096;

/// Kernels that handle single bytes, and kernels that handle units of 16 bytes and then the rest.
const FILL: &str = "opt_fill";
const COPY: &str = "opt_copy";
const FILL_UNITS: &str = "opt_fill_units";
const COPY_UNITS: &str = "opt_copy_units";
/// The size of a unit, in bytes. One thread handles a unit with one access.
const UNIT: u64 = 16;
const STORE: &str = "opt_store";

/// A tensor or an allocation.
struct Buffer {
    pointer: Pointer,
    start: u64,
    is_freed: bool,
}

/// The operations of one call.
pub(super) struct Recording {
    /// The number of buffers of earlier recordings. Their addresses are not used again, so an address that host code has
    /// kept from an earlier call stands for nothing.
    earlier: usize,
    places: Places,
    buffers: Vec<Buffer>,
    call: RecordedCall,
}

impl Recording {
    fn new(earlier: usize, places: Places) -> Self {
        Self { earlier, places, buffers: Vec::new(), call: RecordedCall::default() }
    }

    fn add(&mut self, pointer: Pointer, phase: u64) -> u64 {
        let number = self.earlier + self.buffers.len();
        let Places { first, span } = self.places;
        let start = first + number as u64 * span + span / 2 + phase;
        self.buffers.push(Buffer { pointer, start, is_freed: false });
        start
    }

    /// Returns the buffer to which an address belongs, and its distance from the buffer's start.
    fn find(&self, address: u64) -> Option<(&Buffer, i64)> {
        let at = usize::try_from(address.checked_sub(self.places.first)? / self.places.span).ok()?;
        let buffer = self.buffers.get(at.checked_sub(self.earlier)?)?;
        Some((buffer, address.wrapping_sub(buffer.start).cast_signed()))
    }

    /// Returns a parameter with the addresses in it.
    fn param(&self, bytes: Vec<u8>) -> RecordedParam {
        let words = bytes.as_chunks::<8>().0.iter().enumerate();
        let addresses = words.filter_map(|(word, bytes)| {
            let (buffer, offset) = self.find(u64::from_le_bytes(*bytes))?;
            Some(Address { at: 8 * word, pointer: buffer.pointer, offset })
        });
        RecordedParam { addresses: addresses.collect(), bytes }
    }

    /// Returns the address of freed memory of about this size, which is allocated again. The launches of a call run in
    /// order, so earlier ones no longer use it. Much larger memory is not used, because it may only have been a trial.
    fn reuse(&mut self, bytes: u64) -> Option<u64> {
        let sizes = &self.call.workspaces;
        let is_enough = |buffer: &Buffer| match buffer.pointer {
            Pointer::Workspace(number) => {
                sizes.get(number).is_some_and(|&size| (size / 2..=size).contains(&bytes))
            }
            _ => false,
        };
        let buffer = self.buffers.iter_mut().find(|buffer| buffer.is_freed && is_enough(buffer))?;
        buffer.is_freed = false;
        Some(buffer.start)
    }

    fn push(
        &mut self,
        (image, symbol): (usize, &str),
        (grid, block): ([u32; 3], [u32; 3]),
        shared_mem: u32,
        params: Vec<Vec<u8>>,
    ) {
        let params = params.into_iter().map(|bytes| self.param(bytes)).collect();
        let symbol = symbol.to_owned();
        self.call.steps.push(RecordedStep { image, symbol, grid, block, shared_mem, params });
    }
}

/// Starts to record what a library does while it is loaded. `card` is the card on which its launches will run.
pub(in crate::runner) fn begin_loading(card: Option<CardShape>) {
    runtime().card = card.map(|card| card.capability.number());
    if let Some(card) = card {
        properties::describe(card);
    }
    begin(PLACES[0]);
}

/// Ends the recording of a load, and loads the images, so that calls need not do this. Returns why no call can be
/// recorded; `None` if calls can be recorded.
pub(in crate::runner) fn end_loading() -> Option<String> {
    let runtime = &mut *runtime();
    let failed = std::mem::take(&mut runtime.errors).text(true);
    let did_something =
        runtime.recording.as_ref().is_some_and(|it| !it.buffers.is_empty() || !it.call.steps.is_empty());
    if failed.is_some() || did_something {
        return Some(format!(
            "{UNSUPPORTED}the library uses the device while it is loaded, which {DEVICE_NAME} does not record"
        ));
    }
    for image in 0..runtime.images.len() {
        // An error is reported by the first call that needs the image.
        let _ = runtime.module(image);
    }
    runtime.errors = CallErrors::default();
    runtime.last = 0;
    None
}

/// Starts to record a call. What was recorded before is forgotten.
pub(in crate::runner) fn begin(places: Places) {
    let runtime = &mut *runtime();
    let earlier = runtime.recording.take().map_or(0, |it| it.earlier + it.buffers.len());
    runtime.recording = Some(Recording::new(earlier, places));
}

/// Returns the address that stands for a tensor. Its first byte has this phase.
pub(in crate::runner) fn show(pointer: Pointer, phase: u64) -> *mut u8 {
    let address = runtime().recording.as_mut().map(|recording| recording.add(pointer, phase));
    super::exports::pointer(address.unwrap_or(0)).cast()
}

/// Returns what was recorded.
pub(in crate::runner) fn take() -> RecordedCall {
    runtime().recording.take().map_or_else(RecordedCall::default, |recording| recording.call)
}

/// Returns the machine code or PTX of each image that the candidate's library has registered, followed by our own
/// kernels. An image is empty if the library has it in no usable form.
pub(in crate::runner) fn images() -> Vec<Vec<u8>> {
    let runtime = runtime();
    let of_library = runtime.images.iter().map(|image| match (&image.machine_code, &image.text) {
        (Some(code), _) => code.clone(),
        (None, Ok(text)) => text.clone().into_bytes(),
        (None, Err(_)) => Vec::new(),
    });
    of_library.chain([kernels().into_bytes()]).collect()
}

impl Runtime {
    /// Records a launch. Returns an error code of the runtime.
    pub(super) fn record_launch(
        &mut self,
        (image, name): (usize, &str),
        (grid, block): ([u32; 3], [u32; 3]),
        shared: u64,
        params: Vec<Vec<u8>>,
        max_threads: u32,
    ) -> u32 {
        let threads: u64 = block.iter().map(|&extent| u64::from(extent)).product();
        if grid.contains(&0) || threads == 0 || u64::from(max_threads) < threads {
            let what = format!(
                "a launch of `{name}` has the grid {grid:?} and the block {block:?}; a block must have 1 to {max_threads} \
                 threads, and a grid at least one block"
            );
            return self.refused(INVALID_CONFIGURATION, what);
        }
        let shared = u32::try_from(shared).unwrap_or(u32::MAX);
        self.record((image, name), (grid, block), shared, params)
    }

    fn record(
        &mut self,
        kernel: (usize, &str),
        shape: ([u32; 3], [u32; 3]),
        shared: u32,
        params: Vec<Vec<u8>>,
    ) -> u32 {
        match &mut self.recording {
            Some(recording) if recording.call.steps.len() < MAX_STEPS => {
                recording.push(kernel, shape, shared, params);
                0
            }
            _ => self.unsupported(&format!(
                "a call makes more than {MAX_STEPS} launches, fills and copies, and the emulated device records no more"
            )),
        }
    }

    /// Records a launch of one of our own kernels, with about as many threads as there are items.
    fn record_own(&mut self, symbol: &str, items: u64, params: &[u64]) -> u32 {
        let blocks = items.div_ceil(THREADS.into()).clamp(1, MAX_BLOCKS);
        let grid = [u32::try_from(blocks).unwrap_or(1), 1, 1];
        let params = params.iter().map(|param| param.to_le_bytes().to_vec()).collect();
        self.record((self.images.len(), symbol), (grid, [THREADS, 1, 1]), 0, params)
    }

    /// Returns the address of a new buffer, or an error code.
    pub(super) fn record_allocation(&mut self, bytes: u64) -> Result<u64, u32> {
        if MAX_ALLOCATION < bytes {
            let what = format!("{bytes} bytes were to be allocated, which is more than any device has");
            return Err(self.refused(OUT_OF_MEMORY, what));
        }
        if let Some(address) = self.recording.as_mut().and_then(|recording| recording.reuse(bytes)) {
            return Ok(address);
        }
        match &mut self.recording {
            Some(recording) if recording.call.workspaces.len() < MAX_WORKSPACES => {
                let pointer = Pointer::Workspace(recording.call.workspaces.len());
                recording.call.workspaces.push(bytes);
                Ok(recording.add(pointer, 0))
            }
            _ => Err(self.unsupported(&format!(
                "a call makes more than {MAX_WORKSPACES} allocations, and the emulated device records no more"
            ))),
        }
    }

    /// Records nothing: a buffer lives until its call ends.
    pub(super) fn record_free(&mut self, address: u64) -> u32 {
        let recording = self.recording.as_mut();
        let buffer = recording.and_then(|it| it.buffers.iter_mut().find(|buffer| buffer.start == address));
        match buffer.filter(|buffer| !buffer.is_freed && matches!(buffer.pointer, Pointer::Workspace(_))) {
            Some(buffer) => {
                buffer.is_freed = true;
                0
            }
            None => self.refused(
                INVALID_VALUE,
                "the freed memory was never allocated, or was already freed".to_owned(),
            ),
        }
    }

    pub(super) fn record_fill(&mut self, at: u64, byte: u8, bytes: u64) -> u32 {
        if bytes == 0 {
            return 0;
        }
        if !self.is_recorded_address(at) {
            return self.refused(INVALID_VALUE, "memory was set that is not on the device".to_owned());
        }
        let word = u64::from_le_bytes([byte; 8]);
        if at.is_multiple_of(UNIT) {
            self.record_own(FILL_UNITS, bytes.div_ceil(UNIT), &[at, bytes, word])
        } else {
            self.record_own(FILL, bytes, &[at, bytes, word])
        }
    }

    pub(super) fn record_copy(&mut self, to: u64, from: u64, bytes: u64) -> u32 {
        if !self.is_recorded_address(to) || !self.is_recorded_address(from) {
            return self.refused(INVALID_VALUE, "a copy has an address that is not on the device".to_owned());
        }
        if to.is_multiple_of(UNIT) && from.is_multiple_of(UNIT) {
            self.record_own(COPY_UNITS, bytes.div_ceil(UNIT), &[to, from, bytes])
        } else {
            self.record_own(COPY, bytes, &[to, from, bytes])
        }
    }

    /// Records a copy of host memory, whose bytes become part of the recording.
    pub(super) fn record_upload(&mut self, to: u64, source: &[u8]) -> u32 {
        if MAX_UPLOAD < source.len() {
            return self.unsupported(&format!(
                "a call copies {} bytes to the device, and the emulated device records at most {MAX_UPLOAD}",
                source.len()
            ));
        }
        if !self.is_recorded_address(to) {
            return self.refused(INVALID_VALUE, "a copy has an address that is not on the device".to_owned());
        }
        for (part, bytes) in source.chunks(STORED).enumerate() {
            let mut words = [0; STORED];
            words[..bytes.len()].copy_from_slice(bytes);
            let mut params = vec![to + (part * STORED) as u64, bytes.len() as u64];
            params.extend(words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)));
            let code = self.record_own(STORE, 1, &params);
            if code != 0 {
                return code;
            }
        }
        0
    }

    pub(super) fn is_recorded_address(&self, address: u64) -> bool {
        self.recording.as_ref().is_some_and(|recording| recording.find(address).is_some())
    }
}

/// The PTX of the kernels that fill memory, copy it, and store bytes that were passed as parameters.
fn kernels() -> String {
    let mut text = String::from(
        "// Kernels for the fills and copies that host code has ordered.\n\
         .version 6.0\n.target sm_50\n.address_size 64\n",
    );
    // Thread `t` of `n` handles the items `t`, `t + n`, `t + 2 n` and so on. Then `%rd4` is the number of the thread, and
    // `%rd5` is `n`. The kernels have three parameters: `%rd1`, `%rd2` and `%rd3`.
    let each = |text: &mut String, name: &str, body: &str| {
        let _ = write!(
            text,
            "\n.visible .entry {name}(.param .u64 {name}_0, .param .u64 {name}_1, .param .u64 {name}_2)\n{{\n\
             .reg .pred %p<2>;\n.reg .b16 %h<2>;\n.reg .b32 %r<5>;\n.reg .b64 %rd<13>;\n\
             ld.param.u64 %rd1, [{name}_0];\nld.param.u64 %rd2, [{name}_1];\nld.param.u64 %rd3, [{name}_2];\n\
             cvta.to.global.u64 %rd1, %rd1;\n\
             mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\nmov.u32 %r4, %nctaid.x;\n\
             mul.wide.u32 %rd4, %r1, %r2;\ncvt.u64.u32 %rd5, %r3;\nadd.s64 %rd4, %rd4, %rd5;\nmul.wide.u32 %rd5, %r4, %r2;\n\
             {body}\nret;\n}}\n"
        );
    };
    // Handles the bytes from `%rd6` up to `%rd7`.
    let fill_bytes = "cvt.u16.u64 %h1, %rd3;\nadd.s64 %rd6, %rd6, %rd4;\nBYTES:\nsetp.ge.u64 %p1, %rd6, %rd7;\n@%p1 bra DONE;\n\
                      add.s64 %rd8, %rd1, %rd6;\nst.global.u8 [%rd8], %h1;\nadd.s64 %rd6, %rd6, %rd5;\nbra BYTES;\nDONE:";
    let copy_bytes = "add.s64 %rd6, %rd6, %rd4;\nBYTES:\nsetp.ge.u64 %p1, %rd6, %rd7;\n@%p1 bra DONE;\n\
                      add.s64 %rd8, %rd2, %rd6;\nld.global.u8 %h1, [%rd8];\nadd.s64 %rd8, %rd1, %rd6;\nst.global.u8 [%rd8], %h1;\n\
                      add.s64 %rd6, %rd6, %rd5;\nbra BYTES;\nDONE:";
    // Handles the units of the first `%rd7` bytes, and leaves the offset of the rest in `%rd6`.
    let units = |body: &str| {
        format!(
            "shr.u64 %rd6, %rd7, 4;\nmov.u64 %rd9, %rd4;\nUNITS:\nsetp.ge.u64 %p1, %rd9, %rd6;\n@%p1 bra REST;\n\
             shl.b64 %rd10, %rd9, 4;\n{body}\nadd.s64 %rd9, %rd9, %rd5;\nbra UNITS;\nREST:\nshl.b64 %rd6, %rd6, 4;\n"
        )
    };
    let fill_units = units("add.s64 %rd8, %rd1, %rd10;\nst.global.v2.u64 [%rd8], {%rd3, %rd3};");
    let copy_units = units(
        "add.s64 %rd8, %rd2, %rd10;\nld.global.v2.u64 {%rd11, %rd12}, [%rd8];\nadd.s64 %rd8, %rd1, %rd10;\n\
         st.global.v2.u64 [%rd8], {%rd11, %rd12};",
    );
    each(&mut text, FILL, &format!("mov.u64 %rd7, %rd2;\nmov.u64 %rd6, 0;\n{fill_bytes}"));
    each(&mut text, FILL_UNITS, &format!("mov.u64 %rd7, %rd2;\n{fill_units}{fill_bytes}"));
    let copy = "cvta.to.global.u64 %rd2, %rd2;\nmov.u64 %rd7, %rd3;\n";
    each(&mut text, COPY, &format!("{copy}mov.u64 %rd6, 0;\n{copy_bytes}"));
    each(&mut text, COPY_UNITS, &format!("{copy}{copy_units}{copy_bytes}"));
    let words = (0..WORDS).map(|word| format!(", .param .u64 {STORE}_{word}")).collect::<String>();
    let _ = write!(
        text,
        "\n.visible .entry {STORE}(.param .u64 {STORE}_to, .param .u64 {STORE}_bytes{words})\n{{\n\
         .reg .pred %p<3>;\n.reg .b16 %h<2>;\n.reg .b32 %r<2>;\n.reg .b64 %rd<5>;\n\
         mov.u32 %r1, %tid.x;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra DONE;\n\
         ld.param.u64 %rd1, [{STORE}_to];\nld.param.u64 %rd2, [{STORE}_bytes];\ncvta.to.global.u64 %rd1, %rd1;\n"
    );
    for byte in 0..STORED {
        if byte % 8 == 0 {
            let _ = writeln!(text, "ld.param.u64 %rd3, [{STORE}_{}];", byte / 8);
        }
        let _ = writeln!(
            text,
            "setp.gt.u64 %p2, %rd2, {byte};\nshr.u64 %rd4, %rd3, {};\ncvt.u16.u64 %h1, %rd4;\n@%p2 st.global.u8 [%rd1+{byte}], %h1;",
            8 * (byte % 8)
        );
    }
    text.push_str("DONE:\nret;\n}\n");
    text
}

#[cfg(test)]
mod tests {
    use opt_emulator::{Config, Device, Launch};

    use super::*;

    fn launch(device: &mut Device, text: &str, symbol: &str, params: &[u64]) {
        let module = device.load(text).expect("PTX");
        let function = module.function(symbol).expect("a kernel");
        let params = params.iter().map(|it| it.to_le_bytes().to_vec()).collect();
        let launch = Launch {
            grid: [2, 1, 1],
            block: [THREADS, 1, 1],
            shared_bytes: 0,
            params,
            limit: opt_emulator::Limit::default(),
        };
        device.launch(&function, &launch).expect("launched");
    }

    #[test]
    fn own_kernels_fill_copy_and_store() {
        let text = kernels();
        let mut device = Device::new(Config { memory: 1 << 20, threads: 1, ..Config::default() });
        let (from, to) = (device.alloc(2000).expect("room"), device.alloc(2000).expect("room"));
        launch(&mut device, &text, FILL, &[from, 2000, 0x17]);
        launch(&mut device, &text, FILL, &[to, 2000, 0]);
        launch(&mut device, &text, COPY, &[to + 3, from, 1000]);
        let mut found = vec![0; 2000];
        device.read(to, &mut found).expect("read");
        assert!(found[..3].iter().all(|&byte| byte == 0) && found[3..1003].iter().all(|&byte| byte == 0x17));
        assert!(found[1003..].iter().all(|&byte| byte == 0));
        for (bytes, fill, copy) in
            [(1000, FILL, COPY), (1000, FILL_UNITS, COPY_UNITS), (7, FILL_UNITS, COPY_UNITS)]
        {
            let word = u64::from_le_bytes([0x29; 8]);
            launch(&mut device, &text, FILL, &[from, 2000, 0]);
            launch(&mut device, &text, FILL, &[to, 2000, 0]);
            launch(&mut device, &text, fill, &[from + 16, bytes, word]);
            launch(&mut device, &text, copy, &[to + 32, from + 16, bytes + 16]);
            device.read(to, &mut found).expect("read");
            let end = 32 + usize::try_from(bytes).expect("small");
            assert!(found[32..end].iter().all(|&byte| byte == 0x29), "{fill}, {bytes}");
            assert!(found[..32].iter().chain(&found[end..]).all(|&byte| byte == 0), "{copy}, {bytes}");
        }
        for bytes in [1_u8, 8, 77, 128] {
            let source: Vec<u8> = (1..=128).collect();
            let words = source.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            launch(&mut device, &text, FILL, &[to, 2000, 0]);
            let params: Vec<u64> = [to + 5, bytes.into()].into_iter().chain(words).collect();
            launch(&mut device, &text, STORE, &params);
            device.read(to, &mut found).expect("read");
            let stored = usize::from(bytes);
            assert_eq!(found[5..5 + stored], source[..stored]);
            assert!(found[5 + stored..].iter().all(|&byte| byte == 0), "{bytes}");
        }
    }

    #[test]
    fn addresses_in_parameters_are_attributed_to_their_buffers() {
        let mut recording = Recording::new(0, PLACES[0]);
        let input = recording.add(Pointer::Argument(2), 12);
        let output = recording.add(Pointer::Output(0), 0);
        assert_eq!(input % 64, 12);
        let mut bytes = Vec::new();
        for word in [7, input - 4, output + 100, 0x7fff_1234_5678_0000, output] {
            bytes.extend(u64::to_le_bytes(word));
        }
        let param = recording.param(bytes[..36].to_vec());
        let expected = [(8, Pointer::Argument(2), -4), (16, Pointer::Output(0), 100)];
        let found: Vec<_> = param.addresses.iter().map(|it| (it.at, it.pointer, it.offset)).collect();
        assert_eq!(found, expected, "the last word is cut off");
        assert!(recording.param(2.0_f64.to_le_bytes().to_vec()).addresses.is_empty());
    }
}
