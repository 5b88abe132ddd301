//! Builds a candidate: runs a compiler on untrusted input in a confined process, and stores the artifact in `artifacts`
//! under its digest.
//!
//! Owns the work folder, and maps the end of a compiler to a status. `toolchain` chooses the command that builds an
//! artifact.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use opt_shared::ids::LeaseId;
use opt_shared::kernel_files::{CopyError, KernelFiles, MAX_BYTES};
use opt_shared::language::ArtifactKind;
use opt_shared::message::{BuildTask, KillReason};
use opt_shared::outcome::{Built, Head, Status};
use opt_shared::room::Room;

use crate::link::Link;
use crate::sandbox::confine::compilers_may_execute;
use crate::sandbox::handle::End;
use crate::sandbox::policy::CompilerFileAccess;
use crate::toolchain::artifact::{Kept, keep};
use crate::toolchain::compiler::{Compiler, CompilerEnd, CompilerError, CompilerSpec};
use crate::toolchain::log::{lacking_resource, missing_header, part_was_killed, ran_out_of_memory};
use crate::toolchain::{self, BuildError, Folders, Program, Recipe, Step, file};

/// The header for kernels that do not include tvm-ffi's. Every build finds it as `opt_candidate.h`.
const CANDIDATE_HEADER: &str = include_str!("../../include/opt_candidate.h");
/// The largest file that a compiler may write, as a multiple of the largest artifact.
const LARGEST_FILE: u64 = 16;
/// The number of bytes of a compiler's output that are kept.
const LOG_HEAD: usize = 4096;
/// The time limit for printing a compiler's version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of characters of a version that are kept.
const MAX_VERSION: usize = 200;

/// Builds a candidate. If that fails for a reason other than its source, `head` gets the room on the disk at that time.
pub(crate) fn run(
    link: &Link,
    lease: LeaseId,
    task: &BuildTask,
    head: &mut Head,
) -> Result<Built, BuildError> {
    let scratch = Scratch::create(&task.scratch, lease);
    // The files of the build are removed afterwards, so the room is read before.
    let built = match &scratch {
        Ok(scratch) => build_in(scratch, link, lease, task, head),
        Err(_) => Ok(Built::default()),
    };
    if scratch.is_err() || built.is_err() || head.status == Status::InfraError {
        head.room = Room::on_disk_of(&task.scratch).ok();
    }
    scratch.and(built)
}

/// Builds a candidate with its files in the scratch folder.
fn build_in(
    scratch: &Scratch,
    link: &Link,
    lease: LeaseId,
    task: &BuildTask,
    head: &mut Head,
) -> Result<Built, BuildError> {
    let mut built = Built::default();
    let files = KernelFiles::find(&task.source.sources, task.source.language);
    let include = scratch.include()?;
    let folders = Folders { include: &include, scratch: &scratch.path, files: &files };
    let recipe = toolchain::of(task.source.language).recipe(task, &folders);
    let built_from = match recipe {
        Recipe::Run(_) => match files.copy_to(&folders.work(), MAX_BYTES) {
            Ok(copies) => copies,
            Err(CopyError::Write { path, source }) => return Err(file("copying to", &path)(source)),
            Err(error) => {
                // The file may be readable later, so the candidate is not to blame.
                let unread = matches!(error, CopyError::Read { .. });
                let status = if unread { Status::InfraError } else { Status::CompileError };
                head.end_as(status, opt_shared::causes::chain(&error));
                return Ok(built);
            }
        },
        Recipe::Keep { .. } | Recipe::Refused(_) | Recipe::Unavailable(_) => files.clone(),
    };
    match opt_shared::digest::of_files(&built_from) {
        Ok(digest) => built.source_digest = digest,
        Err((path, error)) => {
            head.end_as(Status::InfraError, format!("cannot read {}: {error}", path.display()));
            return Ok(built);
        }
    }
    match recipe {
        Recipe::Keep { artifact, by } => {
            head.end_as(Status::Passed, if by.is_some() { "not compiled" } else { "prebuilt" });
            built.compiler = by;
            let kind = task.source.language.kind().artifact;
            keep_for(task, &artifact, kind, head, &mut built)?;
        }
        Recipe::Run(step) => compile(link, lease, task, &step, &folders, head, &mut built)?,
        Recipe::Refused(why) => {
            head.end_as(Status::CompileError, why);
        }
        Recipe::Unavailable(why) => {
            head.end_as(Status::InfraError, why);
        }
    }
    Ok(built)
}

/// Stores a library, unless it exceeds the limit on its own size or on the total size of the run's libraries.
fn keep_for(
    task: &BuildTask,
    library: &Path,
    kind: ArtifactKind,
    head: &mut Head,
    built: &mut Built,
) -> Result<(), BuildError> {
    let limit = task.build.max_artifact;
    match keep(library, &task.artifacts, kind, limit.min(task.artifacts_room))? {
        Kept::Artifact(artifact) => built.artifact = Some(artifact),
        Kept::TooLarge { bytes } if limit < bytes => {
            let why = format!("the library has {bytes}, but the limit is {limit} ([build] max_artifact)");
            head.end_as(Status::LimitExceeded, why);
        }
        Kept::TooLarge { bytes } => {
            let room = task.artifacts_room;
            let why = format!(
                "the library has {bytes}, but only {room} remain of the limit on all libraries of a run ([run] max_artifacts)"
            );
            head.end_as(Status::DoesNotFit, why);
        }
    }
    Ok(())
}

