//! Measures the cost of a launch, and tests whether event pairs measure the same times as a plain loop between two
//! readings of the clock.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::Arguments;
use crate::cases::{MATMUL, RELU};
use crate::cuda::{Device, DeviceMemory};
use crate::row::{Judgement, Row};

const LAUNCHES: usize = 2000;
const LAUNCHES_OF_TWIN: usize = 20;
/// The number of rows and columns of the matrices that are multiplied. On a card, the product takes milliseconds, which
/// hides the cost of a launch.
const SIDE: usize = 2048;
const SIDE_OF_TWIN: usize = 32;
const TIMED: usize = 60;
const TIMED_OF_TWIN: usize = 5;
/// The largest allowed difference between the two times, as a fraction of them.
const AGREEMENT: f64 = 0.02;

fn micros(time: Duration) -> String {
    format!("{:.2} µs", time.as_secs_f64() * 1e6)
}

fn each(time: Duration, count: usize) -> Duration {
    time / u32::try_from(count).unwrap_or(u32::MAX)
}

pub(crate) fn launch_rows(arguments: &Arguments) -> Result<Vec<Row>> {
    let device = Device::open(arguments)?;
    let kernel = device.kernel(RELU, "naive")?;
    let memory = device.allocate(4096)?;
    // The kernel does nothing if its count is 0.
    let mut nothing = [memory.address.to_le_bytes(), memory.address.to_le_bytes(), [0; 8]].concat();
    let mut launch = || device.launch(&kernel, [1, 1], [32, 1], &mut nothing);
    let count = arguments.size(LAUNCHES, LAUNCHES_OF_TWIN);
    launch()?;
    device.synchronise()?;
    let started = Instant::now();
    for _ in 0..count {
        launch()?;
    }
    let queued = started.elapsed();
    device.synchronise()?;
    let done = started.elapsed();
    let mut trips: Vec<Duration> = Vec::with_capacity(count);
    for _ in 0..count {
        let started = Instant::now();
        launch()?;
        device.synchronise()?;
        trips.push(started.elapsed());
    }
    trips.sort_unstable();
    device.release(memory)?;
    let figures = format!(
        "{count} launches of a kernel that does nothing; {} to queue one",
        micros(each(queued, count))
    );
    Ok(vec![
        Row::measured("a launch among many", micros(each(done, count)), figures),
        Row::measured(
            "a launch and waiting for it",
            micros(trips[count / 2]),
            format!("median; worst {}", micros(trips[count - 1])),
        ),
    ])
}

/// Returns the parameters for the product of two square matrices.
fn product(a: &DeviceMemory, b: &DeviceMemory, c: &DeviceMemory, side: usize) -> Result<Vec<u8>> {
    let side = i32::try_from(side)?;
    let addresses = [a, b, c].map(|memory| memory.address.to_le_bytes()).concat();
    let numbers = [side, side, side, side, 1].map(i32::to_le_bytes).concat();
    Ok([addresses, numbers].concat())
}

pub(crate) fn rows(arguments: &Arguments) -> Result<Vec<Row>> {
    let device = Device::open(arguments)?;
    let kernel = device.kernel(MATMUL, "fast")?;
    let (side, count) = (arguments.size(SIDE, SIDE_OF_TWIN), arguments.size(TIMED, TIMED_OF_TWIN));
    let bytes = side * side * size_of::<f32>();
    let memories =
        [device.allocate(bytes as u64)?, device.allocate(bytes as u64)?, device.allocate(bytes as u64)?];
    for memory in &memories {
        device.upload(memory, &vec![0; bytes])?;
    }
    let [a, b, c] = &memories;
    let mut parameters = product(a, b, c, side)?;
    let blocks = u32::try_from(side.div_ceil(16))?;
    let mut launch = || device.launch(&kernel, [blocks, blocks], [16, 16], &mut parameters);
    // Warm up the card, so that both loops run at the same clock rate.
    for _ in 0..count {
        launch()?;
    }
    device.synchronise()?;
    let started = Instant::now();
    for _ in 0..count {
        launch()?;
    }
    device.synchronise()?;
    let plain = each(started.elapsed(), count);
    let mut pairs = Vec::with_capacity(count);
    for _ in 0..count {
        let (start, end) = (device.event()?, device.event()?);
        device.record(&start)?;
        launch()?;
        device.record(&end)?;
        pairs.push((start, end));
    }
    device.synchronise()?;
    let mut times =
        pairs.iter().map(|(start, end)| device.between(start, end)).collect::<Result<Vec<Duration>>>()?;
    times.sort_unstable();
    let median = *times.get(count / 2).context("no times")?;
    for memory in memories {
        device.release(memory)?;
    }
    ensure!(!plain.is_zero() && !median.is_zero(), "no time was measured");
    let difference = median.as_secs_f64() / plain.as_secs_f64() - 1.0;
    let is_close = difference.abs() <= AGREEMENT;
    let judgement = if arguments.dry_run { Judgement::Measured } else { Judgement::of(is_close) };
    Ok(vec![Row::new(
        format!("event pairs compared with a plain loop, matmul of {side}"),
        judgement,
        format!("{:+.2} %", 100.0 * difference),
        format!(
            "{} by the median of {count} pairs, {} by the loop; on a card, the two must agree within 2 %",
            micros(median),
            micros(plain)
        ),
    )])
}
