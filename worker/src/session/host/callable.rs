//! Opens a candidate's artifact, checks it against its digest, and derives the parameters of its runners.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use opt_shared::arguments::Form;
use opt_shared::formula::{PYTHON_BASE, PYTHON_FILES, runner_base};
use opt_shared::ids::LeaseId;
use opt_shared::language::Launcher;
use opt_shared::message::Callee;
use opt_shared::units::Bytes;

use super::error::RunnerError;
use super::fresh::{Parts, Process};
use super::libraries::Libraries;
use super::placed::{self, Placed};
use super::process::RunnerSpec;
use super::zygotes::{self, Zygotes};
use crate::interpreter::{self, Interpreter};
use crate::link::Link;
use crate::machine::cpus;
use crate::runner::frame::{Python, Setup};
use crate::sandbox::confine::FileAccess;
use crate::sandbox::policy;
use crate::session::{Candidate, SessionError, artifact};

/// Files that torch reads when it starts, in addition to its libraries.
const TORCH_FILES: [&str; 4] = ["/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu", "/dev/urandom"];

pub(crate) struct Callable {
    pub(crate) callee: Callee,
    artifact: OwnedFd,
    libraries: Libraries,
    /// The interpreter that hosts the runners, for launchers that need one.
    interpreter: Option<Arc<Interpreter>>,
    /// Folders that are searched for the artifact's libraries and for their dependencies.
    library_path: Vec<PathBuf>,
    file_access: FileAccess,
    pub(crate) cpus: Vec<u32>,
    threads: u32,
    zygotes: Rc<Zygotes>,
    /// A process that was started in advance for the next session.
    waiting: RefCell<Option<Process>>,
}

impl Callable {
    pub(crate) fn open(callee: &Callee, zygotes: Rc<Zygotes>) -> Result<Self, SessionError> {
        let candidate = || callee.candidate.clone();
        let mut file = artifact::open(callee)?;
        let mut hasher = blake3::Hasher::new();
        std::io::copy(&mut file, &mut hasher)
            .map_err(|source| SessionError::Artifact { candidate: candidate(), source })?;
        artifact::compare(callee, &hasher.finalize())?;
        let copies = callee.artifact.path.parent().unwrap_or(Path::new("."));
        let found = callee.launcher.needs_python().then(|| interpreter::find(&callee.python)).transpose();
        let found = found.map_err(|text| SessionError::Interpreter { candidate: candidate(), text })?;
        let mut library_path = callee.library_path.clone();
        let interpreter = match callee.launcher {
            Launcher::Libtorch | Launcher::CudaLibtorch => {
                library_path.extend(found.iter().flat_map(|it| it.libtorch.libraries.clone()));
                None
            }
            Launcher::Interpreter
            | Launcher::Triton
            | Launcher::Graphs
            | Launcher::Dlopen
            | Launcher::CudaRuntime
            | Launcher::Kernel => found,
        };
        let libraries = if callee.launcher == Launcher::Graphs {
            Libraries::of_graphs(&file, copies)
                .map_err(|source| SessionError::Artifact { candidate: candidate(), source })?
        } else {
            Libraries::find(&file, &library_path, copies)
        };
        let mut readable: Vec<PathBuf> = interpreter.iter().flat_map(|it| it.folders.clone()).collect();
        if callee.launcher.needs_python() {
            readable.extend(TORCH_FILES.map(PathBuf::from));
        }
        let file_access = policy::file_access_of_candidate(&readable, &library_path, &callee.closed);
        let available = cpus();
        let cores = u32::try_from(available.len()).unwrap_or(1).max(1);
        let threads = callee.limits.threads_on(cores);
        // Runners get the last CPUs. The first ones, if any are left, serve the worker and the supervisor.
        let keep = (threads as usize).min(available.len());
        let pinned = available[available.len() - keep..].to_vec();
        Ok(Self {
            callee: callee.clone(),
            artifact: file.into(),
            libraries,
            interpreter,
            library_path,
            file_access,
            cpus: pinned,
            threads,
            zygotes,
            waiting: RefCell::default(),
        })
    }