/// Runs a build's command in a confined process, and stores the file that it wrote.
fn compile(
    link: &Link,
    lease: LeaseId,
    task: &BuildTask,
    step: &Step,
    folders: &Folders<'_>,
    head: &mut Head,
    built: &mut Built,
) -> Result<(), BuildError> {
    let compiler = &step.compiler;
    built.command = std::iter::once(compiler.clone())
        .chain(step.arguments.iter().map(|argument| argument.to_string_lossy().into_owned()))
        .collect();
    let program = match locate(step, &task.build.toolchain)? {
        Ok(program) => program,
        Err(why) => {
            head.end_as(Status::InfraError, why);
            return Ok(());
        }
    };
    let toolchain: Vec<PathBuf> = task.build.toolchain.iter().chain(&step.toolchain).cloned().collect();
    let is_nvrtc = step.program != Program::OnPath;
    let spec = CompilerSpec {
        lease,
        program: &program,
        is_nvrtc,
        arguments: &step.arguments,
        env: environment(task, folders.scratch),
        work: &folders.work(),
        file_access: CompilerFileAccess {
            scratch: folders.scratch,
            readable: &step.readable,
            toolchain: &toolchain,
            closed: &task.closed,
            files: &folders.files.root,
        },
        memory: task.memory,
        // A compiler also writes assembly text, which is many times as long as the library.
        largest_file: task.build.max_artifact.saturating_mul(LARGEST_FILE),
    };
    let failed = |source| BuildError::Compiler { compiler: compiler.clone(), source };
    match &step.version {
        Some(version) => built.compiler = Some(version.clone()),
        None if is_nvrtc => {}
        None => built.compiler = version(link, &spec).map_err(failed)?,
    }
    let mut running = Compiler::start(link, &spec).map_err(failed)?;
    let limit = task.build.timeout_for(task.source.language);
    if !running.wait(limit).map_err(failed)? {
        running.end_for(link, KillReason::Timeout { limit }).map_err(failed)?;
    }
    let CompilerEnd { end, killed, log_head, peak_owed } = running.finish(link, LOG_HEAD).map_err(failed)?;
    built.log_head = log_head;
    head.peak_owed = Some(peak_owed);
    (head.status, head.detail) = match (killed, end) {
        (Some(KillReason::Timeout { limit }), _) => {
            (Status::CompileTimeout, format!("the compiler was not done after {limit:?} ([build] timeout)"))
        }
        (Some(KillReason::RunnerMemory { owed, .. }), _) => {
            out_of_memory(task, &format!("the compiler owed {owed}"))
        }
        (Some(KillReason::GroupMemory { limit }), _) => out_of_memory(
            task,
            &format!("the kernel ended the compiler: its control group reached its limit of {limit}"),
        ),
        (Some(reason), _) => {
            (Status::InfraError, format!("the compiler was killed by the supervisor ({reason:?})"))
        }
        (None, End::Exited { code: 0 }) if step.output.is_file() => {
            if is_nvrtc {
                built.compiler = Some(nvrtc_version(&step.output));
            }
            keep_for(task, &step.output, step.artifact, head, built)?;
            return Ok(());
        }
        (None, End::Exited { code: 0 }) => {
            (Status::CompileError, "the compiler exited with code 0 but wrote no library".to_owned())
        }
        (None, end @ End::Signalled { .. }) if task.source.language.build_runs_source() => (
            Status::CompileError,
            format!("{compiler} was ended by {}", end.signal_name().unwrap_or("a signal")),
        ),
        // This build does not run the source, so the candidate cannot have sent the signal. The cause may be a lack of
        // memory or a shutdown. The build is repeated.
        (None, end @ End::Signalled { .. }) => (
            Status::InfraError,
            format!("{compiler} was ended by {}", end.signal_name().unwrap_or("a signal")),
        ),
        (None, End::Exited { .. }) if ran_out_of_memory(&built.log_head) => {
            out_of_memory(task, &format!("{compiler} was refused memory"))
        }
        (None, End::Exited { .. }) if part_was_killed(&built.log_head) => (
            Status::InfraError,
            format!("a subprocess of {compiler} was ended by a process outside the build"),
        ),
        (None, End::Exited { .. }) if let Some(what) = lacking_resource(&built.log_head) => {
            (Status::InfraError, format!("{compiler} lacked a resource of this machine: {what}"))
        }
        (None, End::Exited { code }) => {
            let missing = missing_header(&built.log_head, &folders.files.left_out);
            let why = missing.map_or_else(String::new, |why| format!(": {why}"));
            (Status::CompileError, format!("{compiler} exited with code {code}{why}"))
        }
    };
    if let Some(advice) = toolchain::of(task.source.language).advice(head.status, &built.log_head) {
        head.detail = format!("{}; {advice}", head.detail);
    }
    Ok(())
}

