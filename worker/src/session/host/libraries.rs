//! Opens shared libraries for runners: those in the plan's `library_path` that an artifact needs, and the graphs of a
//! compiled function.
//!
//! If the worker is root, each runner has its own user, who may not be able to enter these folders. So the worker opens
//! the libraries, and the runner loads them by descriptor. Libraries that are in none of the folders are left to the
//! loader, which finds the system's libraries.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use opt_shared::units::Bytes;

use super::elf::{Dynamic, other_machine};
use crate::graphs;
use crate::runner::frame::MAX_LIBRARIES;

/// A library that some code generators leave out of `DT_NEEDED`, because the programs that usually load their artifacts
/// have loaded it already.
const TVM_FFI: &str = "libtvm_ffi.so";
/// The prefix of that library's symbols. An artifact that mentions one needs the library.
const TVM_FFI_PREFIX: &str = "TVMFFI";
/// The size of the largest library that is copied.
const MAX_LIBRARY: Bytes = Bytes::gib(1);
const READABLE_BY_ALL: u32 = 0o004;

/// A library that is loaded before the artifact, or a graph of the artifact.
pub(crate) struct Library {
    pub(crate) name: String,
    file: File,
}

impl Library {
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Libraries in loading order: each one comes after the libraries that it needs, unless they need each other.
#[derive(Default)]
pub(crate) struct Libraries {
    found: Vec<Library>,
    /// Libraries that exist but could not be used.
    refused: Vec<(PathBuf, io::Error)>,
    /// The kind of machine that the artifact is for, if it is not this one.
    other_machine: Option<String>,
}

impl Libraries {
    /// Finds the libraries that an artifact needs, in these folders. Copies a library to `copies` if a runner's own
    /// user could not read it.
    pub(crate) fn find(artifact: &File, folders: &[PathBuf], copies: &Path) -> Self {
        let libraries = Self { other_machine: other_machine(artifact), ..Self::default() };
        let mut search = Search { folders, copies, seen: Vec::new(), libraries };
        if folders.is_empty() {
            return search.libraries;
        }
        // If the artifact is not a library, the loader refuses it later.
        let Ok(dynamic) = Dynamic::read(artifact) else { return search.libraries };
        for name in &dynamic.needed {
            search.add(name);
        }
        if dynamic.mentions(TVM_FFI_PREFIX) {
            search.add(TVM_FFI);
        }
        search.libraries
    }

    /// Copies each graph of an artifact to an unnamed file in the folder `copies`. The graph's key becomes the
    /// library's name.
    pub(crate) fn of_graphs(artifact: &File, copies: &Path) -> io::Result<Self> {
        let copied = |(name, range)| Ok(Library { name, file: copy(artifact, range, copies)? });
        let found = graphs::read(artifact)?.into_iter().map(copied).collect::<io::Result<_>>()?;
        Ok(Self { found, ..Self::default() })
    }

    pub(crate) fn as_slice(&self) -> &[Library] {
        &self.found
    }

    /// Returns the total size of these libraries. A runner's limits of address space and of file pages are raised by
    /// this amount.
    pub(crate) fn bytes(&self) -> Bytes {
        let size = |it: &Library| it.file.metadata().map(|it| Bytes::new(it.len())).unwrap_or_default();
        self.found.iter().map(size).sum()
    }

    /// Returns advice to add to the loader's message; empty if there is none.
    pub(crate) fn advice(&self, loader: &str) -> String {
        for (path, error) in &self.refused {
            if path.file_name().is_some_and(|name| loader.contains(&*name.to_string_lossy())) {
                return format!(" ({} exists, but cannot be used: {error})", path.display());
            }
        }
        // The loader's message does not say this, because the loader treats a file for another machine as if it did not
        // exist.
        if let Some(machine) = &self.other_machine {
            return format!(" (it is for {machine}, and this machine is {})", std::env::consts::ARCH);
        }
        if loader.contains("cannot open shared object file") {
            return " (name the folder that holds it in [build] library_path; apart from these folders, a candidate sees only \
                    the system's)"
                .to_owned();
        }
        if loader.contains("undefined symbol: TVMFFI") {
            return " (name the folder that holds libtvm_ffi.so in [build] library_path)".to_owned();
        }
        if loader.contains("undefined symbol") {
            return " (link the library that defines it: [build] libraries, and library_path for its folder)"
                .to_owned();
        }
        String::new()
    }
}

struct Search<'a> {
    folders: &'a [PathBuf],
    copies: &'a Path,
    /// The names that were found so far.
    seen: Vec<String>,
    libraries: Libraries,
}

