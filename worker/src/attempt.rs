//! What verification and profile share: limits of a runner, its setup, and how its trouble is reported.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use opt_shared::formula::RUNNER_BASE;
use opt_shared::message::Callee;
use opt_shared::outcome::RunnerEnd;
use opt_shared::units::Bytes;

use crate::executor::cell;
use crate::executor::libraries::Libraries;
use crate::executor::prepare::{PrepareError, Prepared};
use crate::executor::process::{RunnerSpec, RunnerTrouble};
use crate::machine::cpus;
use crate::runner::frame::Setup;

/// The worker cannot finish an attempt, and neither candidate nor capture is to blame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("running {candidate}")]
    Runner { candidate: String, source: RunnerTrouble },
    #[error("opening the artifact of {candidate}")]
    Artifact { candidate: String, source: std::io::Error },
    #[error("the artifact of {candidate} is not the file that was built: its digest is {found}")]
    ArtifactChanged { candidate: String, found: String },
    #[error("copying the inputs of {candidate}")]
    Inputs { candidate: String, source: crate::residency::staging::PlaceError },
    #[error(
        "opening {entry}: not the capture's fault (raise the machine's limit on open files, or let it have more memory)"
    )]
    Means { entry: String, source: Box<PrepareError> },
    #[error("handling the outputs of {entry}")]
    Outputs { entry: String, source: std::io::Error },
    #[error("comparing the outputs of {entry}")]
    Compare { entry: String, source: crate::judge::CompareError },
    #[error(
        "timing {entry}: whole blocks took less than starting one, {handoff:?} (run it again when the machine is calmer)"
    )]
    NoTime { entry: String, handoff: std::time::Duration },
    #[error("timing {entry}: no figures could be made of its blocks")]
    NoFigures { entry: String },
    #[error(
        "timing {entry}: CPU time was used in {exceeded} of {rounds} rounds with nothing to do, too few to blame the candidate and too many to trust its times (run it again when the machine is calmer)"
    )]
    NeverIdle { entry: String, exceeded: usize, rounds: usize },
}

/// One candidate's artifact, opened and checked against its digest, with the limits its runners get.
pub(crate) struct Callable<'a> {
    pub(crate) callee: &'a Callee,
    artifact: OwnedFd,
    libraries: Libraries,
    pub(crate) cpus: Vec<u32>,
    threads: u32,
}

impl<'a> Callable<'a> {
    pub(crate) fn open(callee: &'a Callee) -> Result<Self, Trouble> {
        let candidate = || callee.candidate.clone();
        let mut file = std::fs::File::open(&callee.artifact.path)
            .map_err(|source| Trouble::Artifact { candidate: candidate(), source })?;
        let mut hasher = blake3::Hasher::new();
        std::io::copy(&mut file, &mut hasher)
            .map_err(|source| Trouble::Artifact { candidate: candidate(), source })?;
        let found = hasher.finalize().to_hex().to_string();
        if found != callee.artifact.digest {
            return Err(Trouble::ArtifactChanged { candidate: candidate(), found });
        }
        let copies = callee.artifact.path.parent().unwrap_or(Path::new("."));
        let libraries = Libraries::find(&file, &callee.library_path, copies);
        let available = cpus();
        let cores = u32::try_from(available.len()).unwrap_or(1).max(1);
        let threads = callee.limits.threads_on(cores);
        // The last CPUs, so that the first is left to the worker and the supervisor where there is one to spare.
        let keep = (threads as usize).min(available.len());
        let pinned = available[available.len() - keep..].to_vec();
        Ok(Self { callee, artifact: file.into(), libraries, cpus: pinned, threads })
    }

    /// Whether a CPU is left for the worker to spin on.
    pub(crate) fn leaves_a_cpu(&self) -> bool {
        self.cpus.len() < cpus().len()
    }

    /// What a runner with these entries gets, `of_worker` in memory that this worker holds.
    pub(crate) fn spec<'b>(
        &'b self,
        lease: opt_shared::ids::LeaseId,
        entries: &[&Prepared],
        outputs: Bytes,
        of_worker: Bytes,
    ) -> RunnerSpec<'b> {
        let inputs: Bytes = entries.iter().map(|entry| entry.input_bytes).sum();
        let unmapped: Bytes = entries.iter().map(|entry| entry.unmapped_bytes).sum();
        let materialised: Bytes = entries.iter().map(|entry| entry.materialised_bytes).sum();
        let largest = entries.iter().map(|entry| entry.input_bytes).max().unwrap_or_default();
        let limits = &self.callee.limits;
        let memory = limits.memory_for(largest, self.threads);
        let private = limits.private_memory_for(largest, self.threads);
        RunnerSpec {
            lease,
            setup: Setup {
                symbol: self.callee.symbol.clone(),
                libraries: self.libraries.as_slice().iter().map(|library| library.name.clone()).collect(),
                confinement: cell::for_candidate(limits, self.threads, private, &self.callee.library_path),
                cpus: self.cpus.clone(),
                threads: self.threads,
                env: limits.env.clone(),
            },
            artifact: self.artifact.as_fd(),
            libraries: self.libraries.as_slice(),
            library_path: &self.callee.library_path,
            output: limits.output,
            limit: memory + outputs + materialised + unmapped + RUNNER_BASE,
            shared: outputs + materialised,
            of_worker,
            mapped: inputs,
            tasks: limits.processes.unwrap_or_else(|| cell::tasks(self.threads)),
        }
    }

    /// The loader's words with what can be done about them.
    pub(crate) fn refusal(&self, loader: &str) -> String {
        format!("{loader}{}", self.libraries.advice(loader))
    }

    pub(crate) fn trouble(&self, source: RunnerTrouble) -> Trouble {
        Trouble::Runner { candidate: self.callee.candidate.clone(), source }
    }
}

/// The end of a runner that lives on in the report.
pub(crate) fn kept(end: &RunnerEnd) -> Option<RunnerEnd> {
    (end.signal.is_some() || end.exit_code.is_some() || !end.stderr_tail.is_empty()).then(|| end.clone())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use opt_shared::arguments::Signature;
    use opt_shared::outcome::Artifact;
    use opt_shared::settings::LimitSettings;

    use super::*;

    /// What is verified is what is timed: the digest of the build goes with every task.
    #[test]
    fn an_artifact_that_changed_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("built.so");
        std::fs::write(&path, b"as it was built").expect("written");
        let callee = Callee {
            candidate: "fast".to_owned(),
            artifact: Artifact {
                digest: blake3::hash(b"as it was built").to_hex().to_string(),
                path: path.clone(),
            },
            symbol: "run".to_owned(),
            signature: Signature {
                params: Vec::new(),
                defaults: BTreeMap::new(),
                positional: 0,
                captured: Vec::new(),
                lists: BTreeMap::new(),
            },
            limits: LimitSettings {
                memory: None,
                threads: None,
                processes: None,
                open_files: 16,
                output: Bytes::kib(64),
                env: BTreeMap::new(),
            },
            library_path: Vec::new(),
        };
        assert!(Callable::open(&callee).is_ok());
        std::fs::write(&path, b"as somebody else wishes").expect("written");
        assert!(matches!(Callable::open(&callee), Err(Trouble::ArtifactChanged { .. })));
        std::fs::remove_file(&path).expect("removed");
        assert!(matches!(Callable::open(&callee), Err(Trouble::Artifact { .. })));
    }
}
