//! Uses Landlock to restrict which files a sandboxed process can open, and its access to TCP, signals and abstract
//! sockets.
//!
//! The rules use every access right that both the running Linux and our Landlock library support, and the lock-down
//! fails if Linux does not enforce all of them. Protections that an older Landlock ABI lacks are reported as missing.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use opt_shared::message::Protection;

use super::{ConfineError, Confinement, Descriptors, SandboxKind, protection};

/// Library folders of known distributions. Candidates may read those that exist.
const LIBRARY_FOLDERS: [&str; 9] = [
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
    // Nix and Guix keep each package in a separate folder.
    "/nix/store",
    "/gnu/store",
];
const LIBRARY_FILES: [&str; 1] = ["/etc/ld.so.cache"];

/// Folders that a compiler driver, its children and its linker read and execute.
const TOOL_FOLDERS: [&str; 12] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/opt",
    "/etc/alternatives",
    "/etc/ld.so.conf.d",
    "/nix/store",
    "/gnu/store",
    "/sys/devices/system/cpu",
];
const TOOL_FILES: [&str; 6] =
    ["/etc/ld.so.cache", "/etc/ld.so.conf", "/proc/cpuinfo", "/proc/meminfo", "/dev/urandom", "/dev/zero"];
/// Devices that shell scripts write to.
const TOOL_SINKS: [&str; 1] = ["/dev/null"];

/// The largest number of rules for one folder that cannot be allowed as a whole, and the largest number of files in a
/// folder of libraries.
const MAX_RULES_PER_FOLDER: usize = 16_384;

/// The part of a file name that marks a library, as in `libm.so` and `libm.so.6`.
const LIBRARY_MARK: &str = ".so";
/// The offset of an ELF file's type (`e_type`), and the type of a shared library (`ET_DYN`), in the machine's byte
/// order.
const ELF_TYPE_AT: usize = 16;
const ELF_SHARED: u16 = 3;

/// The first Landlock ABI that can deny TCP, and below it the first that can deny signals and abstract sockets.
const ABI_WITH_NETWORK: i32 = 4;
const ABI_WITH_SCOPES: i32 = 6;

/// The rules that are ready to be enforced, with the number of Linux's Landlock ABI; or the reason why Landlock cannot
/// be used.
pub(super) struct Rules {
    ruleset: Result<(RulesetCreated, i32), io::Error>,
}

impl Rules {
    pub(super) fn prepare(
        confinement: &Confinement,
        descriptors: &Descriptors<'_>,
    ) -> Result<Self, ConfineError> {
        let number = match landlock_abi() {
            Ok(number) => number,
            Err(error) => return Ok(Self { ruleset: Err(error) }),
        };
        let abi = ABI::from(number);
        let refused = |source: landlock::RulesetError| ConfineError::Landlock { source };
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(abi))
            .map_err(refused)?;
        if number >= ABI_WITH_NETWORK {
            ruleset = ruleset.handle_access(AccessNet::from_all(abi)).map_err(refused)?;
        }
        if number >= ABI_WITH_SCOPES {
            ruleset = ruleset.scope(Scope::from_all(abi)).map_err(refused)?;
        }
        let mut writer = RuleWriter { ruleset: ruleset.create().map_err(refused)?, abi };

        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        // Landlock treats mapping a library for execution as reading. A candidate may not start programs, so it gets no
        // right to execute.
        let (folders, files, access): (&[&str], &[&str], _) = match confinement.kind {
            SandboxKind::Candidate => (&LIBRARY_FOLDERS, &LIBRARY_FILES, read),
            SandboxKind::Compiler => (&TOOL_FOLDERS, &TOOL_FILES, read | AccessFs::Execute),
        };
        let file_access = &confinement.file_access;
        let rules = RulesExceptHidden { hidden: file_access.hidden.iter().collect() };
        let system = rules.with_hidden(file_access.homes.iter().filter(|home| !holds_any(home, folders)));
        for path in folders.iter().chain(files).map(Path::new) {
            system.allow(&mut writer, path, access, Absent::NeedsNoRule)?;
        }
        for path in &file_access.readable {
            rules.allow(&mut writer, path, read, Absent::IsAnError)?;
        }
        for folder in &file_access.libraries {
            rules.allow_libraries(&mut writer, folder)?;
        }
        for path in &file_access.toolchain {
            rules.allow(&mut writer, path, access, Absent::IsAnError)?;
        }
        let write = match confinement.kind {
            SandboxKind::Candidate => AccessFs::WriteFile | AccessFs::IoctlDev,
            SandboxKind::Compiler => AccessFs::from_write(abi) & !(AccessFs::MakeBlock | AccessFs::MakeChar),
        } & AccessFs::from_all(abi);
        if confinement.kind == SandboxKind::Compiler {
            for path in TOOL_SINKS {
                writer.allow_if_present(Path::new(path), read | AccessFs::WriteFile)?;
            }
        }
        for path in &file_access.writable {
            writer.allow(path, read | write)?;
        }
        for library in descriptors.artifact.iter().chain(descriptors.libraries) {
            writer.allow_descriptor(*library, AccessFs::ReadFile.into())?;
        }
        Ok(Self { ruleset: Ok((writer.ruleset, number)) })
    }

    /// Enforces the rules for this thread and everything that it starts. Returns the protections. Those that Linux
    /// lacks are marked as missing.
    pub(super) fn enforce(self) -> Result<Vec<Protection>, ConfineError> {
        let (ruleset, number) = match self.ruleset {
            Ok(ruleset) => ruleset,
            Err(error) => {
                let detail = format!("Landlock: {error}");
                return Ok(["files", "no_tcp", "signals_scoped"]
                    .map(|name| protection(name, false, &*detail))
                    .into());
            }
        };
        let status = ruleset.restrict_self().map_err(|source| ConfineError::Landlock { source })?;
        if status.ruleset != RulesetStatus::FullyEnforced {
            return Err(ConfineError::LandlockPartial { abi: number });
        }
        let offered =
            |name, since| protection(name, number >= since, format!("Landlock ABI {number}, needs {since}"));
        Ok(vec![
            protection("files", true, format!("Landlock ABI {number}")),
            offered("no_tcp", ABI_WITH_NETWORK),
            offered("signals_scoped", ABI_WITH_SCOPES),
        ])
    }
}

