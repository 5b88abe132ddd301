//! Support for the tests: buffers of numbers in a format, and launches of kernels by name.

use half::{bf16, f16};
use opt_emulator::{Config, Device, Fault, Launch, Limit, Module, Summary};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Format {
    F16,
    Bf16,
    F32,
    F64,
    I32,
    I64,
}

/// The floating-point formats that many kernels are compiled for: suffix of the name, format, and tolerance.
pub const FLOAT_FORMATS: [(&str, Format, f64); 3] =
    [("f32", Format::F32, 2e-6), ("f16", Format::F16, 1e-3), ("bf16", Format::Bf16, 8e-3)];

impl Format {
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    fn encode(self, value: f64) -> Vec<u8> {
        match self {
            Self::F16 => f16::from_f32(sticky(value)).to_le_bytes().to_vec(),
            Self::Bf16 => bf16::from_f32(sticky(value)).to_le_bytes().to_vec(),
            Self::F32 => single(value).to_le_bytes().to_vec(),
            Self::F64 => value.to_le_bytes().to_vec(),
            Self::I32 => i32::try_from(whole(value)).expect("a small number").to_le_bytes().to_vec(),
            Self::I64 => whole(value).to_le_bytes().to_vec(),
        }
    }

    fn decode(self, bytes: &[u8]) -> f64 {
        let four = || bytes.try_into().expect("four bytes");
        match self {
            Self::F16 => f16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f64(),
            Self::Bf16 => bf16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f64(),
            Self::F32 => f64::from(f32::from_le_bytes(four())),
            Self::F64 => f64::from_le_bytes(bytes.try_into().expect("eight bytes")),
            Self::I32 => f64::from(i32::from_le_bytes(four())),
            Self::I64 => panic!("numbers of 64 bits are read as bytes"),
        }
    }

    /// The value after rounding to this format.
    pub fn rounded(self, value: f64) -> f64 {
        self.decode(&self.encode(value))
    }
}

/// Returns `value` if it is an `f32`. Otherwise, returns the one of its two `f32` neighbours whose last bit is set. The
/// result can be rounded to a half as if it were exact, whereas `f16::from_f64` may round twice.
fn sticky(value: f64) -> f32 {
    let nearest = single(value);
    let is_even = nearest.to_bits().is_multiple_of(2);
    if is_even && value < f64::from(nearest) {
        nearest.next_down()
    } else if is_even && f64::from(nearest) < value {
        nearest.next_up()
    } else {
        nearest
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a test's number becomes one of 32 bits")]
pub fn single(value: f64) -> f32 {
    value as f32
}

#[expect(clippy::cast_possible_truncation, reason = "a test's number is whole and small")]
pub fn whole(value: f64) -> i64 {
    value as i64
}

#[expect(clippy::cast_precision_loss, reason = "a test's numbers are small")]
pub fn real(value: usize) -> f64 {
    value as f64
}

/// Pseudo-random numbers between -`scale` and `scale`, the same in every run.
pub fn numbers(count: usize, scale: f64, format: Format) -> Vec<f64> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1_u32 << 23) - 1.0
    };
    (0..count).map(|_| format.rounded(next() * scale)).collect()
}

pub struct Bench {
    pub device: Device,
    module: Module,
}

/// An argument of a kernel.
pub enum Arg {
    Address(u64),
    I32(i32),
    I64(i64),
    F32(f32),
    Bytes(Vec<u8>),
}

impl Arg {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Address(value) => value.to_le_bytes().to_vec(),
            Self::I32(value) => value.to_le_bytes().to_vec(),
            Self::I64(value) => value.to_le_bytes().to_vec(),
            Self::F32(value) => value.to_le_bytes().to_vec(),
            Self::Bytes(bytes) => bytes.clone(),
        }
    }
}

impl Bench {
    pub fn new(text: &str) -> Self {
        let mut device = Device::new(Config { memory: 64 << 20, threads: 2, ..Config::default() });
        let module = device.load(text).unwrap_or_else(|error| panic!("{error}"));
        Self { device, module }
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> u64 {
        let address = self.device.alloc(bytes.len() as u64).expect("memory");
        self.device.write(address, bytes).expect("a live buffer");
        address
    }

    pub fn put(&mut self, values: &[f64], format: Format) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| format.encode(*value)).collect();
        self.bytes(&bytes)
    }

    /// Allocates a buffer for results, in which every bit is set.
    pub fn output(&mut self, count: usize, format: Format) -> u64 {
        self.bytes(&vec![0xff; count * format.bytes()])
    }

    pub fn raw(&mut self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.device.read(address, &mut bytes).expect("a live buffer");
        bytes
    }

    pub fn get(&mut self, address: u64, count: usize, format: Format) -> Vec<f64> {
        let bytes = self.raw(address, count * format.bytes());
        bytes.chunks_exact(format.bytes()).map(|chunk| format.decode(chunk)).collect()
    }

    pub fn try_run(
        &mut self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u64,
        args: &[Arg],
    ) -> Result<Summary, Fault> {
        let function = self.module.function(name).unwrap_or_else(|| panic!("there is no kernel `{name}`"));
        let params = args.iter().map(Arg::bytes).collect();
        let limit = Limit { steps: 200_000_000, ..Limit::default() };
        self.device.launch(&function, &Launch { grid, block, shared_bytes, params, limit })
    }

    pub fn run(&mut self, name: &str, grid: [u32; 3], block: [u32; 3], shared: u64, args: &[Arg]) -> Summary {
        self.try_run(name, grid, block, shared, args).unwrap_or_else(|fault| panic!("{name}: {fault}"))
    }
}

/// Compares numbers with the true ones. The tolerance is relative to the true number's magnitude, or to 1 if that is
/// larger.
#[track_caller]
pub fn close(name: &str, found: &[f64], truth: &[f64], tolerance: f64) {
    assert_eq!(found.len(), truth.len());
    for (index, (found, truth)) in found.iter().zip(truth).enumerate() {
        let error = (found - truth).abs() / truth.abs().max(1.0);
        assert!(error <= tolerance, "{name}: element {index} is {found}, but should be {truth}");
    }
}
