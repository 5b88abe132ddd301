//! Finds the Python interpreter that a plan names, and the paths of its libraries.
//!
//! `find` remembers each interpreter that it has found until the worker ends. The interpreter is asked for its paths
//! outside the sandbox, because it is the user's own program, and because the query imports no code of a candidate.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opt_shared::child;
use serde::Deserialize;

const QUERY: &str = include_str!("interpreter.py");
/// The time limit for an interpreter's answer. It is long enough for a disk that must first spin up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest number of bytes that are read from each output stream of an interpreter.
const MAX_ANSWER: u64 = 256 << 10;
/// The largest number of characters of an interpreter's standard error that are reported.
const MAX_COMPLAINT: usize = 300;
/// The largest number of interpreters on PATH that are tried.
const MAX_TRIED: usize = 16;
/// The oldest Python version whose vectorcall protocol the runner can use.
const MIN_VERSION: (u32, u32) = (3, 9);

/// An interpreter that can run candidates. `interpreter_of` has checked this.
#[derive(Clone, Debug)]
pub(crate) struct Interpreter {
    pub(crate) executable: PathBuf,
    pub(crate) library: PathBuf,
    /// The existing folders among those of its `sys.path` and the `lib` folders of its prefixes.
    pub(crate) folders: Vec<PathBuf>,
    pub(crate) libtorch: Libtorch,
    /// The version of the interpreter's Triton, if it has one.
    pub(crate) triton: Option<String>,
    /// A description for the user, such as `Python 3.11.7 with torch 2.10.0`.
    pub(crate) version: String,
}

impl Interpreter {
    /// Returns the folder of the interpreter's executable, which may be outside `folders`.
    pub(crate) fn home(&self) -> Option<PathBuf> {
        std::fs::canonicalize(&self.executable).ok()?.parent().map(Path::to_owned)
    }

    /// Describes the interpreter and its Triton. If it has no Triton, the error tells the user what to do.
    pub(crate) fn with_triton(&self) -> Result<String, String> {
        match &self.triton {
            Some(version) => Ok(format!("{}, triton {version}", self.version)),
            None => Err(format!(
                "{} has no triton (install it there, or name another interpreter in [build] python)",
                self.executable.display()
            )),
        }
    }
}

/// The paths and options that are needed to compile against an interpreter's torch and to link to it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Libtorch {
    /// The header folders of torch, and of Python if its headers are installed.
    pub(crate) include: Vec<PathBuf>,
    /// The folders of libtorch's shared libraries and of their dependencies.
    pub(crate) libraries: Vec<PathBuf>,
    /// Compiler options that torch's headers require, and options that select the ABI of its libraries.
    pub(crate) flags: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Answer {
    version: (u32, u32, u32),
    free_threaded: bool,
    folders: Vec<PathBuf>,
    libraries: Vec<PathBuf>,
    torch: Option<String>,
    #[serde(default)]
    triton: Option<String>,
    libtorch: Libtorch,
}

/// Finds the interpreter that a plan's `[build] python` selects. The setting is a path, or a name; a name selects the
/// first interpreter of this name on PATH that can run candidates.
pub(crate) fn find(named: &str) -> Result<Arc<Interpreter>, String> {
    static FOUND: Mutex<BTreeMap<String, Arc<Interpreter>>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = found.get(named) {
        return Ok(Arc::clone(known));
    }
    let interpreter = Arc::new(search(named, &std::env::var_os("PATH").unwrap_or_default())?);
    found.insert(named.to_owned(), Arc::clone(&interpreter));
    Ok(interpreter)
}

/// Describes, in one line, the interpreter that a plan's `python` selects on this machine: `yes` and a description, or
/// `no` and the reason. `triton` is true if candidates need Triton.
pub(crate) fn describe(named: &str, path: &OsStr, triton: bool) -> String {
    let found = search(named, path).and_then(|found| {
        let version = if triton { found.with_triton()? } else { found.version.clone() };
        Ok(format!("{version} ({})", found.executable.display()))
    });
    found.map_or_else(|why| format!("no {why}"), |description| format!("yes {description}"))
}