/// The end of a compiler that ran out of memory. The candidate is to blame only if the compiler could use all of the
/// plan's limit. If the run's ceiling left less than that, the plan is to blame.
fn out_of_memory(task: &BuildTask, what: &str) -> (Status, String) {
    let (left, limit) = (task.memory, task.build.memory_for(task.source.language));
    if left < limit {
        let why = format!(
            "{what}: under the run's ceiling it may owe {left}, instead of {limit} ([build] memory): raise [memory] \
             host_ceiling"
        );
        return (Status::DoesNotFit, why);
    }
    (Status::HostMemoryLimit, format!("{what}; it may owe {limit} ([build] memory)"))
}

/// The environment of a compiler.
fn environment(task: &BuildTask, scratch: &Path) -> Vec<CString> {
    let mut env: Vec<(OsString, OsString)> = vec![
        ("PATH".into(), std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into())),
        ("LC_ALL".into(), "C".into()),
        ("TMPDIR".into(), scratch.into()),
        ("HOME".into(), scratch.into()),
    ];
    env.extend(task.build.env.iter().map(|(name, value)| (name.into(), value.into())));
    env.into_iter()
        .filter_map(|(name, value)| {
            let mut text = name;
            text.push("=");
            text.push(value);
            CString::new(text.as_bytes()).ok()
        })
        .collect()
}

/// Returns the path of a step's program or library, or a message about what this machine lacks.
fn locate(step: &Step, toolchain: &[PathBuf]) -> Result<Result<PathBuf, String>, BuildError> {
    if let Program::Nvrtc(library) = &step.program {
        return Ok(Ok(library.clone()));
    }
    let compiler = &step.compiler;
    let Some(program) = find_program(compiler) else {
        return Ok(Err(format!(
            "the compiler `{compiler}` was not found on PATH (install it, or set [build] cc / cxx)"
        )));
    };
    let real = fs::canonicalize(&program).map_err(file("resolving", &program))?;
    let folders: Vec<PathBuf> = toolchain.iter().chain(&step.toolchain).cloned().collect();
    Ok(if compilers_may_execute(&real, &folders) {
        Ok(program)
    } else {
        Err(format!(
            "the compiler {} is outside the system's folders (name its folder in [build] toolchain)",
            real.display()
        ))
    })
}

/// The version that NVRTC writes into its output, such as `NVRTC 13.0.88`.
fn nvrtc_version(built: &Path) -> String {
    let mut head = Vec::new();
    let read = fs::File::open(built).and_then(|file| file.take(LOG_HEAD as u64).read_to_end(&mut head));
    let head = String::from_utf8_lossy(&head);
    let release = read.ok().and_then(|_| head.lines().find(|line| line.contains("compilation tools")));
    let version = release.and_then(|line| line.rsplit_once(", V")).map(|(_, version)| version.trim());
    version.map_or_else(|| "NVRTC".to_owned(), |version| format!("NVRTC {version}"))
}

fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return fs::canonicalize(name).ok();
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(OsStr::new(name))).find(|program| program.is_file())
}

/// Returns the first line of `--version`, requested once for each program. The program is confined like a build,
/// because it may be a script and may hang. `None` if it does not answer.
fn version(link: &Link, build: &CompilerSpec<'_>) -> Result<Option<String>, CompilerError> {
    static KNOWN: Mutex<BTreeMap<PathBuf, Option<String>>> = Mutex::new(BTreeMap::new());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(version) = known().get(build.program) {
        return Ok(version.clone());
    }
    let spec = CompilerSpec { arguments: &["--version".into()], env: build.env.clone(), ..*build };
    let mut running = Compiler::start(link, &spec)?;
    if !running.wait(VERSION_TIMEOUT)? {
        running.end_for(link, KillReason::Timeout { limit: VERSION_TIMEOUT })?;
    }
    let CompilerEnd { end, log_head, .. } = running.finish(link, LOG_HEAD)?;
    let line = log_head.lines().next().map(|line| line.chars().take(MAX_VERSION).collect());
    let version = line.filter(|_| end == End::Exited { code: 0 });
    known().insert(build.program.to_owned(), version.clone());
    Ok(version)
}

/// A work folder that is removed after the build.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn create(parent: &Path, lease: LeaseId) -> Result<Self, BuildError> {
        let path = parent.join(format!("build-{lease}"));
        if path.exists() {
            fs::remove_dir_all(&path).map_err(file("clearing", &path))?;
        }
        fs::create_dir_all(&path).map_err(file("making the folder", &path))?;
        let path = fs::canonicalize(&path).map_err(file("resolving", &path))?;
        Ok(Self { path })
    }

    /// Creates a folder with the header for kernels that do not include tvm-ffi's.
    fn include(&self) -> Result<PathBuf, BuildError> {
        let include = self.path.join("include");
        fs::create_dir(&include).map_err(file("making the folder", &include))?;
        let header = include.join("opt_candidate.h");
        fs::write(&header, CANDIDATE_HEADER).map_err(file("writing", &header))?;
        Ok(include)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next start removes what remains.
        let _ = fs::remove_dir_all(&self.path);
    }
}
