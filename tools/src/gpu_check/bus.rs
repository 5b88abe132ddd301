//! Measures the speed of copies: between pinned memory and the device, compared with the rate of the link, and within
//! the device, compared with the rate of its memory.

use std::time::Duration;

use anyhow::{Context, Result};
use opt_shared::units::Bytes;

use crate::Arguments;
use crate::cuda::{Description, Device, Pinned};
use crate::row::Row;

/// The size of a copy over the bus, in bytes. Copies within the device are four times as large on a card.
const BYTES: usize = 256 << 20;
const BYTES_OF_TWIN: usize = 8 << 20;
const ROUNDS: usize = 10;

/// Returns the median rate of copies in GB/s.
fn rate(bytes: u64, mut copy: impl FnMut() -> Result<Duration>) -> Result<f64> {
    // Do not count the first copy, which is slower.
    copy()?;
    let mut times = (0..ROUNDS).map(|_| copy()).collect::<Result<Vec<Duration>>>()?;
    times.sort_unstable();
    let time = times.get(ROUNDS / 2).context("no times")?;
    Ok(Bytes::new(bytes).as_f64() / time.as_secs_f64() / 1e9)
}

pub(crate) fn bus_rows(arguments: &Arguments) -> Result<Vec<Row>> {
    let description = Description::of(arguments)?;
    let device = Device::open(arguments)?;
    let bytes = arguments.size(BYTES, BYTES_OF_TWIN);
    let memory = device.allocate(bytes as u64)?;
    let mut pinned = Pinned::allocate(&device, bytes)?;
    pinned.as_mut_slice().fill(1);
    let link = description.pci.as_deref().and_then(link_rate);
    let shown = |rate: f64| match &link {
        Some((link, text)) => {
            format!("{:.0} % of {link:.1} GB/s, the raw rate of {text}", 100.0 * rate / link)
        }
        None => "the rate of the link is not known here".to_owned(),
    };
    let up = rate(bytes as u64, || device.time_upload(&memory, &pinned))?;
    let down = rate(bytes as u64, || device.time_download(&mut pinned, &memory))?;
    device.release(memory)?;
    pinned.release()?;
    Ok(vec![
        Row::measured("copies from pinned memory to the device", format!("{up:.2} GB/s"), shown(up)),
        Row::measured("copies from the device to pinned memory", format!("{down:.2} GB/s"), shown(down)),
    ])
}

/// Returns the raw rate in GB/s of a PCI device's link in one direction, and a description of the link. No copy reaches
/// this rate, because packets have headers.
fn link_rate(address: &str) -> Option<(f64, String)> {
    let read = |name: &str| -> Option<String> {
        let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{address}/{name}")).ok()?;
        Some(text.trim().to_owned())
    };
    rate_of(&read("max_link_speed")?, &read("max_link_width")?)
}

fn rate_of(speed: &str, width: &str) -> Option<(f64, String)> {
    let transfers: f64 = speed.split(' ').next()?.parse().ok()?;
    let lanes = f64::from(width.parse::<u8>().ok().filter(|lanes| 0 < *lanes)?);
    // The share of bits that carry data.
    let encoding = if transfers < 8.0 { 0.8 } else { 128.0 / 130.0 };
    Some((transfers * lanes * encoding / 8.0, format!("{lanes} lanes of {speed}")))
}

pub(crate) fn device_rows(arguments: &Arguments) -> Result<Vec<Row>> {
    let description = Description::of(arguments)?;
    let device = Device::open(arguments)?;
    let bytes = arguments.size(4 * BYTES, BYTES_OF_TWIN) as u64;
    let (to, from) = (device.allocate(bytes)?, device.allocate(bytes)?);
    // Each byte counts twice in this rate, because a copy reads it and writes it.
    let rate = rate(2 * bytes, || device.time_copy(&to, &from))?;
    device.release(to)?;
    device.release(from)?;
    let figures = match description.memory_peak {
        Some(peak) => format!("{:.0} % of {peak:.0} GB/s, by its clock and width", 100.0 * rate / peak),
        None => "the rate of its memory is not known here".to_owned(),
    };
    Ok(vec![Row::measured("copies within the device, reads plus writes", format!("{rate:.1} GB/s"), figures)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_rate_follows_from_speed_and_width() {
        let rate = |speed, width| rate_of(speed, width).map(|(rate, _)| format!("{rate:.2}"));
        assert_eq!(rate("16.0 GT/s PCIe", "16").as_deref(), Some("31.51"));
        assert_eq!(rate("5.0 GT/s PCIe", "8").as_deref(), Some("4.00"));
        assert_eq!(rate("Unknown", "16"), None);
        assert_eq!(rate("16.0 GT/s PCIe", "0"), None);
    }
}