    /// Describes a runner for these entries. `outputs` is the size of the output memfd.
    pub(super) fn spec<'b>(&'b self, lease: LeaseId, entries: &[Placed], outputs: Bytes) -> RunnerSpec<'b> {
        let sum = |bytes: fn(&Placed) -> Bytes| -> Bytes { entries.iter().map(bytes).sum() };
        let materialised = sum(Placed::materialised_bytes);
        let largest = entries.iter().map(Placed::input_bytes).max().unwrap_or_default();
        let limits = &self.callee.limits;
        let memory = limits.memory_for(largest, self.threads);
        let mut private = limits.private_memory_for(largest, self.threads);
        if self.callee.launcher.needs_libtorch() {
            // A library loads torch after its runner has locked down, so the runner's limit must have room for torch.
            // (An interpreter imports torch before the lock-down.)
            private += runner_base(self.callee.launcher);
        }
        RunnerSpec {
            lease,
            setup: Setup {
                launcher: self.callee.launcher,
                symbol: self.callee.symbol.clone(),
                libraries: self.libraries.as_slice().iter().map(|library| library.name.clone()).collect(),
                confinement: policy::for_candidate(
                    limits,
                    self.threads,
                    private,
                    self.libraries.bytes(),
                    self.file_access.clone(),
                ),
                cpus: self.cpus.clone(),
                threads: self.threads,
                env: limits.env.clone(),
                python: self.python(),
                module: match self.callee.form {
                    Form::Settled => Some(format!("{}.py", self.callee.candidate)),
                    Form::Recorded => None,
                },
            },
            artifact: self.artifact.as_fd(),
            libraries: self.libraries.as_slice(),
            limit: memory + outputs + materialised + sum(Placed::unmapped_bytes),
            shared: outputs + materialised,
            of_worker: placed::of_worker(entries),
            mapped: sum(Placed::mapped_bytes)
                + self.libraries.bytes()
                + if self.interpreter.is_some() { PYTHON_FILES } else { Bytes::ZERO },
            tasks: limits.processes.unwrap_or_else(|| policy::tasks(self.threads)),
        }
    }

    /// Returns the form of the interpreter's calls; `None` if a library is called directly.
    pub(super) fn form(&self) -> Option<Form> {
        self.interpreter.as_ref().map(|_| self.callee.form)
    }

    fn python(&self) -> Option<Python> {
        self.interpreter
            .as_ref()
            .map(|it| Python { executable: it.executable.clone(), library: it.library.clone() })
    }

    pub(super) fn start_ahead(&self, link: &Link) {
        if let Some(wanted) = self.wanted_zygote() {
            // Importing torch takes long, so the zygote is started now. Copying it takes only milliseconds, so no copy
            // is made yet.
            self.zygotes.prepare(link, &wanted);
            return;
        }
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_none() {
            // If this fails, the session tries again and reports the error.
            *waiting = self.start_process(link).and_then(|process| process.report_ahead(link)).ok();
        }
    }

    /// Starts a process for the next session while another runner is in use. A zygote is not started, because it would
    /// replace the current one, with which that runner may share memory.
    pub(super) fn start_beside(&self, link: &Link) {
        if self.wanted_zygote().is_none() {
            self.start_ahead(link);
        }
    }

    /// If runners are copies of a zygote, lets the zygote prepare the copy for the next session.
    pub(super) fn copy_ahead(&self, link: &Link) {
        if let Some(wanted) = self.wanted_zygote() {
            self.zygotes.copy_ahead(link, &wanted, self.callee.limits.output);
        }
    }

    fn wanted_zygote(&self) -> Option<zygotes::Wanted> {
        self.python().map(|python| zygotes::Wanted { python, environment: self.environment() })
    }

    pub(super) fn process(&self, link: &Link) -> Result<Process, RunnerError> {
        self.waiting.take().map_or_else(|| self.start_process(link), Ok)
    }

    fn start_process(&self, link: &Link) -> Result<Process, RunnerError> {
        let output = self.callee.limits.output;
        let Some(wanted) = self.wanted_zygote() else {
            let base = runner_base(self.callee.launcher);
            return Parts::create(output)?.start(link, &self.environment(), base);
        };
        match self.zygotes.copy(link, &wanted, output)? {
            Some(process) => Ok(process),
            None => Parts::create(output)?.start(link, &wanted.environment, PYTHON_BASE),
        }
    }

    fn environment(&self) -> Vec<CString> {
        let limits = &self.callee.limits;
        let mut env = BTreeMap::from([
            ("OMP_NUM_THREADS".to_owned(), self.threads.to_string()),
            ("OMP_WAIT_POLICY".to_owned(), "passive".to_owned()),
            ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
            ("LC_ALL".to_owned(), "C".to_owned()),
        ]);
        if self.callee.launcher.needs_python() {
            // The runner must have one thread when it locks down, and CUDA must not look for a device.
            env.insert("OPENBLAS_NUM_THREADS".to_owned(), "1".to_owned());
            env.insert("CUDA_VISIBLE_DEVICES".to_owned(), String::new());
        }
        if self.callee.launcher == Launcher::Triton {
            // Read by Triton whenever a kernel is defined, and by `driver.py` when it starts.
            env.insert("TRITON_INTERPRET".to_owned(), "1".to_owned());
        }
        if !self.library_path.is_empty() {
            let folders: Vec<String> =
                self.library_path.iter().map(|folder| folder.display().to_string()).collect();
            env.insert("LD_LIBRARY_PATH".to_owned(), folders.join(":"));
        }
        env.extend(limits.env.clone());
        env.iter().filter_map(|(name, value)| CString::new(format!("{name}={value}")).ok()).collect()
    }

    /// Returns the loader's message. If the problem is a known one, advice follows.
    pub(crate) fn refusal(&self, loader: &str) -> String {
        if self.callee.launcher == Launcher::Graphs {
            // The plan's keys about libraries do not apply.
            return loader.to_owned();
        }
        format!("{loader}{}", self.libraries.advice(loader))
    }

    pub(super) fn error(&self, source: RunnerError) -> SessionError {
        SessionError::Run { candidate: self.callee.candidate.clone(), source: Box::new(source) }
    }
}

impl Candidate for Callable {
    fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    fn leaves_a_cpu(&self) -> bool {
        self.cpus.len() < cpus().len()
    }
}

#[cfg(test)]
mod tests {
    use opt_shared::outcome::Artifact;

    use super::*;
    use crate::session::scripted::{callee, entries_of};

    #[test]
    fn changed_artifact_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("built.so");
        std::fs::write(&path, b"as it was built").expect("written");
        let (_, signature) = entries_of("torch_nn_functional_relu", &[0]);
        let digest = blake3::hash(b"as it was built").to_hex().to_string();
        let callee = Callee {
            artifact: Artifact { digest, path: path.clone(), bytes: Bytes::ZERO },
            ..callee("fast", signature)
        };
        assert!(Callable::open(&callee, Rc::default()).is_ok());
        std::fs::write(&path, b"changed after the build").expect("written");
        assert!(matches!(Callable::open(&callee, Rc::default()), Err(SessionError::ArtifactChanged { .. })));
        std::fs::remove_file(&path).expect("removed");
        assert!(matches!(Callable::open(&callee, Rc::default()), Err(SessionError::Artifact { .. })));
    }
}