/// Like `describe`, but `yes` is followed only by the interpreter's path, and `no` by a reason without advice.
pub(crate) fn locate(named: &str, path: &OsStr) -> String {
    let found = search_quietly(named, path);
    found.map_or_else(|why| format!("no {why}"), |found| format!("yes {}", found.executable.display()))
}

/// Finds an interpreter without using the remembered ones. `named` is a path, or a name to look for in the folders of
/// `path`.
fn search(named: &str, path: &OsStr) -> Result<Interpreter, String> {
    search_quietly(named, path).map_err(|why| {
        let advice = if named.contains('/') { " ([build] python)" } else { "; name one in [build] python" };
        why + advice
    })
}

/// Like `search`, but the error contains no advice.
fn search_quietly(named: &str, path: &OsStr) -> Result<Interpreter, String> {
    if named.contains('/') {
        return ask(Path::new(named)).map_err(|why| format!("{named}: {why}"));
    }
    let mut refused = Vec::new();
    let programs = std::env::split_paths(path).map(|folder| folder.join(named)).filter(|it| it.is_file());
    for program in programs.take(MAX_TRIED) {
        match ask(&program) {
            Ok(interpreter) => return Ok(interpreter),
            Err(why) => refused.push(format!("{}: {why}", program.display())),
        }
    }
    let asked = if refused.is_empty() { "there is none".to_owned() } else { refused.join("; ") };
    Err(format!("no `{named}` on PATH can run candidates ({asked})"))
}

