//! Writes a command's result to its destination: standard output, or a file that is never left incomplete.

use std::fs::File;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::{Path, PathBuf};

use super::Failure;

/// Where a command writes its document: standard output, or a file.
pub(super) enum Output {
    Standard(BufWriter<StdoutLock<'static>>),
    /// `renamed` is true once the file has its final name. For a device or a pipe, it is true from the beginning.
    File {
        writer: BufWriter<File>,
        temporary: PathBuf,
        path: PathBuf,
        renamed: bool,
    },
}

impl Output {
    /// Opens the destination. A device or a pipe is written to directly. A regular file is written under a temporary
    /// name, and renamed at the end.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self::Standard(BufWriter::new(io::stdout().lock()))) };
        let fail = |error| failure(error, path);
        // If the path is a link, the file that the link points to is replaced, and not the link.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if is_of_a_run(&path) {
            let why = io::Error::other("it is a file of a run, which would be lost (choose another name)");
            return Err(fail(why));
        }
        let special = std::fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file());
        let temporary = if special { path.clone() } else { temporary_path(&path) };
        let file = if special { File::options().write(true).open(&path) } else { File::create(&temporary) };
        let writer = BufWriter::new(file.map_err(fail)?);
        Ok(Self::File { writer, temporary, path, renamed: special })
    }

    /// Returns the error of a write, with the name of the file. On standard output, a closed pipe (`| head`) is not an
    /// error.
    pub(super) fn written(&self, result: io::Result<()>) -> Result<(), Failure> {
        match self {
            Self::Standard(_) => ignore_closed_pipe(result),
            Self::File { path, .. } => result.map_err(|error| failure(error, path)),
        }
    }

    /// Completes the output after everything was written.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        match &mut self {
            Self::Standard(writer) => ignore_closed_pipe(writer.flush()),
            Self::File { writer, temporary, path, renamed } => {
                let result = writer.flush().and_then(|()| {
                    if *renamed {
                        return Ok(());
                    }
                    writer.get_ref().sync_all()?;
                    std::fs::rename(&*temporary, &*path)
                });
                *renamed |= result.is_ok();
                result.map_err(|error| failure(error, path))
            }
        }
    }
}

/// Returns whether a supervisor writes this file in the folder of a run.
fn is_of_a_run(path: &Path) -> bool {
    const OWN: [&str; 6] =
        ["run.sqlite", "run.sqlite-wal", "run.sqlite-shm", "summary.json", "log.jsonl", "lock"];
    let is_own = path.file_name().is_some_and(|name| OWN.iter().any(|own| name == *own));
    is_own && path.with_file_name("run.sqlite").exists()
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Standard(writer) => writer.write(bytes),
            Self::File { writer, .. } => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Standard(writer) => writer.flush(),
            Self::File { writer, .. } => writer.flush(),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Self::File { temporary, renamed: false, .. } = self {
            // The file is incomplete, and therefore useless.
            let _ = std::fs::remove_file(temporary);
        }
    }
}

fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!(".{name}.new"))
}

fn failure(error: io::Error, path: &Path) -> Failure {
    Failure::host(anyhow::Error::new(error).context(format!("writing {}", path.display())))
}

/// Converts the error of a closed pipe (`| head`) to success.
pub(super) fn ignore_closed_pipe(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::host(anyhow::Error::new(error).context("writing to standard output")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_replaced_completely_or_not_at_all() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("report.html");
        std::fs::write(&path, "former").expect("writes");
        let names = || std::fs::read_dir(folder.path()).expect("lists").count();

        let mut output = Output::open(Some(&path)).ok().expect("opens");
        output.write_all(b"half").expect("writes");
        drop(output);
        assert_eq!((std::fs::read_to_string(&path).expect("reads").as_str(), names()), ("former", 1));

        let mut output = Output::open(Some(&path)).ok().expect("opens");
        output.write_all(b"whole").expect("writes");
        assert!(output.finish().is_ok());
        assert_eq!((std::fs::read_to_string(&path).expect("reads").as_str(), names()), ("whole", 1));
        assert!(Output::open(Some(&folder.path().join("missing/report.html"))).is_err());
    }

    #[test]
    fn files_of_a_run_are_not_replaced() {
        let folder = tempfile::tempdir().expect("folder");
        let path = |name: &str| folder.path().join(name);
        assert!(Output::open(Some(&path("summary.json"))).is_ok(), "the folder is not that of a run");
        std::fs::write(path("run.sqlite"), "rows").expect("writes");
        std::os::unix::fs::symlink("run.sqlite", path("link")).expect("a link");
        for name in ["run.sqlite", "link", "summary.json", "lock"] {
            assert!(Output::open(Some(&path(name))).is_err(), "{name}");
        }
        assert!(Output::open(Some(&path("report.html"))).is_ok());
        assert_eq!(std::fs::read(path("run.sqlite")).expect("reads"), b"rows");
    }

    #[test]
    fn device_is_written_to_directly() {
        let output = Output::open(Some(Path::new("/dev/null"))).ok().expect("opens");
        assert!(output.finish().is_ok());
        assert!(!std::fs::metadata("/dev/null").expect("is there").is_file());
    }
}
