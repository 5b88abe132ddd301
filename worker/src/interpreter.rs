//! Interpreters of the user's machine: which one a plan means, and where its parts lie.
//!
//! An interpreter is asked once in a worker's life, plainly: it is the user's own program, as a compiler is.

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

const QUESTION: &str = include_str!("interpreter.py");
/// It imports next to nothing to answer; this is a disk that is slow to wake.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const LONGEST_ANSWER: u64 = 256 << 10;
/// Of what it says on standard error.
const LONGEST_COMPLAINT: usize = 300;
/// Of the name on PATH that are asked.
const MOST_ASKED: usize = 16;
/// Since this version a call's arguments may lie in an array.
const OLDEST: (u32, u32) = (3, 9);

/// An interpreter with torch.
#[derive(Clone, Debug)]
pub(crate) struct Interpreter {
    pub(crate) executable: PathBuf,
    /// Its shared library.
    pub(crate) library: PathBuf,
    /// Folders that modules are imported from, and libraries beside them.
    pub(crate) folders: Vec<PathBuf>,
    pub(crate) libtorch: Libtorch,
    /// The version of its Triton, if it has one.
    pub(crate) triton: Option<String>,
    /// `Python 3.11.7 with torch 2.10.0`.
    pub(crate) said: String,
}

impl Interpreter {
    /// What it is, its Triton included; or what to do about one that is missing.
    pub(crate) fn with_triton(&self) -> Result<String, String> {
        match &self.triton {
            Some(version) => Ok(format!("{}, triton {version}", self.said)),
            None => Err(format!(
                "{} has no triton (install it there, or name another interpreter in [build] python)",
                self.executable.display()
            )),
        }
    }
}

/// What compiles and links against an interpreter's torch.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Libtorch {
    /// Folders of headers: torch's own, and Python's where they are installed.
    pub(crate) include: Vec<PathBuf>,
    /// Folders of shared libraries: libtorch's own, and those that it needs.
    pub(crate) libraries: Vec<PathBuf>,
    /// Options without which its headers do not compile, or not to what its libraries were compiled to.
    pub(crate) flags: Vec<String>,
}

/// What it answers.
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

/// The interpreter that a plan's `[build] python` means: a path, or the first of this name on PATH that has torch. The error
/// says what can be done.
pub(crate) fn find(named: &str) -> Result<Arc<Interpreter>, String> {
    static FOUND: Mutex<BTreeMap<String, Arc<Interpreter>>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = found.get(named) {
        return Ok(Arc::clone(known));
    }
    let interpreter = Arc::new(look_for(named, &std::env::var_os("PATH").unwrap_or_default())?);
    found.insert(named.to_owned(), Arc::clone(&interpreter));
    Ok(interpreter)
}

/// The answer to a question about a plan's `python`, on one line: `yes` and what it is, or `no` and why it cannot be used.
/// `triton`: its candidates need Triton.
pub(crate) fn tell(named: &str, path: &OsStr, triton: bool) -> String {
    let found = look_for(named, path).and_then(|found| {
        let what = if triton { found.with_triton()? } else { found.said.clone() };
        Ok(format!("{what} ({})", found.executable.display()))
    });
    found.map_or_else(|why| format!("no {why}"), |what| format!("yes {what}"))
}

/// `path`: folders that a name is looked up in.
fn look_for(named: &str, path: &OsStr) -> Result<Interpreter, String> {
    if named.contains('/') {
        return ask(Path::new(named)).map_err(|why| format!("{named}: {why} ([build] python)"));
    }
    let mut refused = Vec::new();
    let programs = std::env::split_paths(path).map(|folder| folder.join(named)).filter(|it| it.is_file());
    for program in programs.take(MOST_ASKED) {
        match ask(&program) {
            Ok(interpreter) => return Ok(interpreter),
            Err(why) => refused.push(format!("{}: {why}", program.display())),
        }
    }
    let asked = if refused.is_empty() { "there is none".to_owned() } else { refused.join("; ") };
    Err(format!("no `{named}` on PATH can run candidates ({asked}); name one in [build] python"))
}

