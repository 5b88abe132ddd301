//! Stalls the outputs of a supervisor: locks its database, freezes its disk, or makes its terminal accept no lines.
//! Dropping a stall ends it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rusqlite::Connection;

/// The size of the disk that is frozen. This is enough for a run, which takes about 60 MiB.
const DISK_BYTES: u64 = 512 << 20;
/// How long the benchmark waits for the lock of the database. The run holds the lock only while it writes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// No stall
    None,
    /// The run's database is locked for 9 s
    Store,
    /// The disk of the run's folder is frozen for 12 s
    Disk,
    /// The terminal accepts no lines until the runner has existed for 12 s
    Terminal,
}

impl Kind {
    /// The time from the appearance of a runner to the end of the stall.
    pub(super) fn length(self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            // The stall must be shorter than the ten seconds for which a write of the supervisor waits for the lock.
            Self::Store => Duration::from_secs(9),
            Self::Disk | Self::Terminal => Duration::from_secs(12),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Store => "store",
            Self::Disk => "disk",
            Self::Terminal => "terminal",
        }
    }
}

/// A stall of one of the outputs of a run.
pub(super) struct Stall {
    kind: Kind,
    /// The folder of the run. The folder does not exist yet when the stall is prepared.
    pub(super) run: PathBuf,
    disk: Option<Disk>,
    lock: Option<Connection>,
    /// The reading ends of full pipes.
    terminal: Vec<File>,
}

impl Stall {
    pub(super) fn prepare(kind: Kind, folder: &Path) -> Result<Self> {
        let disk = (kind == Kind::Disk).then(|| Disk::mount(folder)).transpose()?;
        let run = disk.as_ref().map_or(folder, |disk| &disk.path).join("run");
        Ok(Self { kind, run, disk, lock: None, terminal: Vec::new() })
    }

    /// Returns the standard output and standard error for the run. With `Kind::Terminal`, they are full from the
    /// beginning.
    pub(super) fn outputs(&mut self) -> Result<[Stdio; 2]> {
        if self.kind != Kind::Terminal {
            return Ok([Stdio::null(), Stdio::null()]);
        }
        let mut full = || -> Result<Stdio> {
            let (read, write) = full_pipe()?;
            self.terminal.push(read);
            Ok(write.into())
        };
        Ok([full()?, full()?])
    }

    pub(super) fn begin(&mut self) -> Result<()> {
        match self.kind {
            Kind::None | Kind::Terminal => {}
            Kind::Store => {
                let database = Connection::open(self.run.join("run.sqlite")).context("opening run.sqlite")?;
                database.busy_timeout(LOCK_TIMEOUT)?;
                database.execute_batch("BEGIN EXCLUSIVE").context("locking run.sqlite")?;
                self.lock = Some(database);
            }
            Kind::Disk => self.disk.as_mut().context("no disk")?.freeze()?,
        }
        Ok(())
    }

    pub(super) fn end(&mut self) {
        // Dropping the connection ends its transaction.
        self.lock = None;
        if let Some(disk) = &mut self.disk {
            disk.thaw();
        }
        for mut pipe in self.terminal.drain(..) {
            // The thread ends when the run closes its end of the pipe.
            std::thread::spawn(move || {
                let mut unread = [0; 4096];
                while pipe.read(&mut unread).is_ok_and(|bytes| bytes != 0) {}
            });
        }
    }
}

/// Returns a full pipe. Like a terminal after Ctrl-S, it blocks each write.
fn full_pipe() -> Result<(File, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe().context("making a pipe")?;
    let flags = rustix::fs::fcntl_getfl(&write)?;
    rustix::fs::fcntl_setfl(&write, flags | rustix::fs::OFlags::NONBLOCK)?;
    let mut file = File::from(write.as_fd().try_clone_to_owned()?);
    while file.write(&[b'.'; 4096]).is_ok() {}
    while file.write(b".").is_ok() {}
    rustix::fs::fcntl_setfl(&write, flags)?;
    Ok((read.into(), write))
}

/// An ext4 file system in a file, which can be frozen. Dropping this value thaws and unmounts the file system.
struct Disk {
    path: PathBuf,
    frozen: bool,
}

impl Disk {
    fn mount(folder: &Path) -> Result<Self> {
        let (image, path) = (folder.join("image"), folder.join("disk"));
        File::create(&image)?.set_len(DISK_BYTES)?;
        std::fs::create_dir(&path)?;
        done(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        done(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&path))?;
        Ok(Self { path, frozen: false })
    }

    fn freeze(&mut self) -> Result<()> {
        done(Command::new("fsfreeze").arg("-f").arg(&self.path))?;
        self.frozen = true;
        Ok(())
    }

    fn thaw(&mut self) {
        if std::mem::take(&mut self.frozen)
            && let Err(error) = done(Command::new("fsfreeze").arg("-u").arg(&self.path))
        {
            eprintln!("{} stays frozen: {error:#}", self.path.display());
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.thaw();
        if let Err(error) = done(Command::new("umount").arg("--lazy").arg(&self.path)) {
            eprintln!("{} stays mounted: {error:#}", self.path.display());
        }
    }
}

fn done(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
