//! Libraries of the plan's `library_path` that an artifact needs, opened by the worker for the runner to load.
//!
//! A runner of a worker that is root has a user of its own, which may not be able to enter the folder; a descriptor
//! opened here takes the place of the path. The loader then finds the library already loaded by the name it goes by
//! (`DT_SONAME`). What is not found here is left to the loader: it may be the system's, and if it is nobody's, the
//! loader's words are the ones that users know; `advice` says what to do about them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use opt_shared::units::Bytes;

use super::elf::Dynamic;
use crate::runner::frame::MAX_LIBRARIES;

/// Needed by every library built with tvm-ffi's headers. Some code generators leave it out of `DT_NEEDED`, because
/// whoever loads their libraries has it loaded already.
const TVM_FFI: &str = "libtvm_ffi.so";
const TVM_FFI_SYMBOLS: &str = "TVMFFI";
/// As large as an artifact may be.
const LARGEST_LIBRARY: Bytes = Bytes::gib(1);
const READABLE_BY_ALL: u32 = 0o004;

pub(crate) struct Library {
    pub(crate) name: String,
    file: File,
}

impl Library {
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// In the order in which they must be loaded: each after what it needs itself.
#[derive(Default)]
pub(crate) struct Libraries {
    found: Vec<Library>,
    /// There, and could not be used.
    refused: Vec<(PathBuf, io::Error)>,
}

impl Libraries {
    /// Looks through `folders` for what `artifact` needs, and for what those need. Copies that a runner's own user
    /// must be able to read are made in `copies`.
    pub(crate) fn find(artifact: &File, folders: &[PathBuf], copies: &Path) -> Self {
        let mut search = Search { folders, copies, seen: Vec::new(), libraries: Self::default() };
        if folders.is_empty() {
            return search.libraries;
        }
        // What is no library at all is the loader's to refuse.
        let Ok(dynamic) = Dynamic::read(artifact) else { return search.libraries };
        for name in &dynamic.needed {
            search.add(name);
        }
        if dynamic.speaks_of(TVM_FFI_SYMBOLS) {
            search.add(TVM_FFI);
        }
        search.libraries
    }

    pub(crate) fn as_slice(&self) -> &[Library] {
        &self.found
    }

    /// What a user may do about the loader's words; empty if nothing comes to mind.
    pub(crate) fn advice(&self, loader: &str) -> String {
        for (path, error) in &self.refused {
            if path.file_name().is_some_and(|name| loader.contains(&*name.to_string_lossy())) {
                return format!(" ({} is there, but: {error})", path.display());
            }
        }
        if loader.contains("cannot open shared object file") {
            return " (name the folder that holds it in [build] library_path; of other folders a candidate sees the \
                    system's only)"
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
    seen: Vec<String>,
    libraries: Libraries,
}

impl Search<'_> {
    fn add(&mut self, name: &str) {
        // Each name once: libraries may need one another in circles, and the depth is bounded with it.
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

/// A regular file; anything else that has the name could make us wait or worse.
fn open(path: &Path) -> io::Result<File> {
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

/// The loader opens a descriptor's path anew, as the runner's user: a file that only root may read is copied, into a
/// file without a name that is gone with its last descriptor.
fn readable_by_runners(file: File, copies: &Path) -> io::Result<File> {
    let metadata = file.metadata()?;
    let own_user = rustix::process::geteuid().is_root();
    if !own_user || metadata.mode() & READABLE_BY_ALL != 0 {
        return Ok(file);
    }
    if LARGEST_LIBRARY < Bytes::new(metadata.len()) {
        return Err(io::Error::other(format!("it is larger than {LARGEST_LIBRARY}")));
    }
    let copy = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .mode(0o600)
        .open(copies)?;
    let mut buffer = vec![0u8; 256 * 1024];
    let mut at = 0;
    loop {
        let length = file.read_at(&mut buffer, at)?;
        if length == 0 {
            break;
        }
        copy.write_all_at(&buffer[..length], at)?;
        at += length as u64;
    }
    copy.set_permissions(std::fs::Permissions::from_mode(0o444))?;
    // Not writable through what the runner is given: it could otherwise change what the next one loads.
    std::fs::OpenOptions::new()
        .read(true)
        .open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&copy)))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Builds `text` into `folder/name`.
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
    fn each_comes_after_what_it_needs_and_once() {
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
    fn tvm_ffi_is_found_for_who_speaks_of_it_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let here = folder.path();
        build(here, TVM_FFI, "int TVMFFIThing(void) { return 0; }", &[]);
        build(here, "speaks.so", "int TVMFFIThing(void); int run(void) { return TVMFFIThing(); }", &[]);
        build(here, "silent.so", "int run(void) { return 0; }", &[]);
        for (name, expected) in [("speaks.so", &[TVM_FFI][..]), ("silent.so", &[])] {
            let artifact = File::open(here.join(name)).expect("built");
            assert_eq!(names(&Libraries::find(&artifact, &[here.to_owned()], here)), expected, "{name}");
        }
    }

    #[test]
    fn a_copy_for_other_users_cannot_be_written_and_has_no_name() {
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
    fn what_cannot_be_opened_is_named_with_the_loaders_words() {
        let folder = tempfile::tempdir().expect("a folder");
        let here = folder.path();
        build(here, "libthing.so", "int thing(void) { return 0; }", &["-Wl,-soname,libthing.so"]);
        build(here, "candidate.so", "int thing(void); int run(void) { return thing(); }", &["-lthing"]);
        std::fs::remove_file(here.join("libthing.so")).expect("ours");
        std::fs::create_dir(here.join("libthing.so")).expect("a folder of that name");
        let artifact = File::open(here.join("candidate.so")).expect("built");
        let found = Libraries::find(&artifact, &[here.to_owned()], here);
        let words = "libthing.so: cannot open shared object file: No such file or directory";
        assert!(found.advice(words).contains("no regular file"), "{}", found.advice(words));
        assert!(Libraries::default().advice(words).contains("library_path"));
        assert!(
            Libraries::default().advice("x: undefined symbol: TVMFFIGetTypeInfo").contains("libtvm_ffi.so")
        );
        assert!(Libraries::default().advice("x: undefined symbol: foo").contains("[build] libraries"));
        assert!(Libraries::default().advice("something else").is_empty());
    }
}