impl Search<'_> {
    fn add(&mut self, name: &str) {
        // Dependencies may be circular. The limit on the number of names also limits the depth of the recursion.
        if self.seen.len() >= MAX_LIBRARIES || self.seen.iter().any(|seen| seen == name) {
            return;
        }
        for folder in self.folders {
            let path = folder.join(name);
            let file = match open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    self.libraries.refused.push((path, error));
                    continue;
                }
            };
            if let Some(machine) = other_machine(&file) {
                self.libraries.refused.push((path, io::Error::other(format!("it is for {machine}"))));
                continue;
            }
            self.seen.push(name.to_owned());
            if let Ok(dynamic) = Dynamic::read(&file) {
                for needed in &dynamic.needed {
                    self.add(needed);
                }
            }
            match readable_by_runners(file, self.copies) {
                Ok(file) => self.libraries.found.push(Library { name: name.to_owned(), file }),
                Err(error) => self.libraries.refused.push((path, error)),
            }
            return;
        }
    }
}

/// Opens a regular file. Other kinds of file are refused, because opening or reading them might block.
fn open(path: &Path) -> io::Result<File> {
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

/// Returns a file that runners can open. The loader opens the descriptor's path again as the runner's user, so if
/// runners have their own users, a file that is not readable by all users is copied.
fn readable_by_runners(file: File, copies: &Path) -> io::Result<File> {
    let metadata = file.metadata()?;
    let runners_have_own_users = rustix::process::geteuid().is_root();
    if !runners_have_own_users || metadata.mode() & READABLE_BY_ALL != 0 {
        return Ok(file);
    }
    if MAX_LIBRARY < Bytes::new(metadata.len()) {
        return Err(io::Error::other(format!("it is larger than {MAX_LIBRARY}")));
    }
    copy(&file, 0..metadata.len(), copies)
}

/// Copies a part of a file to an unnamed file in the folder `copies`, which disappears with its last descriptor. Opens
/// the copy for reading.
fn copy(file: &File, part: Range<u64>, copies: &Path) -> io::Result<File> {
    let copy = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .mode(0o600)
        .open(copies)?;
    let mut buffer = vec![0u8; 256 * 1024];
    let mut done = 0;
    let size = part.end - part.start;
    while done < size {
        let most = buffer.len().min(Bytes::new(size - done).to_usize());
        let length = file.read_at(&mut buffer[..most], part.start + done)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        copy.write_all_at(&buffer[..length], done)?;
        done += length as u64;
    }
    copy.set_permissions(std::fs::Permissions::from_mode(0o444))?;
    // With a writable descriptor, a runner could change the library for later runners.
    std::fs::OpenOptions::new()
        .read(true)
        .open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&copy)))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Compiles the C source `text` to the library `folder/name`.
    fn build(folder: &Path, name: &str, text: &str, arguments: &[&str]) {
        let source = folder.join(format!("{name}.c"));
        std::fs::write(&source, text).expect("written");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-nostdlib", "-o"])
            .arg(folder.join(name))
            .arg(&source)
            .arg("-L")
            .arg(folder)
            .args(arguments)
            .output()
            .expect("a C compiler is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn names(libraries: &Libraries) -> Vec<&str> {
        libraries.as_slice().iter().map(|library| library.name.as_str()).collect()
    }

    #[test]
    fn find_lists_each_library_once_and_after_its_dependencies() {
        let folder = tempfile::tempdir().expect("a folder");
        let here = folder.path();
        build(here, "libdeep.so", "int deep(void) { return 1; }", &["-Wl,-soname,libdeep.so"]);
        let outer = "int deep(void); int outer(void) { return deep(); }";
        build(here, "libouter.so", outer, &["-Wl,-soname,libouter.so", "-ldeep"]);
        let both = "int deep(void), outer(void); int run(void) { return deep() + outer(); }";
        build(here, "candidate.so", both, &["-louter", "-ldeep"]);
        let artifact = File::open(here.join("candidate.so")).expect("built");
        let empty = tempfile::tempdir().expect("a folder");
        let folders = [empty.path().to_owned(), here.to_owned()];
        let found = Libraries::find(&artifact, &folders, empty.path());
        assert_eq!(names(&found), ["libdeep.so", "libouter.so"]);
        assert!(names(&Libraries::find(&artifact, &[], empty.path())).is_empty());
    }

    #[test]
    fn find_adds_tvm_ffi_only_for_artifacts_that_use_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let here = folder.path();
        build(here, TVM_FFI, "int TVMFFIThing(void) { return 0; }", &[]);
        build(here, "uses_ffi.so", "int TVMFFIThing(void); int run(void) { return TVMFFIThing(); }", &[]);
        build(here, "plain.so", "int run(void) { return 0; }", &[]);
        for (name, expected) in [("uses_ffi.so", &[TVM_FFI][..]), ("plain.so", &[])] {
            let artifact = File::open(here.join(name)).expect("built");
            assert_eq!(names(&Libraries::find(&artifact, &[here.to_owned()], here)), expected, "{name}");
        }
    }

    #[test]
    fn copy_for_other_users_is_read_only_and_unnamed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("library");
        std::fs::write(&path, b"content").expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("ours");
        let file = readable_by_runners(File::open(&path).expect("ours"), folder.path()).expect("readable");
        let mut content = [0u8; 7];
        file.read_exact_at(&mut content, 0).expect("as long");
        assert_eq!(&content, b"content");
        assert!(file.write_at(b"other", 0).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 1);
        if rustix::process::geteuid().is_root() {
            assert_ne!(file.metadata().expect("open").mode() & READABLE_BY_ALL, 0);
        }
    }

    #[test]
    fn advice_depends_on_the_message_and_on_refused_libraries() {
        let folder = tempfile::tempdir().expect("a folder");
        let here = folder.path();
        build(here, "libthing.so", "int thing(void) { return 0; }", &["-Wl,-soname,libthing.so"]);
        build(here, "candidate.so", "int thing(void); int run(void) { return thing(); }", &["-lthing"]);
        std::fs::remove_file(here.join("libthing.so")).expect("ours");
        std::fs::create_dir(here.join("libthing.so")).expect("a folder of that name");
        let artifact = File::open(here.join("candidate.so")).expect("built");
        let found = Libraries::find(&artifact, &[here.to_owned()], here);
        let words = "libthing.so: cannot open shared object file: No such file or directory";
        assert!(found.advice(words).contains("not a regular file"), "{}", found.advice(words));
        assert!(Libraries::default().advice(words).contains("library_path"));
        assert!(
            Libraries::default().advice("x: undefined symbol: TVMFFIGetTypeInfo").contains("libtvm_ffi.so")
        );
        assert!(Libraries::default().advice("x: undefined symbol: foo").contains("[build] libraries"));
        assert!(Libraries::default().advice("something else").is_empty());
        let foreign = |name: &str| {
            let mut library = std::fs::read(here.join(name)).expect("built");
            library[18..20].copy_from_slice(&243_u16.to_le_bytes());
            std::fs::write(here.join(name), library).expect("written");
        };
        std::fs::remove_dir(here.join("libthing.so")).expect("ours");
        build(here, "libthing.so", "int thing(void) { return 0; }", &["-Wl,-soname,libthing.so"]);
        foreign("libthing.so");
        let found = Libraries::find(&artifact, &[here.to_owned()], here);
        assert!(found.advice(words).contains("it is for RISC-V"), "{}", found.advice(words));
        foreign("candidate.so");
        let artifact = File::open(here.join("candidate.so")).expect("built");
        let found = Libraries::find(&artifact, &[], here);
        assert!(
            found
                .advice("x: cannot open shared object file")
                .contains("it is for RISC-V, and this machine is")
        );
    }
}
