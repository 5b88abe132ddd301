//! Builds: a compiler, fed by strangers, in a runner of its own kind; the library goes into `artifacts` under its
//! digest, once.
//!
//! Owns the command line, the work folder and what a compiler's end is called. The confinement is `confine`'s.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use opt_shared::ids::LeaseId;
use opt_shared::language::Toolchain;
use opt_shared::message::{BuildTask, KillReason};
use opt_shared::outcome::{Artifact, Built, Head, Status};
use opt_shared::units::Bytes;

use crate::executor::compiler::{Compiler, CompilerEnd, CompilerSpec};
use crate::executor::handle::End;
use crate::executor::process::{RunnerTrouble, signal_name};
use crate::link::Link;

/// The header for people who have none of tvm-ffi's, found by every build as `opt_candidate.h`.
const CANDIDATE_HEADER: &str = include_str!("../include/opt_candidate.h");
/// Kept of what a compiler prints.
const LOG_HEAD: usize = 4096;
/// Largest library that is taken.
const LARGEST_ARTIFACT: Bytes = Bytes::gib(1);

/// The worker could not do its part of a build; nobody's kernel is to blame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildTrouble {
    #[error("{action} {path}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("running the compiler {compiler}")]
    Compiler { compiler: String, source: RunnerTrouble },
}

fn file<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> BuildTrouble + 'a {
    move |source| BuildTrouble::File { action, path: path.to_owned(), source }
}

pub(crate) fn run(
    link: &mut Link,
    lease: LeaseId,
    task: &BuildTask,
    head: &mut Head,
) -> Result<Built, BuildTrouble> {
    let mut built = Built::default();
    match opt_shared::digest::of_sources(&task.source.sources) {
        Ok(digest) => built.source_digest = digest,
        Err((path, error)) => {
            head.end_as(Status::CompileError, format!("cannot read {}: {error}", path.display()));
            return Ok(built);
        }
    }
    let kind = task.source.language.kind();
    if kind.needs_device {
        head.end_as(Status::CompileError, "device code needs the CUDA device, which this version has not");
        return Ok(built);
    }
    match kind.toolchain {
        Toolchain::Prebuilt => {
            let [library] = task.source.sources.as_slice() else {
                head.end_as(Status::CompileError, "a prebuilt library is one file");
                return Ok(built);
            };
            built.artifact = Some(keep(library, &task.artifacts)?);
            head.end_as(Status::Passed, "prebuilt");
        }
        Toolchain::Cc | Toolchain::Cxx | Toolchain::Nvcc => compile(link, lease, task, head, &mut built)?,
    }
    Ok(built)
}

/// Moves a library under its digest, atomically; a second build of the same bytes finds the first.
fn keep(library: &Path, artifacts: &Path) -> Result<Artifact, BuildTrouble> {
    fs::create_dir_all(artifacts).map_err(file("making the folder", artifacts))?;
    let mut source = fs::File::open(library).map_err(file("opening", library))?;
    let size = source.metadata().map_err(file("asking for the size of", library))?.len();
    if LARGEST_ARTIFACT < Bytes::new(size) {
        let error = io::Error::other(format!("{} is over the limit of {LARGEST_ARTIFACT}", Bytes::new(size)));
        return Err(file("keeping", library)(error));
    }
    let part = artifacts.join(format!(".part-{}", std::process::id()));
    let mut target = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        // Readable by the runner's own user; nobody executes it but the loader.
        .mode(0o644)
        .open(&part)
        .map_err(file("writing", &part))?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0u8; 256 * 1024];
    loop {
        let read = io::Read::read(&mut source, &mut buffer).map_err(file("reading", library))?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        target.write_all(&buffer[..read]).map_err(file("writing", &part))?;
    }
    target.sync_all().map_err(file("writing", &part))?;
    let digest = hasher.finalize().to_hex().to_string();
    let path = artifacts.join(format!("{digest}.so"));
    fs::rename(&part, &path).map_err(file("renaming to", &path))?;
    Ok(Artifact { digest, path })
}

