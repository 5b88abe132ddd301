//! Prints the part of `doctor` about the devices that NVML lists.

use opt_shared::causes::chain;
use opt_shared::units::Bytes;
use serde_json::{Value, json};

use crate::memory::device::{DeviceIdentity, Nvml, Reading, shares_host_memory};
use crate::report::figures::counted;

/// The devices, or the reason why there are none.
pub(super) struct Devices(Result<Vec<Device>, String>);

struct Device {
    identity: DeviceIdentity,
    reading: Result<Reading, String>,
}

impl Devices {
    pub(super) fn find() -> Self {
        let find = || {
            let nvml = Nvml::open()?;
            let devices = nvml.devices()?.into_iter().map(|identity| {
                let reading = nvml.read(identity.index).map_err(|error| chain(&error));
                Device { identity, reading }
            });
            Ok::<_, crate::memory::device::DeviceError>(devices.collect())
        };
        Self(find().map_err(|error| chain(&error)))
    }

    /// Formats the devices as JSON. `ram` is the memory of the machine, if it is known.
    pub(super) fn document(&self, ram: Option<Bytes>) -> Value {
        let devices: Vec<Value> = self.0.iter().flatten().map(|device| device.document(ram)).collect();
        json!({ "devices": devices, "no_devices_because": self.0.as_ref().err() })
    }

    pub(super) fn text(&self, ram: Option<Bytes>) -> String {
        match &self.0 {
            Err(why) => format!("none: {why}"),
            Ok(devices) if devices.is_empty() => "none: NVML lists no device".to_owned(),
            Ok(devices) => devices.iter().map(|device| device.text(ram)).collect::<Vec<_>>().join("; "),
        }
    }
}

impl Device {
    fn document(&self, ram: Option<Bytes>) -> Value {
        let reading = self.reading.as_ref().ok();
        let totals = reading.and_then(|reading| reading.totals);
        let listed = |reading: &Reading| -> Vec<Value> {
            reading
                .processes
                .iter()
                .map(|it| json!({ "pid": it.pid, "device_bytes": it.bytes.map(Bytes::get) }))
                .collect()
        };
        json!({
            "index": self.identity.index,
            "name": self.identity.name,
            "uuid": self.identity.uuid,
            "device_total_bytes": totals.map(|it| it.total.get()),
            "device_used_bytes": totals.map(|it| it.used.get()),
            "utilisation": reading.and_then(|reading| reading.utilisation),
            "processes": reading.map(listed),
            "unified": self.seems_unified(ram),
            "trouble": self.reading.as_ref().err(),
        })
    }

    fn seems_unified(&self, ram: Option<Bytes>) -> Option<bool> {
        Some(shares_host_memory(self.reading.as_ref().ok()?.totals, ram?))
    }

    fn text(&self, ram: Option<Bytes>) -> String {
        let DeviceIdentity { index, name, uuid } = &self.identity;
        let state = match &self.reading {
            Err(why) => why.clone(),
            Ok(reading) => {
                let memory = match reading.totals {
                    Some(totals) => format!("{} of {} in use", totals.used, totals.total),
                    None => "an unknown amount in use".to_owned(),
                };
                let unified = if self.seems_unified(ram) == Some(true) {
                    ", seems to share the host's memory"
                } else {
                    ""
                };
                let processes = counted(reading.processes.len(), "process", "processes");
                let busy =
                    reading.utilisation.map_or_else(String::new, |percent| format!(", {percent} % busy"));
                format!("{memory}, {processes}{unified}{busy}")
            }
        };
        format!("{index}: {name} ({uuid}), {state}")
    }
}
