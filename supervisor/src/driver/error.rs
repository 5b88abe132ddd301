//! The errors that end a run, and their exit codes.

use opt_shared::device::Device;
use opt_shared::launch::LaunchError;

use super::folder::FolderError;
use super::run::device::DeviceFailure;
use crate::control::ControlError;
use crate::exit::Exit;
use crate::memory::device::DeviceError;
use crate::metrics::http::MetricsError;
use crate::pool::PoolError;
use crate::store::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("using the run folder")]
    Folder(#[from] FolderError),
    #[error("{path} was removed during the run, and its results with it (start the run again)")]
    FolderRemoved { path: std::path::PathBuf },
    #[error(
        "{path} was moved to {to} during the run (its results so far are there: move it back and continue with --resume)"
    )]
    FolderMoved { path: std::path::PathBuf, to: std::path::PathBuf },
    #[error("using the run database")]
    Store(#[from] StoreError),
    #[error("starting a thread")]
    Thread(#[source] std::io::Error),
    #[error("{rows} rows of the run database were not written: {why} (continue with --resume)")]
    Unwritten { rows: usize, why: String },
    #[error(
        "this machine lacks the resources to read the captures of job `{job}`: {why} (raise the limit, or end other programs)"
    )]
    Unread { job: String, why: String },
    #[error("managing the workers")]
    Pool(#[from] PoolError),
    #[error("using the device of this run")]
    Device(#[from] DeviceError),
    #[error("using the device of this run")]
    DeviceTaken(#[from] DeviceFailure),
    #[error("opening the control socket, which a run with --keep-open needs")]
    Control(#[from] ControlError),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error("writing the summary")]
    Summary(#[from] crate::report::summary::SummaryError),
    #[error("reading the entries of a job")]
    Entries(#[from] crate::plan::EntriesError),
    #[error("--only {wanted} names no job and no JOB/CANDIDATE of this plan")]
    NothingSelected { wanted: String },
    #[error(
        "the plan has changed since the run began: {keys} ({}undo the change, or start a new run without --resume)",
        other_defaults(begun_by)
    )]
    PlanChanged {
        keys: String,
        /// The version of this program that began the run, if it was recorded.
        begun_by: Option<String>,
    },
    #[error(
        "the order or defaults of the arguments of job `{job}` have changed since the run began (start a new run)"
    )]
    SignatureChanged { job: String },
    #[error("the captures of job `{job}` have changed since the run began (start a new run)")]
    CapturesChanged { job: String },
    #[error(
        "`{key}` of job `{job}` names `{name}`, but the call has no such parameter (it has {params}; `check --signature` shows them)"
    )]
    UnknownParameter { job: String, key: &'static str, name: String, params: String },
    #[error(transparent)]
    Replay(#[from] super::survey::replay_facts::ReplayErrors),
    #[error("waiting for events")]
    Poll(#[source] rustix::io::Errno),
    #[error(
        "the device `{device}` cannot be used: {why} (`[run] device = \"emulated\"` checks kernels without a card, and does not time them)"
    )]
    NoDevice { device: Device, why: String },
    #[error(
        "job `{job}` asks for `profile.priority = \"realtime\"`, but this process lacks the capability CAP_SYS_NICE (run as root, or use `\"none\"`)"
    )]
    NoPriority { job: String },
    #[error(transparent)]
    UnusableFolder(#[from] super::run::room::UnusableFolder),
    #[error(transparent)]
    FloorTooHigh(#[from] super::survey::limits::FloorTooHigh),
    #[error(transparent)]
    LimitTooLow(#[from] super::survey::own_limits::LimitTooLow),
    #[error(transparent)]
    NoCompiler(#[from] super::survey::compilers::MissingCompiler),
    #[error("querying the capabilities of this process")]
    Capabilities(#[source] rustix::io::Errno),
    #[error("{candidate}, {entry}: {why} (`check --signature` shows what an entry has)")]
    Launch { candidate: String, entry: String, why: Box<LaunchError> },
    #[error("the supervisor has a bug: {law}")]
    Law { law: String },
}

/// Returns a remark that defaults may have changed, if another version of this program began the run.
fn other_defaults(begun_by: &Option<String>) -> String {
    let now = env!("CARGO_PKG_VERSION");
    match begun_by {
        Some(then) if then != now => {
            format!(
                "version {then} began the run, and some defaults of version {now} may differ: set them in the plan, "
            )
        }
        _ => String::new(),
    }
}

impl RunError {
    /// Returns the exit code, which says who has to correct the error.
    pub fn exit(&self) -> Exit {
        match self {
            Self::NothingSelected { .. }
            | Self::PlanChanged { .. }
            | Self::SignatureChanged { .. }
            | Self::CapturesChanged { .. }
            | Self::UnknownParameter { .. }
            | Self::Launch { .. }
            | Self::Entries(_)
            | Self::Replay(_)
            | Self::Folder(
                FolderError::Exists { .. } | FolderError::NoRun { .. } | FolderError::NothingToResume { .. },
            ) => Exit::Usage,
            _ => Exit::Host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_plan_names_the_version_whose_defaults_may_differ() {
        let message = |begun_by: Option<&str>| {
            let begun_by = begun_by.map(str::to_owned);
            RunError::PlanChanged { keys: "verify.seed".to_owned(), begun_by }.to_string()
        };
        let plain = "the plan has changed since the run began: verify.seed (undo the change, or start a new run without --resume)";
        assert_eq!(message(None), plain);
        assert_eq!(message(Some(env!("CARGO_PKG_VERSION"))), plain);
        assert!(message(Some("0.0.9")).contains("version 0.0.9 began the run"), "{}", message(Some("0.0.9")));
    }
}