fn ask(program: &Path) -> Result<Interpreter, String> {
    let mut command = Command::new(program);
    command.args(["-I", "-c", QUERY]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child::start(&mut command).map_err(|error| format!("it cannot be started: {error}"))?;
    // The output is expected to fit into the pipes. If it does not, the interpreter blocks until the timeout.
    match child::ends_within(&mut child, ANSWER_TIMEOUT) {
        Ok(true) => {}
        Ok(false) => return Err(format!("it did not answer within {ANSWER_TIMEOUT:?}")),
        Err(error) => return Err(format!("it cannot be waited for: {error}")),
    }
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let last_line = stderr.trim().lines().last().unwrap_or("its standard error is empty");
    let complaint: String = last_line.chars().take(MAX_COMPLAINT).collect();
    let answer: Answer = serde_json::from_str(&stdout)
        .map_err(|_| format!("it does not answer like a Python interpreter: {complaint}"))?;
    interpreter_of(program, answer)
}

/// Reads the bytes that are in a pipe now, up to `MAX_ANSWER`. Does not wait for other processes that still have the
/// pipe open.
fn drain(pipe: Option<impl Read + AsFd>) -> String {
    let mut text = Vec::new();
    if let Some(pipe) = pipe {
        // If the pipe cannot be made non-blocking, the read below waits until its other end is closed.
        let _ = rustix::io::ioctl_fionbio(&pipe, true);
        // If another process has the pipe open, this fails once the pipe is empty. `text` then contains the bytes that
        // were read.
        let _ = pipe.take(MAX_ANSWER).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Returns the interpreter that an answer describes. The error says why the interpreter cannot run candidates.
fn interpreter_of(program: &Path, answer: Answer) -> Result<Interpreter, String> {
    let (major, minor, patch) = answer.version;
    let Some(torch) = answer.torch else { return Err("it has no torch".to_owned()) };
    if (major, minor) < MIN_VERSION {
        return Err(format!(
            "it is Python {major}.{minor}; {}.{} is the oldest that works",
            MIN_VERSION.0, MIN_VERSION.1
        ));
    }
    if answer.free_threaded {
        return Err(
            "it is a free-threaded build (without the global lock), which is not supported yet".to_owned()
        );
    }
    let Some(library) = answer.libraries.into_iter().find(|library| library.is_file()) else {
        return Err(format!(
            "it has no shared library libpython{major}.{minor}.so (install it: Debian has it in libpython{major}.{minor}, \
             elsewhere, build Python with --enable-shared)"
        ));
    };
    // Links must not be resolved, because an interpreter finds its virtual environment by the path with which it is
    // started.
    let executable = std::path::absolute(program).map_err(|error| error.to_string())?;
    let existing = |folders: Vec<PathBuf>| folders.into_iter().filter(|folder| folder.is_dir()).collect();
    let Libtorch { include, libraries, flags } = answer.libtorch;
    Ok(Interpreter {
        executable,
        library,
        folders: existing(answer.folders),
        libtorch: Libtorch { include: existing(include), libraries: existing(libraries), flags },
        triton: answer.triton,
        version: format!("Python {major}.{minor}.{patch} with torch {torch}"),
    })
}

#[cfg(test)]
mod tests {

    use super::*;

    fn program(folder: &Path, answer: &str) -> PathBuf {
        let path = folder.join("python");
        // A shell writes the file, and not this process. If this process had the file open for writing, a process that
        // another test forks at that moment would inherit the descriptor, and Linux does not start a program that any
        // process has open for writing.
        let script = format!("#!/bin/sh\necho '{answer}'\necho no such option >&2\n");
        let written = std::process::Command::new("sh")
            .args(["-c", "printf %s \"$2\" > \"$1\" && chmod 755 \"$1\"", "sh"])
            .args([path.as_os_str(), OsStr::new(&script)])
            .status();
        assert!(written.is_ok_and(|status| status.success()), "written");
        path
    }

    #[test]
    fn usable_interpreter_is_described_and_others_are_refused_with_a_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let here = folder.path();
        let library = here.join("libpython3.11.so");
        std::fs::write(&library, "").expect("written");
        let answer = |version: &str, free: bool, library: &Path, torch: &str| {
            let folders = here.display();
            let library = library.display();
            format!(
                r#"{{"version": {version}, "free_threaded": {free}, "folders": ["{folders}", "/nowhere"], "libraries": ["/nowhere.so", "{library}"], "torch": {torch},
                    "libtorch": {{"include": ["{folders}", "/nowhere"], "libraries": ["/nowhere"], "flags": ["-std=c++17"]}}}}"#
            )
        };
        let missing = here.join("missing.so");
        for (answer, part) in [
            ("hello".to_owned(), "it does not answer like a Python interpreter: no such option"),
            (answer("[3, 11, 7]", false, &library, "null"), "it has no torch"),
            (answer("[3, 8, 0]", false, &library, r#""2.4""#), "3.9 is the oldest"),
            (answer("[3, 14, 0]", true, &library, r#""2.4""#), "global lock"),
            (answer("[3, 11, 7]", false, &missing, r#""2.4""#), "libpython3.11.so (install it"),
        ] {
            let path = program(here, &answer);
            let error = search(&path.display().to_string(), OsStr::new("")).expect_err(part);
            assert!(error.contains(part) && error.contains("[build] python"), "{error}");
        }
        let path = program(here, &answer("[3, 11, 7]", false, &library, r#""2.10.0""#));
        let found = search(&path.display().to_string(), OsStr::new("")).expect("usable");
        assert_eq!((&found.library, &found.executable), (&library, &path));
        assert_eq!(found.version, "Python 3.11.7 with torch 2.10.0");
        let error = found.with_triton().expect_err("it has none");
        assert!(error.contains("has no triton (install it there"), "{error}");
        let with = Interpreter { triton: Some("3.9.0".to_owned()), ..found.clone() };
        assert_eq!(
            with.with_triton().expect("it has Triton"),
            "Python 3.11.7 with torch 2.10.0, triton 3.9.0"
        );
        assert_eq!(found.folders, [here.to_owned()]);
        let Libtorch { include, libraries, flags } = found.libtorch;
        assert_eq!(
            (include, libraries, flags),
            (vec![here.to_owned()], vec![], vec!["-std=c++17".to_owned()])
        );
        let error = search("/nowhere/python", OsStr::new("")).expect_err("not there");
        assert!(error.contains("cannot be started"), "{error}");
        let error = search("no-such-interpreter", OsStr::new("/nowhere")).expect_err("not there");
        assert!(error.contains("there is none"), "{error}");
    }
}