fn compile(
    link: &mut Link,
    lease: LeaseId,
    task: &BuildTask,
    head: &mut Head,
    report: &mut Built,
) -> Result<(), BuildTrouble> {
    let scratch = Scratch::create(&task.scratch, lease)?;
    let include = scratch.path.join("include");
    fs::create_dir(&include).map_err(file("making the folder", &include))?;
    let header = include.join("opt_candidate.h");
    fs::write(&header, CANDIDATE_HEADER).map_err(file("writing", &header))?;
    let built = scratch.path.join("candidate.so");
    let (compiler, arguments) = command(task, &include, &built);
    report.command = std::iter::once(compiler.clone())
        .chain(arguments.iter().map(|argument| argument.to_string_lossy().into_owned()))
        .collect();
    report.compiler = version(&compiler);
    let Some(program) = find_program(&compiler) else {
        head.end_as(
            Status::InfraError,
            format!("the compiler `{compiler}` was not found on PATH (install it, or set [build] cc / cxx)"),
        );
        return Ok(());
    };
    let mut readable: Vec<PathBuf> = task
        .source
        .sources
        .iter()
        .filter_map(|source| source.parent().map(Path::to_owned))
        .chain(task.build.include.iter().cloned())
        .chain(task.build.library_path.iter().cloned())
        .collect();
    readable.sort();
    readable.dedup();
    let spec = CompilerSpec {
        lease,
        program: &program,
        arguments: &arguments,
        env: environment(task, &scratch.path),
        scratch: &scratch.path,
        readable: &readable,
        memory: task.build.memory,
    };
    let trouble = |source| BuildTrouble::Compiler { compiler: compiler.clone(), source };
    let mut running = Compiler::start(link, &spec).map_err(trouble)?;
    if !running.wait(task.build.timeout).map_err(trouble)? {
        running.end_for(link, KillReason::Timeout { limit: task.build.timeout }).map_err(trouble)?;
    }
    let CompilerEnd { end, killed, log_head, peak_owed } = running.finish(link, LOG_HEAD).map_err(trouble)?;
    report.log_head = log_head;
    head.peak_owed = Some(peak_owed);
    (head.status, head.detail) = match (killed, end) {
        (Some(KillReason::Timeout { limit }), _) => {
            (Status::CompileTimeout, format!("the compiler was not done after {limit:?} ([build] timeout)"))
        }
        (Some(KillReason::RunnerMemory { owed, limit }), _) => (
            Status::HostMemoryLimit,
            format!("the compiler owed {owed}, its limit is {limit} ([build] memory)"),
        ),
        (Some(KillReason::GroupMemory { limit }), _) => (
            Status::HostMemoryLimit,
            format!(
                "the kernel ended the compiler: its control group reached its limit of {limit} ([build] memory)"
            ),
        ),
        (Some(reason), _) => {
            (Status::InfraError, format!("the compiler was killed by the supervisor ({reason:?})"))
        }
        (None, End::Exited { code: 0 }) if built.is_file() => {
            report.artifact = Some(keep(&built, &task.artifacts)?);
            (Status::Passed, String::new())
        }
        (None, End::Exited { code: 0 }) => {
            (Status::CompileError, "the compiler ended well but wrote no library".to_owned())
        }
        // Nothing in a build runs what the source says, so nothing of the candidate's can send SIGKILL: whoever did,
        // a machine out of memory for one, it is done again.
        (None, End::Signalled { signal: libc::SIGKILL }) => {
            (Status::InfraError, format!("{compiler} was killed by a process outside the build"))
        }
        (None, End::Exited { .. }) if a_part_was_killed(&report.log_head) => {
            (Status::InfraError, format!("a part of {compiler} was killed by a process outside the build"))
        }
        (None, End::Exited { code }) => (Status::CompileError, format!("{compiler} exited with code {code}")),
        (None, end @ End::Signalled { .. }) => (
            Status::CompileError,
            format!("{compiler} was ended by {}", signal_name(end).unwrap_or("a signal")),
        ),
    };
    Ok(())
}