fn ask(program: &Path) -> Result<Interpreter, String> {
    let mut command = Command::new(program);
    command.args(["-I", "-c", QUESTION]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child::start(&mut command).map_err(|error| format!("it cannot be started: {error}"))?;
    // What it says is shorter than a pipe holds, or it does not end.
    match child::ends_within(&mut child, ANSWER_TIMEOUT) {
        Ok(true) => {}
        Ok(false) => return Err(format!("it did not answer within {ANSWER_TIMEOUT:?}")),
        Err(error) => return Err(format!("it cannot be waited for: {error}")),
    }
    let (said, complaint) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let last = complaint.trim().lines().last().unwrap_or("it said nothing");
    let complaint: String = last.chars().take(LONGEST_COMPLAINT).collect();
    let answer: Answer =
        serde_json::from_str(&said).map_err(|_| format!("it does not answer as Python does: {complaint}"))?;
    understood(program, answer)
}

/// What is in a pipe, up to a bound. Another process may hold its other end, and is not waited for.
fn drain(pipe: Option<impl Read + AsFd>) -> String {
    let mut said = Vec::new();
    if let Some(pipe) = pipe {
        // Where it cannot be made so, the end of the pipe is waited for.
        let _ = rustix::io::ioctl_fionbio(&pipe, true);
        // Ends with an error when the pipe is empty; what was read stays.
        let _ = pipe.take(LONGEST_ANSWER).read_to_end(&mut said);
    }
    String::from_utf8_lossy(&said).into_owned()
}

fn understood(program: &Path, answer: Answer) -> Result<Interpreter, String> {
    let (major, minor, patch) = answer.version;
    let Some(torch) = answer.torch else { return Err("it has no torch".to_owned()) };
    if (major, minor) < OLDEST {
        return Err(format!(
            "it is Python {major}.{minor}; {}.{} is the oldest that works",
            OLDEST.0, OLDEST.1
        ));
    }
    if answer.free_threaded {
        return Err("it is built without its global lock, which is not supported yet".to_owned());
    }
    let Some(library) = answer.libraries.into_iter().find(|library| library.is_file()) else {
        return Err(format!(
            "it has no shared library libpython{major}.{minor}.so (install it: Debian has it in libpython{major}.{minor}, \
             others build Python with --enable-shared)"
        ));
    };
    // Not resolved: an environment's interpreter is known by the path that it is started by.
    let executable = std::path::absolute(program).map_err(|error| error.to_string())?;
    let there = |folders: Vec<PathBuf>| folders.into_iter().filter(|folder| folder.is_dir()).collect();
    let Libtorch { include, libraries, flags } = answer.libtorch;
    Ok(Interpreter {
        executable,
        library,
        folders: there(answer.folders),
        libtorch: Libtorch { include: there(include), libraries: there(libraries), flags },
        triton: answer.triton,
        said: format!("Python {major}.{minor}.{patch} with torch {torch}"),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A program that prints `answer`.
    fn program(folder: &Path, answer: &str) -> PathBuf {
        let path = folder.join("python");
        std::fs::write(&path, format!("#!/bin/sh\necho '{answer}'\necho no such option >&2\n"))
            .expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("ours");
        path
    }

    #[test]
    fn every_interpreter_that_cannot_be_used_is_told_why() {
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
            ("hello".to_owned(), "it does not answer as Python does: no such option"),
            (answer("[3, 11, 7]", false, &library, "null"), "it has no torch"),
            (answer("[3, 8, 0]", false, &library, r#""2.4""#), "3.9 is the oldest"),
            (answer("[3, 14, 0]", true, &library, r#""2.4""#), "global lock"),
            (answer("[3, 11, 7]", false, &missing, r#""2.4""#), "libpython3.11.so (install it"),
        ] {
            let path = program(here, &answer);
            let error = look_for(&path.display().to_string(), OsStr::new("")).expect_err(part);
            assert!(error.contains(part) && error.contains("[build] python"), "{error}");
        }
        let path = program(here, &answer("[3, 11, 7]", false, &library, r#""2.10.0""#));
        let found = look_for(&path.display().to_string(), OsStr::new("")).expect("usable");
        assert_eq!((&found.library, &found.executable), (&library, &path));
        assert_eq!(found.said, "Python 3.11.7 with torch 2.10.0");
        let error = found.with_triton().expect_err("it has none");
        assert!(error.contains("has no triton (install it there"), "{error}");
        let with = Interpreter { triton: Some("3.9.0".to_owned()), ..found.clone() };
        assert_eq!(with.with_triton().expect("it has"), "Python 3.11.7 with torch 2.10.0, triton 3.9.0");
        assert_eq!(found.folders, [here.to_owned()]);
        let Libtorch { include, libraries, flags } = found.libtorch;
        assert_eq!(
            (include, libraries, flags),
            (vec![here.to_owned()], vec![], vec!["-std=c++17".to_owned()])
        );
        let error = look_for("/nowhere/python", OsStr::new("")).expect_err("not there");
        assert!(error.contains("cannot be started"), "{error}");
        let error = look_for("no-such-interpreter", OsStr::new("/nowhere")).expect_err("not there");
        assert!(error.contains("there is none"), "{error}");
    }
}
