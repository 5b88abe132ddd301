//! Builds a candidate: runs a compiler on untrusted input in a confined process, and stores the artifact in `artifacts`
//! under its digest.
//!
//! This file manages the build's work folder, and derives a status from how the compiler ended. `toolchain` chooses the
//! command that builds an artifact.

mod faults;
mod memory;

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use opt_shared::folder::{make_folder, remove_tree};
use opt_shared::ids::LeaseId;
use opt_shared::kernel_files::{self, CopyError, KernelFiles, MAX_BYTES};
use opt_shared::language::ArtifactKind;
use opt_shared::message::{BuildTask, KillReason};
use opt_shared::outcome::{Built, Head, Status};
use opt_shared::room::Room;
use opt_shared::units::Bytes;

use self::faults::{fault_of_the_machine, is_plenty, status_after_signal};
use self::memory::{killed_for_memory, refused_memory};
use crate::link::Link;
use crate::sandbox::confine::compilers_may_execute;
use crate::sandbox::handle::End;
use crate::sandbox::policy::CompilerFileAccess;
use crate::toolchain::artifact::{Kept, keep, open_written};
use crate::toolchain::compiler::{Compiler, CompilerEnd, CompilerError, CompilerKind, CompilerSpec};
use crate::toolchain::log::{
    blames_the_source, digest, missing_header, part_wrote_too_much, ran_out_of_memory,
};
use crate::toolchain::{self, BuildError, Folders, Program, Recipe, Step, file};

/// The header for kernels that do not include tvm-ffi's header. Every build can include it as `opt_candidate.h`.
const CANDIDATE_HEADER: &str = include_str!("../../include/opt_candidate.h");
/// The text that is appended to the detail of a failed build if Linux may have refused to create a process for it.
const TASKS_REFUSED: &str =
    "meanwhile, a control group that contains this run was at its limit of processes (`pids.max`)";
/// The size limit for each file that a compiler writes, as a multiple of the size limit for artifacts.
const LARGEST_FILE: u64 = 16;
/// The maximum number of bytes of a compiler's output that are copied into the result.
const LOG_HEAD: usize = 4096;
/// How long a compiler may take to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of characters of a compiler's version that are kept.
const MAX_VERSION: usize = 200;

