//! Measures how many warp instructions the emulated device executes per second of CPU time on one thread, and per
//! second of elapsed time on two. Run it with `cargo run --release -p opt-emulator --example speed`.
//!
//! With the name of a kernel and a number, it launches the kernel that many times on one thread, and prints how many
//! warp instructions were executed. To find out how many host instructions one warp instruction takes, run it twice
//! under `valgrind --tool=callgrind`, with different numbers of launches. Divide the difference in host instructions by
//! the difference in warp instructions.

use std::time::Instant;

use opt_emulator::{Config, Device, Function, Launch, Limit};

const MATRICES: &str = include_str!("../tests/data/kernels/matrices.ptx");
const ROWS: &str = include_str!("../tests/data/kernels/rows.ptx");
const ALGORITHMS: &str = include_str!("../tests/data/kernels/algorithms.ptx");
const ELEMENTWISE: &str = include_str!("../tests/data/kernels/elementwise.ptx");

/// The CPU time of this process in seconds, from the system's count of 10 ms ticks.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

#[expect(clippy::cast_precision_loss, reason = "a count of instructions that is only printed")]
fn millions(count: u64) -> f64 {
    count as f64 / 1e6
}

/// A launch: the PTX text, the kernel, grid, block, dynamic shared memory, and the numbers that the kernel
/// takes after its pointers.
type Case = (&'static str, &'static str, [u32; 3], [u32; 3], u64, &'static [i64]);

const CASES: [Case; 10] = [
    (MATRICES, "matmul_tiled_f32", [16, 16, 1], [16, 16, 1], 0, &[256, 256, 256]),
    (MATRICES, "matmul_blocked_f32", [8, 8, 1], [16, 16, 1], 0, &[256, 256, 256]),
    (MATRICES, "matmul_f32", [16, 16, 1], [16, 16, 1], 0, &[256, 256, 256]),
    (MATRICES, "matmul_f16", [16, 16, 1], [16, 16, 1], 0, &[256, 256, 256]),
    (MATRICES, "matmul_f64", [16, 16, 1], [16, 16, 1], 0, &[256, 256, 256]),
    (ROWS, "softmax_f32", [256, 1, 1], [128, 1, 1], 4096, &[1024]),
    (ROWS, "layer_norm_f32", [256, 1, 1], [128, 1, 1], 0, &[1024, 0]),
    (ELEMENTWISE, "relu_f32", [256, 1, 1], [256, 1, 1], 0, &[1 << 18]),
    (ELEMENTWISE, "gelu_f32", [256, 1, 1], [256, 1, 1], 0, &[1 << 18]),
    (ALGORITHMS, "histogram_i32", [64, 1, 1], [256, 1, 1], 1024, &[1 << 18, 256]),
];

/// A device with the case's kernel and its buffers.
fn prepare(
    (text, name, grid, block, shared_bytes, numbers): Case,
    threads: usize,
) -> Result<(Device, Function, Launch), Box<dyn std::error::Error>> {
    let mut device = Device::new(Config { memory: 1 << 26, threads, ..Config::default() });
    let module = device.load(text)?;
    let function = module.function(name).ok_or("the PTX text lacks the kernel")?;
    let sizes = function.param_sizes();
    let pointers = sizes.len() - numbers.len();
    let mut params = Vec::new();
    for _ in 0..pointers {
        let buffer = device.alloc(4 << 20)?;
        device.fill(buffer, 0x3c, 4 << 20)?;
        params.push(buffer.to_le_bytes().to_vec());
    }
    for (number, bytes) in numbers.iter().zip(&sizes[pointers..]) {
        params.push(number.to_le_bytes()[..usize::try_from(*bytes)?].to_vec());
    }
    Ok((device, function, Launch { grid, block, shared_bytes, params, limit: Limit::default() }))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [kernel, launches] = arguments.as_slice() {
        let case = CASES
            .into_iter()
            .find(|case| case.1 == kernel)
            .ok_or_else(|| format!("this example has no kernel `{kernel}`"))?;
        let (mut device, function, launch) = prepare(case, 1)?;
        let mut executed = 0;
        for _ in 0..launches.parse::<u32>()? {
            executed += device.launch(&function, &launch)?.warp_instructions;
        }
        println!("{executed}");
        return Ok(());
    }
    println!(
        "{:<20} {:>18} {:>22} {:>24}",
        "kernel", "warp instructions", "million per CPU second", "million/s on two threads"
    );
    for case in CASES {
        let mut rates = Vec::new();
        let mut executed = 0;
        for threads in [1, 2] {
            let (mut device, function, launch) = prepare(case, threads)?;
            let (cpu, wall) = (cpu_seconds(), Instant::now());
            executed = 0;
            while cpu_seconds() - cpu < 1.0 {
                executed += device.launch(&function, &launch)?.warp_instructions;
            }
            let seconds = if threads == 1 { cpu_seconds() - cpu } else { wall.elapsed().as_secs_f64() };
            rates.push(millions(executed) / seconds);
        }
        println!("{:<20} {executed:>18} {:>22.1} {:>24.1}", case.1, rates[0], rates[1]);
    }
    Ok(())
}