pub(super) fn compilers_may_execute(program: &Path, toolchain: &[PathBuf]) -> bool {
    let folders = TOOL_FOLDERS.iter().map(Path::new).chain(toolchain.iter().map(PathBuf::as_path));
    let mut real = folders.filter_map(|folder| folder.canonicalize().ok());
    real.any(|folder| program.starts_with(folder))
}

/// Returns the folders of `LIBRARY_FOLDERS` that exist, with links resolved.
pub(super) fn library_folders() -> impl Iterator<Item = PathBuf> {
    LIBRARY_FOLDERS.iter().filter_map(|folder| Path::new(folder).canonicalize().ok())
}

/// Returns true if `home`, which is a folder of the user, contains a system folder. Such a home is not hidden.
/// Otherwise, a plan in `/usr` would hide the compilers.
fn holds_any(home: &Path, folders: &[&str]) -> bool {
    folders.iter().any(|folder| Path::new(folder).canonicalize().is_ok_and(|real| real.starts_with(home)))
}

#[derive(Clone, Copy)]
enum Absent {
    /// Skip the path. This is for system folders, which differ between distributions.
    NeedsNoRule,
    /// Return an error, because without this path the build or the candidate would fail later for no visible reason.
    IsAnError,
}

/// Makes rules that allow folders, except the hidden paths in them. Landlock rules can only allow access. So a folder
/// that contains a hidden path gets no rule, but the files and folders in it that are not hidden get rules by the same
/// principle.
struct RulesExceptHidden<'a> {
    hidden: Vec<&'a PathBuf>,
}

impl<'a> RulesExceptHidden<'a> {
    fn with_hidden(&self, more: impl Iterator<Item = &'a PathBuf>) -> Self {
        Self { hidden: self.hidden.iter().copied().chain(more).collect() }
    }