/// Builds a candidate. If this returns an error, or if the status is INFRA_ERROR, `head.room` is set to the free space
/// on the disk when the build ended.
pub(crate) fn run(
    link: &Link,
    lease: LeaseId,
    task: &BuildTask,
    head: &mut Head,
) -> Result<Built, BuildError> {
    let scratch = Scratch::create(&task.scratch, lease);
    // Dropping `scratch` removes the build's files. The free space is measured before that, so that it shows how full
    // the disk was during the build.
    let built = match &scratch {
        Ok(scratch) => build_in(scratch, link, lease, task, head),
        Err(_) => Ok(Built::default()),
    };
    if scratch.is_err() || built.is_err() || head.status == Status::InfraError {
        let pids = head.room.and_then(|room| room.pids);
        head.room = Room::on_disk_of(&task.scratch).ok();
        if pids.is_some() {
            head.room.get_or_insert_default().pids = pids;
        }
    }
    scratch.and(built)
}

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
    if let Recipe::Run(_) = &recipe {
        // `copy_to` creates the folder only if there is a file to copy, and a candidate without sources has none.
        make_folder(&folders.work()).map_err(file("making the folder", &folders.work()))?;
    }
    let built_from = match recipe {
        Recipe::Run(_) => match files.copy_to(&folders.work(), MAX_BYTES) {
            Ok(copies) => copies,
            Err(CopyError::Write { path, source }) => return Err(file("copying to", &path)(source)),
            Err(error) => {
                let status = match &error {
                    CopyError::Read { source, .. } => status_if_unread(source),
                    CopyError::TooLarge { .. } | CopyError::Write { .. } => Status::CompileError,
                };
                head.end_as(status, opt_shared::causes::chain(&error));
                return Ok(built);
            }
        },
        Recipe::Keep { .. } | Recipe::Refused(_) | Recipe::Unavailable(_) => files.clone(),
    };
    match opt_shared::digest::of_files(&built_from) {
        Ok(digest) => built.source_digest = digest,
        Err((path, error)) => {
            head.end_as(status_if_unread(&error), format!("cannot read {}: {error}", path.display()));
            return Ok(built);
        }
    }
    match recipe {
        Recipe::Keep { artifact, by } => {
            head.end_as(Status::Passed, if by.is_some() { "not compiled" } else { "prebuilt" });
            built.compiler = by;
            let kind = task.source.language.kind().artifact;
            let source = kernel_files::open(&artifact).map_err(file("opening", &artifact))?;
            keep_for(task, source, &artifact, kind, head, &mut built)?;
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

/// Returns the status of a candidate with a file that cannot be read. The candidate is to blame only if the file is a
/// symbolic link whose target has the wrong suffix. Any other file may be readable later.
fn status_if_unread(error: &std::io::Error) -> Status {
    if kernel_files::is_misleading_link(error) { Status::CompileError } else { Status::InfraError }
}

/// Stores an artifact, unless it exceeds the size limit for one artifact or would take the run's artifacts over their
/// total limit.
fn keep_for(
    task: &BuildTask,
    source: fs::File,
    library: &Path,
    kind: ArtifactKind,
    head: &mut Head,
    built: &mut Built,
) -> Result<(), BuildError> {
    let limit = task.build.max_artifact;
    match keep(source, library, &task.artifacts, kind, limit.min(task.artifacts_room))? {
        Kept::Artifact(artifact) => built.artifact = Some(artifact),
        Kept::TooLarge { bytes } if limit < bytes => {
            let why = format!("the artifact has {bytes}, but the limit is {limit} ([build] max_artifact)");
            head.end_as(Status::LimitExceeded, why);
        }
        Kept::TooLarge { bytes } => {
            let room = task.artifacts_room;
            let why = format!(
                "the artifact has {bytes}, but only {room} remain of the limit on all artifacts of a run ([run] max_artifacts)"
            );
            head.end_as(Status::DoesNotFit, why);
        }
    }
    Ok(())
}

/// Returns true if an artifact is small enough to be kept.
fn is_kept(task: &BuildTask, artifact: &fs::File) -> bool {
    artifact.metadata().is_ok_and(|it| Bytes::new(it.len()) <= task.build.max_artifact)
}

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
    if built.command.is_empty() {
        built.command = std::iter::once(compiler.clone())
            .chain(step.arguments.iter().map(|argument| argument.to_string_lossy().into_owned()))
            .collect();
    }
    let program = match locate(step, &task.build.toolchain)? {
        Ok(program) => program,
        Err(why) => {
            head.end_as(Status::InfraError, why);
            return Ok(());
        }
    };
    let toolchain: Vec<PathBuf> = task.build.toolchain.iter().chain(&step.toolchain).cloned().collect();
    let kind = match step.program {
        Program::OnPath => CompilerKind::Program,
        Program::Nvrtc(_) => CompilerKind::Nvrtc,
        Program::Recorder => CompilerKind::Recorder,
    };
    let spec = CompilerSpec {
        lease,
        program: &program,
        kind,
        arguments: &step.arguments,
        env: environment(task, folders.scratch),
        work: &folders.work(),
        file_access: CompilerFileAccess {
            scratch: folders.scratch,
            readable: &step.readable,
            toolchain: &toolchain,
            hidden: &task.closed,
            files: &folders.files.root,
        },
        memory: task.memory,
        // A compiler may also write assembly text, which is many times as large as the artifact.
        largest_file: task.build.max_artifact.saturating_mul(LARGEST_FILE),
        runs_source: task.source.language.build_runs_source(),
    };
    let failed = |source| BuildError::Compiler { compiler: compiler.clone(), source };
    match &step.version {
        Some(version) => built.compiler = Some(version.clone()),
        None if kind != CompilerKind::Program => {}
        None => built.compiler = version(link, &spec).map_err(failed)?,
    }
    let mut running = Compiler::start(link, &spec).map_err(failed)?;
    let limit = task.build.timeout_for(task.source.language);
    if let Some(reason) = running.wait(limit).map_err(failed)? {
        running.end_for(link, reason).map_err(failed)?;
    }
    let CompilerEnd { end, killed, tasks_refused, log, is_truncated, peak_owed, least_room } =
        running.finish(link).map_err(failed)?;
    // The log of the first command is kept if a later one prints nothing.
    if built.log_head.is_empty() || !log.is_empty() {
        built.log_head = log[..log.floor_char_boundary(LOG_HEAD)].to_owned();
    }
    head.peak_owed = head.peak_owed.max(Some(peak_owed));
    // When a version 1 control group reaches its memory limit, Linux kills only one of the compiler's programs, and the
    // compiler may still succeed. In that case the kill is ignored.
    let killed = killed
        .filter(|reason| !matches!(reason, KillReason::GroupMemory { .. }) || end != End::Exited { code: 0 });
    let tasks_refused = tasks_refused && !blames_the_source(&log);
    (head.status, head.detail) = match (killed, end) {
        (Some(KillReason::Timeout { .. }), _) | (None, End::Signalled { .. }) if tasks_refused => {
            (Status::InfraError, format!("{compiler} did not end by itself; {TASKS_REFUSED}"))
        }
        (Some(KillReason::Timeout { limit }), _) => {
            (Status::CompileTimeout, format!("the compiler was not done after {limit:?} ([build] timeout)"))
        }
        (Some(KillReason::RunnerMemory { owed, .. }), _) => {
            killed_for_memory(task, &format!("the compiler owed {owed}"))
        }
        (Some(KillReason::GroupMemory { limit }), _) => killed_for_memory(
            task,
            &format!("Linux ended the compiler: its control group reached its limit of {limit}"),
        ),
        (Some(KillReason::Stopped), _) => (
            Status::InfraError,
            "the compiler was killed: another process had stopped it or one of its subprocesses, and did not continue it"
                .to_owned(),
        ),
        (Some(KillReason::HostFloor { available, floor }), _) => (
            Status::InfraError,
            format!(
                "the compiler was killed to protect the machine: only {available} of memory were available, and the floor \
                 is {floor} ([memory] host_floor)"
            ),
        ),
        (Some(KillReason::HostCeiling { owed, ceiling }), _) => (
            Status::InfraError,
            format!(
                "the compiler was killed: the run owed {owed}, above its ceiling of {ceiling} \
                 ([memory] host_ceiling)"
            ),
        ),
        (Some(KillReason::DeviceCeiling { owed, ceiling }), _) => (
            Status::InfraError,
            format!(
                "the compiler was killed to keep the device ceiling of the run: the run held {owed} on the device, and its \
                 ceiling is {ceiling} ([memory] device_ceiling)"
            ),
        ),
        (Some(reason), _) => {
            let why = reason.words().unwrap_or_default();
            (Status::InfraError, format!("the compiler was killed by the supervisor: {why}"))
        }
        (None, End::Exited { code: 0 }) => match open_written(&step.output) {
            Some(_) if let Some(next) = &step.next => {
                return compile(link, lease, task, next, folders, head, built);
            }
            Some(output)
                if is_kept(task, &output)
                    && let Some(why) = toolchain::of(task.source.language).objection(&output) =>
            {
                (Status::CompileError, why)
            }
            Some(output) => {
                if kind == CompilerKind::Nvrtc {
                    built.compiler = open_written(&step.output).map(toolchain::nvrtc::version_in);
                }
                keep_for(task, output, &step.output, step.artifact, head, built)?;
                return Ok(());
            }
            None => (Status::CompileError, "the compiler exited with code 0 but wrote no artifact".to_owned()),
        },
        (None, end) if end.signal_name() == Some("SIGXFSZ") || part_wrote_too_much(&log) => {
            let largest = spec.largest_file;
            let why = format!(
                "{compiler} wrote a file of more than {largest}, which is {LARGEST_FILE} times [build] max_artifact"
            );
            (Status::LimitExceeded, why)
        }
        (None, end @ End::Signalled { .. }) => {
            let signal = end.signal_name().unwrap_or("a signal");
            let why = format!("{compiler} was ended by {signal}");
            let runs_source = task.source.language.build_runs_source();
            let status = status_after_signal(runs_source, signal);
            built.unexplained = (runs_source && status == Status::InfraError).then(|| why.clone());
            (status, why)
        }
        (None, End::Exited { .. }) if ran_out_of_memory(&log) => {
            let may_be_forged = task.source.language.build_runs_source() || blames_the_source(&log);
            refused_memory(task, &format!("{compiler} was refused memory"), may_be_forged)
        }
        (None, End::Exited { .. }) if let Some(fault) = fault_of_the_machine(&log, least_room, spec.largest_file) => {
            (Status::InfraError, format!("{compiler} {fault}"))
        }
        (None, End::Exited { code }) if tasks_refused => {
            (Status::InfraError, format!("{compiler} exited with code {code}; {TASKS_REFUSED}"))
        }
        (None, End::Exited { code }) if is_truncated && !blames_the_source(&log) => {
            // The digest identifies this failure. If the repeated build fails with the same digest, the candidate is
            // blamed. The digest is set only if the disk cannot have been full. On a full disk, repeated builds of a
            // correct source could fail in the same way too, and the message about the disk may be in the part of the
            // output that was cut off.
            if least_room.is_some_and(|room| is_plenty(room, spec.largest_file)) {
                built.unexplained = Some(digest(&log, folders.scratch));
            }
            let why = format!(
                "{compiler} exited with code {code}, and the reason is unknown, because its output was cut off after {} \
                 (switch off its warnings with an option in [build] extra_flags)",
                Bytes::new(log.len() as u64)
            );
            (Status::InfraError, why)
        }
        (None, End::Exited { code }) => {
            let missing = missing_header(&log, &folders.files.left_out);
            let why = missing.map_or_else(String::new, |why| format!(": {why}"));
            (Status::CompileError, format!("{compiler} exited with code {code}{why}"))
        }
    };
    // Only `tasks_refused`, which the supervisor determined, counts here. The build's output does not, because a build
    // that runs its source can print any text.
    if tasks_refused && head.status == Status::InfraError {
        head.room.get_or_insert_default().pids = Some(0);
    }
    if let Some(advice) = toolchain::of(task.source.language).advice(head.status, &log) {
        head.detail = format!("{}; {advice}", head.detail);
    }
    Ok(())
}

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

/// Returns the path of a step's program or library, or a message that says why the step cannot use it.
fn locate(step: &Step, toolchain: &[PathBuf]) -> Result<Result<PathBuf, String>, BuildError> {
    match &step.program {
        Program::Nvrtc(library) => return Ok(Ok(library.clone())),
        Program::Recorder => return Ok(Ok(PathBuf::new())),
        Program::OnPath => {}
    }
    let compiler = &step.compiler;
    let Some(program) = opt_shared::program::find(compiler) else {
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

/// Returns the first line that a compiler prints for `--version`. Returns `None` if it prints nothing, exits with an
/// error or does not end in time. Each program is asked only once. The program may be a script that hangs, so it is
/// confined like a build.
fn version(link: &Link, build: &CompilerSpec<'_>) -> Result<Option<String>, CompilerError> {
    static KNOWN: Mutex<BTreeMap<PathBuf, Option<String>>> = Mutex::new(BTreeMap::new());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(version) = known().get(build.program) {
        return Ok(version.clone());
    }
    let spec = CompilerSpec { arguments: &["--version".into()], env: build.env.clone(), ..*build };
    let mut running = Compiler::start(link, &spec)?;
    if let Some(reason) = running.wait(VERSION_TIMEOUT)? {
        running.end_for(link, reason)?;
    }
    let CompilerEnd { end, log, .. } = running.finish(link)?;
    let line = log.lines().next().map(|line| line.chars().take(MAX_VERSION).collect());
    let version = line.filter(|_| end == End::Exited { code: 0 });
    known().insert(build.program.to_owned(), version.clone());
    Ok(version)
}

/// The work folder of a build. Dropping it removes the folder.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn create(parent: &Path, lease: LeaseId) -> Result<Self, BuildError> {
        let path = parent.join(format!("build-{lease}"));
        if path.exists() {
            remove_tree(&path).map_err(file("clearing", &path))?;
        }
        for folder in [parent, &path] {
            make_folder(folder).map_err(file("making the folder", folder))?;
        }
        let path = fs::canonicalize(&path).map_err(file("resolving", &path))?;
        Ok(Self { path })
    }

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
        // If some files cannot be removed here, they are removed with the run's scratch folder.
        let _ = remove_tree(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_of_a_run_that_was_moved_is_not_created_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("run");
        assert!(Scratch::create(&run.join("scratch"), LeaseId(1)).is_err() && !run.exists());
        fs::create_dir(&run).expect("made");
        let scratch = Scratch::create(&run.join("scratch"), LeaseId(1)).expect("made");
        assert!(scratch.path.is_dir());
    }
}