/// Whether the compiler's driver says that one of its parts ended by SIGKILL. The driver's own lines begin with its
/// name; what a source makes the compiler print begins with a place in it, that is with a line number. (Only the
/// assembler's `.print` says what it is told. It wins a second build and an INFRA_ERROR, which passes nobody.)
fn a_part_was_killed(log: &str) -> bool {
    log.lines().any(|line| {
        let Some((driver, rest)) = line.split_once(": ") else { return false };
        !driver.contains([':', ' '])
            && (rest.starts_with("fatal error: Killed signal terminated program ")
                || (rest.starts_with("fatal error: ")
                    && rest.ends_with(" terminated with signal 9 [Killed]"))
                || rest.starts_with("error: unable to execute command: Killed"))
    })
}

/// `CC FLAGS EXTRA -shared -fPIC -I… -o OUT SOURCES LINK_FLAGS -L… -Wl,-rpath… LIBRARIES`.
fn command(task: &BuildTask, own_include: &Path, built: &Path) -> (String, Vec<OsString>) {
    let build = &task.build;
    let compiler = match task.source.language.kind().toolchain {
        Toolchain::Cxx => &build.cxx,
        _ => &build.cc,
    };
    let mut arguments: Vec<OsString> = Vec::new();
    arguments.extend(build.flags.iter().chain(&build.extra_flags).map(OsString::from));
    arguments.extend(["-shared", "-fPIC"].map(OsString::from));
    for folder in build.include.iter().map(PathBuf::as_path).chain([own_include]) {
        arguments.push("-I".into());
        arguments.push(folder.into());
    }
    arguments.push("-o".into());
    arguments.push(built.into());
    arguments.extend(task.source.sources.iter().map(OsString::from));
    arguments.extend(build.link_flags.iter().map(OsString::from));
    for folder in &build.library_path {
        let mut flag = OsString::from("-L");
        flag.push(folder);
        arguments.push(flag);
    }
    for library in &build.libraries {
        arguments.push(if library.contains('/') || library.starts_with('-') {
            library.into()
        } else {
            format!("-l{library}").into()
        });
    }
    (compiler.clone(), arguments)
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

fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return fs::canonicalize(name).ok();
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(OsStr::new(name))).find(|program| program.is_file())
}

/// First line of `--version`. A compiler named by the plan is the user's own program: it is asked plainly.
fn version(compiler: &str) -> Option<String> {
    let output = std::process::Command::new(compiler)
        .arg("--version")
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(|line| line.chars().take(200).collect())
}

/// A work folder that is gone when the build is.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn create(parent: &Path, lease: LeaseId) -> Result<Self, BuildTrouble> {
        let path = parent.join(format!("build-{lease}"));
        if path.exists() {
            fs::remove_dir_all(&path).map_err(file("clearing", &path))?;
        }
        fs::create_dir_all(&path).map_err(file("making the folder", &path))?;
        let path = fs::canonicalize(&path).map_err(file("resolving", &path))?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays behind is cleared at the next start.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_driver_says_that_a_part_was_killed() {
        for (log, killed) in [
            ("cc: fatal error: Killed signal terminated program cc1\ncompilation terminated.", true),
            ("x86_64-linux-gnu-gcc-13: fatal error: Killed signal terminated program as", true),
            ("collect2: fatal error: ld terminated with signal 9 [Killed]", true),
            ("clang: error: unable to execute command: Killed", true),
            ("k.c:1:2: error: #error cc: fatal error: Killed signal terminated program cc1", false),
            ("cc:1:2: fatal error: Killed signal terminated program cc1: No such file", false),
            ("    1 | #error cc: fatal error: Killed signal terminated program cc1", false),
            ("cc: fatal error: Segmentation fault signal terminated program cc1", false),
            ("", false),
        ] {
            assert_eq!(a_part_was_killed(log), killed, "{log}");
        }
    }
}
