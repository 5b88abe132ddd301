//! Lists the user's live runs on this machine, with the memory that each one owes now and has owed at most.

use opt_shared::units::Bytes;
use serde_json::{Value, json};

use crate::control::client::Client;
use crate::driver::answer::requests::live_runs;

/// The largest number of runs that are queried. A run that is swapped out may take seconds to answer.
const MAX_RUNS: usize = 8;

/// A run that has answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LiveRun {
    folder: String,
    owed: Option<Bytes>,
    peak_owed: Option<Bytes>,
    /// The most memory on a card that was measured for the run. `None` if it uses no card, or if nothing was measured
    /// there.
    device_peak: Option<Bytes>,
}

/// Queries at most `MAX_RUNS` runs of this user. Runs that do not answer, such as ones that are ending, are left out.
pub(super) fn ask() -> Vec<LiveRun> {
    let status = |socket: &std::path::Path| {
        let mut client = Client::connect(socket).ok()?;
        client.call("status", &json!({})).ok()
    };
    let found = live_runs().into_iter().take(MAX_RUNS);
    found
        .filter_map(|found| Some(LiveRun::of(found.run.display().to_string(), &status(&found.socket)?)))
        .collect()
}

impl LiveRun {
    fn of(folder: String, status: &Value) -> Self {
        let bytes = |value: &Value| value.as_u64().map(Bytes::new);
        let (memory, device) = (&status["memory"], &status["device"]);
        Self {
            folder,
            owed: bytes(&memory["owed_bytes"]),
            peak_owed: bytes(&memory["peak_owed_bytes"]),
            device_peak: bytes(&device["device_peak_bytes"]),
        }
    }

    pub(super) fn document(&self) -> Value {
        json!({
            "run_dir": self.folder,
            "owed_bytes": self.owed,
            "peak_owed_bytes": self.peak_owed,
            "device_peak_bytes": self.device_peak,
        })
    }

    pub(super) fn text(&self) -> String {
        let known =
            |bytes: Option<Bytes>| bytes.map_or_else(|| "an unknown amount".to_owned(), |it| it.to_string());
        let device =
            self.device_peak.map(|peak| format!(", {peak} on the card at its peak")).unwrap_or_default();
        format!("{}: owes {}, {} at its peak{device}", self.folder, known(self.owed), known(self.peak_owed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_a_run_shows_its_peaks() {
        let memory = json!({ "owed_bytes": 1 << 20, "peak_owed_bytes": 3 << 20 });
        let run = LiveRun::of("/r".to_owned(), &json!({ "memory": memory, "device": null }));
        assert_eq!(run.text(), "/r: owes 1.00 MiB, 3.00 MiB at its peak");
        assert_eq!(run.document()["device_peak_bytes"], Value::Null);
        let on_a_card = json!({ "memory": {}, "device": { "device_peak_bytes": 5 << 20 } });
        let run = LiveRun::of("/r".to_owned(), &on_a_card);
        assert_eq!(
            run.text(),
            "/r: owes an unknown amount, an unknown amount at its peak, 5.00 MiB on the card at its peak"
        );
    }
}