    fn allow(
        &self,
        writer: &mut RuleWriter,
        path: &Path,
        access: BitFlags<AccessFs>,
        absent: Absent,
    ) -> Result<(), ConfineError> {
        let may_allow_as_a_whole = |path: &Path| {
            // A path inside a hidden folder is allowed if the caller names it.
            let holds = |real: &Path| self.hidden.iter().any(|hidden| hidden.starts_with(real));
            self.hidden.is_empty() || !path.canonicalize().is_ok_and(|real| holds(&real))
        };
        if may_allow_as_a_whole(path) {
            return match absent {
                Absent::NeedsNoRule => writer.allow_if_present(path, access),
                Absent::IsAnError => writer.allow(path, access),
            };
        }
        let mut room = MAX_RULES_PER_FOLDER;
        let mut folders = vec![path.to_owned()];
        while let Some(folder) = folders.pop() {
            // A folder that cannot be listed gets no rules.
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                // Symbolic links get no rule, because access depends on the rules for their targets.
                if entry.file_type().map_or(true, |kind| kind.is_symlink()) || self.is_hidden(&path) {
                    continue;
                }
                if !may_allow_as_a_whole(&path) {
                    folders.push(path);
                    continue;
                }
                room = room.checked_sub(1).ok_or_else(|| ConfineError::Crowded {
                    path: folder.clone(),
                    max: MAX_RULES_PER_FOLDER,
                })?;
                writer.allow_if_present(&path, access)?;
            }
        }
        Ok(())
    }

    /// Allows reading the shared libraries that are directly in `folder`, under every name that the loader looks for.
    /// The other files in the folder stay inaccessible, and the folder cannot be listed. Nothing needs to be added for
    /// a folder that is inside one of the system's library folders.
    fn allow_libraries(&self, writer: &mut RuleWriter, folder: &Path) -> Result<(), ConfineError> {
        let real = folder.canonicalize();
        if real.is_ok_and(|real| library_folders().any(|system| real.starts_with(system))) {
            return Ok(());
        }
        let refused = |source| ConfineError::Path { path: folder.to_owned(), source };
        for (number, entry) in std::fs::read_dir(folder).map_err(refused)?.flatten().enumerate() {
            if MAX_RULES_PER_FOLDER <= number {
                return Err(ConfineError::Crowded { path: folder.to_owned(), max: MAX_RULES_PER_FOLDER });
            }
            let path = entry.path();
            let named = entry.file_name().to_string_lossy().contains(LIBRARY_MARK);
            if named
                && !self.is_hidden(&path)
                && let Some(library) = open_library(&path)
            {
                writer.allow_descriptor(library.as_fd(), AccessFs::ReadFile.into())?;
            }
        }
        Ok(())
    }

    fn is_hidden(&self, path: &Path) -> bool {
        path.canonicalize().map_or(true, |real| self.hidden.iter().any(|hidden| real.starts_with(hidden)))
    }
}

/// Opens a file if it is a shared library. Returns `None` for all other files, and for a file that cannot be read,
/// because the loader could not read such a file either.
fn open_library(path: &Path) -> Option<File> {
    // Without this flag, opening a pipe or a device might block.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let mut start = [0; ELF_TYPE_AT + 2];
    let is_library = file.metadata().ok()?.is_file()
        && file.read_exact_at(&mut start, 0).is_ok()
        && start.starts_with(b"\x7fELF")
        && start[ELF_TYPE_AT..] == ELF_SHARED.to_ne_bytes();
    is_library.then_some(file)
}

struct RuleWriter {
    ruleset: RulesetCreated,
    abi: ABI,
}

impl RuleWriter {
    fn allow_if_present(&mut self, path: &Path, access: BitFlags<AccessFs>) -> Result<(), ConfineError> {
        match PathFd::new(path) {
            Ok(opened) => self.allow_descriptor(opened.as_fd(), access),
            Err(_) => Ok(()),
        }
    }

    fn allow(&mut self, path: &Path, access: BitFlags<AccessFs>) -> Result<(), ConfineError> {
        let opened = PathFd::new(path).map_err(|error| {
            let source = match error {
                landlock::PathFdError::OpenCall { source, .. } => source,
                other => io::Error::other(other),
            };
            ConfineError::Path { path: path.to_owned(), source }
        })?;
        self.allow_descriptor(opened.as_fd(), access)
    }

    fn allow_descriptor(
        &mut self,
        opened: BorrowedFd<'_>,
        access: BitFlags<AccessFs>,
    ) -> Result<(), ConfineError> {
        let status =
            rustix::fs::fstat(opened).map_err(ConfineError::refused("examining a file to be allowed"))?;
        // Linux refuses a rule that gives a file a right that only folders can have.
        let is_folder = rustix::fs::FileType::from_raw_mode(status.st_mode).is_dir();
        let access = if is_folder { access } else { access & AccessFs::from_file(self.abi) };
        (&mut self.ruleset)
            .add_rule(PathBeneath::new(opened, access))
            .map(drop)
            .map_err(|source| ConfineError::Landlock { source })
    }
}

/// Returns the Landlock ABI of the running Linux, or the reason why there is none.
fn landlock_abi() -> io::Result<i32> {
    const CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with this flag, the call takes no attributes and only returns a number.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    };
    match i32::try_from(answer) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(io::Error::last_os_error()),
    }
}
