//! Finds and copies the files that a candidate is built from: its sources, and the headers in their folders that the
//! sources include.
//!
//! A build gets copies of these files and no access to the original folders, because those may also contain captures,
//! results and other candidates.
//!
//! Headers are found by a text search for `#include "NAME"` and `#include_next "NAME"` in the sources and in headers
//! already found. The search ignores conditions, so it also follows lines that the compiler would skip.

mod includes;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use self::includes::each_include;
use crate::language::{Language, Toolchain};
use crate::units::Bytes;

/// The suffixes of headers. No source, capture or plan has any of these suffixes.
pub const HEADER_SUFFIXES: [&str; 11] =
    ["h", "hh", "hpp", "hxx", "cuh", "inc", "inl", "ipp", "tpp", "tcc", "def"];
/// The largest number of headers that are copied. If a candidate needs a whole library of headers, the plan should name
/// its folder in `[build] include`.
const MAX_HEADERS: usize = 256;
/// The largest total size of a candidate's headers.
const MAX_HEADER_BYTES: Bytes = Bytes::mib(8);
/// The largest total size of a candidate's sources and headers.
pub const MAX_BYTES: Bytes = Bytes::mib(64);

/// A file of a candidate, with the relative path that its copy gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFile {
    pub path: PathBuf,
    pub relative: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFiles {
    /// The deepest folder that contains all sources.
    pub root: PathBuf,
    /// The sources, in the plan's order.
    pub sources: Vec<KernelFile>,
    /// The headers, sorted by path.
    pub headers: Vec<KernelFile>,
    /// Headers that exist and are included but are not copied. At most `MAX_HEADERS` of them are listed.
    pub left_out: Vec<LeftOut>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The header's name as written in the `#include` line.
    pub name: String,
    pub why: LeftOutReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeftOutReason {
    #[error("it is outside the folders of the candidate's sources")]
    Outside,
    #[error("it is not a file with the suffix of a header, or is a link to something else")]
    NoHeader,
    #[error("at most {MAX_HEADERS} headers with a total of {MAX_HEADER_BYTES} are copied")]
    TooMany,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "{} is a link to {}, whose name has another suffix; copy the file, or link to one with the same suffix",
    file.display(),
    target.display()
)]
struct MisleadingLink {
    file: PathBuf,
    target: PathBuf,
}

/// Returns true if the error is a `MisleadingLink`, which means that the candidate has a link that `may_link_to` does
/// not allow.
pub fn is_misleading_link(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<MisleadingLink>())
}

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("the candidate's files have more than {limit} in total")]
    TooLarge { limit: Bytes },
}

impl KernelFiles {
    /// Looks for the headers of `sources`, whose paths must be absolute. A source that cannot be read is not searched;
    /// copying it will fail.
    pub fn find(sources: &[PathBuf], language: Language) -> Self {
        let clean: Vec<PathBuf> = sources.iter().map(|path| without_dots(path)).collect();
        let root = common_folder(&clean);
        let placed = |(path, clean): (&PathBuf, &PathBuf)| KernelFile {
            path: path.clone(),
            relative: clean.strip_prefix(&root).unwrap_or(clean).to_owned(),
        };
        let sources: Vec<KernelFile> = sources.iter().zip(&clean).map(placed).collect();
        let mut search = Search::over(&sources);
        if has_includes(language) {
            search.run();
        }
        let Search { mut headers, left_out, .. } = search;
        headers.sort_by(|a, b| a.relative.cmp(&b.relative));
        Self { root, sources, headers, left_out }
    }

    pub fn all(&self) -> impl Iterator<Item = &KernelFile> {
        self.sources.iter().chain(&self.headers)
    }

    /// Copies all files to their relative paths in `folder`, and returns the copies. Fails if a file already exists or
    /// if the files exceed `limit` in total.
    pub fn copy_to(&self, folder: &Path, limit: Bytes) -> Result<Self, CopyError> {
        let mut room = limit.get();
        let mut copies = self.clone();
        copies.root = folder.to_owned();
        for file in copies.sources.iter_mut().chain(&mut copies.headers) {
            let target = folder.join(&file.relative);
            room = copy(&file.path, &target, room)?.ok_or(CopyError::TooLarge { limit })?;
            file.path = target;
        }
        Ok(copies)
    }
}

/// Opens a candidate's file, which must be a regular file or a link to one, because opening or reading anything else
/// could block forever. The error is a `MisleadingLink` if the path is a link to a kind of file to which it may not
/// lead (see `may_link_to`).
pub fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    let mut options = File::options();
    let options = options.read(true).custom_flags(i32::try_from(flags.bits()).unwrap_or(0));
    let file = match options.open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            let target = fs::canonicalize(path)?;
            if !may_link_to(path, &target) {
                let file = path.file_name().unwrap_or_default().into();
                return Err(io::Error::other(MisleadingLink { file, target }));
            }
            // The target's name has been checked, so the target must not have been replaced by another link in the
            // meantime.
            options.open(target)?
        }
        opened => opened?,
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

/// Returns true if a link at `path` may lead to `target`, judging by their suffixes. If any file of this machine could
/// be made to look like a source by a link, the candidate's author could read that file: a compiler quotes text that it
/// cannot compile, and the author sees the compiler's messages.
fn may_link_to(path: &Path, target: &Path) -> bool {
    (path.extension().is_some() && path.extension() == target.extension())
        || (is_header(path) && is_header(target))
        // The names of shared libraries often end in a version instead of `.so`.
        || (Language::of_path(path) == Some(Language::So)
            && target.file_name().is_some_and(|name| name.to_string_lossy().contains(".so.")))
}

/// Copies a file of at most `room` bytes. Returns how many of the `room` bytes are left, or `None` if the file is
/// larger.
fn copy(from: &Path, to: &Path, room: u64) -> Result<Option<u64>, CopyError> {
    let read = |source| CopyError::Read { path: from.to_owned(), source };
    let write = |source| CopyError::Write { path: to.to_owned(), source };
    let source = open(from).map_err(read)?;
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(write)?;
    }
    let mut target = File::options().write(true).create_new(true).open(to).map_err(write)?;
    let mut source = source.take(room.saturating_add(1));
    let mut buffer = vec![0; 64 << 10];
    let mut left = Some(room);
    loop {
        // `io::copy` would not show which of the two files failed.
        match source.read(&mut buffer) {
            Ok(0) => return Ok(left),
            Ok(length) => {
                target.write_all(&buffer[..length]).map_err(write)?;
                left = left.and_then(|left| left.checked_sub(length as u64));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(read(error)),
        }
    }
}

fn has_includes(language: Language) -> bool {
    match language.kind().toolchain {
        Toolchain::Cc
        | Toolchain::Cxx
        | Toolchain::Nvcc
        | Toolchain::NvccRecorded
        | Toolchain::Nvrtc
        | Toolchain::TorchExtension
        | Toolchain::TorchNvcc => true,
        Toolchain::Prebuilt
        | Toolchain::Python
        | Toolchain::Torch
        | Toolchain::TorchCompiler
        | Toolchain::Triton
        | Toolchain::TritonCompiler => false,
    }
}

struct Search {
    /// The folders of the sources, relative to the root. A header must be in or below one of them.
    folders: Vec<PathBuf>,
    to_read: Vec<KernelFile>,
    seen: BTreeSet<PathBuf>,
    headers: Vec<KernelFile>,
    bytes: u64,
    left_out: Vec<LeftOut>,
}

impl Search {
    fn over(sources: &[KernelFile]) -> Self {
        let folder = |file: &KernelFile| file.relative.parent().map(Path::to_owned);
        Self {
            folders: sources.iter().filter_map(folder).collect(),
            to_read: sources.to_vec(),
            seen: sources.iter().map(|file| file.relative.clone()).collect(),
            headers: Vec::new(),
            bytes: 0,
            left_out: Vec::new(),
        }
    }

    fn run(&mut self) {
        while let Some(file) = self.to_read.pop() {
            // Copying the file will fail and report it.
            let Ok(text) = open(&file.path) else { continue };
            let _ = each_include(text, &mut |name| self.consider(&file, name));
        }
    }

    /// Handles an `#include` of `name` in the file `by`: adds the header, or notes why it is left out. A header that
    /// does not exist is ignored, because the compiler will search other folders.
    fn consider(&mut self, by: &KernelFile, name: &str) {
        let Some(folder) = by.path.parent() else { return };
        let path = folder.join(name);
        let Ok(metadata) = fs::metadata(&path) else { return };
        let beside = by.relative.parent().unwrap_or(Path::new(""));
        let relative = if Path::new(name).is_absolute() { None } else { below(beside, Path::new(name)) };
        let inside = |relative: &PathBuf| self.folders.iter().any(|folder| relative.starts_with(folder));
        let Some(relative) = relative.filter(inside) else {
            return self.leave_out(name, LeftOutReason::Outside);
        };
        if self.seen.contains(&relative) {
            return;
        }
        let target = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        if !metadata.is_file() || !is_header(&relative) || !is_header(&target) {
            return self.leave_out(name, LeftOutReason::NoHeader);
        }
        let bytes = self.bytes.saturating_add(metadata.len());
        if self.headers.len() == MAX_HEADERS || MAX_HEADER_BYTES.get() < bytes {
            return self.leave_out(name, LeftOutReason::TooMany);
        }
        self.bytes = bytes;
        self.seen.insert(relative.clone());
        let file = KernelFile { path, relative };
        self.to_read.push(file.clone());
        self.headers.push(file);
    }

    fn leave_out(&mut self, name: &str, why: LeftOutReason) {
        let one = LeftOut { name: name.to_owned(), why };
        if self.left_out.len() < MAX_HEADERS && !self.left_out.contains(&one) {
            self.left_out.push(one);
        }
    }
}

fn is_header(path: &Path) -> bool {
    path.extension()
        .and_then(|suffix| suffix.to_str())
        .is_some_and(|suffix| HEADER_SUFFIXES.contains(&suffix))
}

/// Joins `name` to `folder`, which is relative to the root. `None` if the result is outside the root.
fn below(folder: &Path, name: &Path) -> Option<PathBuf> {
    let mut path = folder.to_owned();
    for part in name.components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

fn without_dots(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            part => clean.push(part),
        }
    }
    clean
}

fn common_folder(files: &[PathBuf]) -> PathBuf {
    let Some((first, others)) = files.split_first() else { return PathBuf::new() };
    let mut folder = first.parent().unwrap_or(first).to_owned();
    while !others.iter().all(|file| file.starts_with(&folder)) {
        if !folder.pop() {
            break;
        }
    }
    folder
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn with(files: &[(&str, &str)]) -> Self {
            let folder = Self(tempfile::tempdir().expect("a folder"));
            for (name, text) in files {
                let path = folder.path(name);
                fs::create_dir_all(path.parent().expect("a folder")).expect("made");
                fs::write(path, text).expect("written");
            }
            folder
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn find(&self, sources: &[&str]) -> KernelFiles {
            let sources: Vec<PathBuf> = sources.iter().map(|name| self.path(name)).collect();
            KernelFiles::find(&sources, Language::C)
        }
    }

    fn relative(files: &[KernelFile]) -> Vec<&str> {
        files.iter().map(|file| file.relative.to_str().expect("text")).collect()
    }

    fn left_out(files: &KernelFiles) -> Vec<(&str, LeftOutReason)> {
        files.left_out.iter().map(|it| (it.name.as_str(), it.why)).collect()
    }

    #[test]
    fn headers_below_a_source_and_their_includes_are_copied() {
        let folder = Folder::with(&[
            ("k/a.c", "#include \"x.h\"\n # include \"detail/y.inc\" // \"z.h\"\n#include <stdio.h>\n"),
            ("k/x.h", "#pragma once\n#include \"x.h\"\n#include \"not_there.h\"\n"),
            ("k/detail/y.inc", "#include \"../w.hpp\"\n"),
            ("k/w.hpp", ""),
            ("k/z.h", ""),
            ("k/other.c", ""),
        ]);
        let files = folder.find(&["k/a.c"]);
        assert_eq!((files.root.clone(), relative(&files.sources)), (folder.path("k"), vec!["a.c"]));
        assert_eq!(relative(&files.headers), ["detail/y.inc", "w.hpp", "x.h"]);
        assert_eq!(files.left_out, []);
        let copy = tempfile::tempdir().expect("a folder");
        files.copy_to(copy.path(), MAX_BYTES).expect("copied");
        assert!(copy.path().join("detail/y.inc").is_file() && !copy.path().join("z.h").exists());
        assert!(matches!(files.copy_to(copy.path(), MAX_BYTES), Err(CopyError::Write { .. })));
        let copy = tempfile::tempdir().expect("a folder");
        let small = files.copy_to(copy.path(), Bytes::new(8));
        assert!(matches!(small, Err(CopyError::TooLarge { .. })), "{small:?}");
    }

    #[test]
    fn included_files_that_are_outside_or_not_headers_are_left_out() {
        let outside = "op/entry_000000.pt";
        let folder = Folder::with(&[
            (
                "k/a.c",
                "#include \"../op/entry_000000.pt\"\n#include \"../shared.h\"\n#include \"b.c\"\n#include \"link.h\"\n\
                 #include \"/proc/self/status\"\n#include \"detail\"\n#include \"../k/x.h\"\n",
            ),
            ("k/b.c", ""),
            ("k/x.h", ""),
            ("k/detail/y.h", ""),
            ("shared.h", ""),
            (outside, "secret"),
        ]);
        std::os::unix::fs::symlink(folder.path(outside), folder.path("k/link.h")).expect("a link");
        let files = folder.find(&["k/a.c"]);
        assert_eq!(relative(&files.headers), Vec::<&str>::new());
        use LeftOutReason::{NoHeader, Outside};
        let expected = [
            ("../op/entry_000000.pt", Outside),
            ("../shared.h", Outside),
            ("b.c", NoHeader),
            ("link.h", NoHeader),
            ("/proc/self/status", Outside),
            ("detail", NoHeader),
            // The path leaves the source's folder and enters it again by its name, which does not exist among the
            // copies.
            ("../k/x.h", Outside),
        ];
        assert_eq!(left_out(&files), expected);
    }

    #[test]
    fn link_to_another_kind_of_file_is_not_opened() {
        let folder =
            Folder::with(&[("secret", "root:x"), ("k.c", ""), ("k.h", ""), ("k.so.1.2", ""), ("k.py", "")]);
        let link = |name: &str, target: &str| {
            let path = folder.path(name);
            std::os::unix::fs::symlink(folder.path(target), &path).expect("a link");
            path
        };
        for (name, target) in [("a.c", "k.c"), ("b.hpp", "k.h"), ("c.so", "k.so.1.2"), ("d.py", "d2.py")] {
            let path = link(name, target);
            if target == "d2.py" {
                link("d2.py", "k.py");
            }
            open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        for (name, target) in [
            ("e.c", "secret"),
            ("f.c", "k.py"),
            ("g.py", "secret"),
            ("h.h", "secret"),
            ("i.c", "e.c"),
            ("j.so", "secret"),
        ] {
            let error = open(&link(name, target)).expect_err(name);
            assert!(is_misleading_link(&error), "{name}: {error}");
        }
        let error = open(&link("password", "secret")).expect_err("no suffix shows what it is");
        assert!(is_misleading_link(&error), "{error}");
        open(&folder.path("secret")).expect("a file that is not a link may lack a suffix");
        assert!(!is_misleading_link(&open(&folder.path("none.c")).expect_err("no file")));
        let files = folder.find(&["e.c"]);
        let copy = tempfile::tempdir().expect("a folder");
        let copied = files.copy_to(copy.path(), MAX_BYTES);
        assert!(matches!(copied, Err(CopyError::Read { source, .. }) if is_misleading_link(&source)));
        let (path, _) = crate::digest::of_files(&files).expect_err("no digest");
        assert_eq!(path, folder.path("e.c"));
    }

    #[test]
    fn sources_of_several_folders_keep_their_relative_paths() {
        let folder = Folder::with(&[
            ("p/a/k.c", "#include \"../b/l.h\"\n#include \"../c/m.h\"\n"),
            ("p/b/k.c", ""),
            ("p/b/l.h", ""),
            ("p/c/m.h", ""),
        ]);
        let files = folder.find(&["p/a/k.c", "p/a/../b/k.c"]);
        assert_eq!(relative(&files.sources), ["a/k.c", "b/k.c"]);
        assert_eq!(relative(&files.headers), ["b/l.h"]);
        assert_eq!(left_out(&files), [("../c/m.h", LeftOutReason::Outside)]);
    }

    #[test]
    fn number_of_headers_and_length_of_searched_lines_are_limited() {
        let names: Vec<String> = (0..MAX_HEADERS + 1).map(|number| format!("h{number}.h")).collect();
        let long = format!("/*{}*/ #include \"long.h\"\n", "x".repeat(8190));
        let text: String = names.iter().map(|name| format!("#include \"{name}\"\n")).collect();
        let mut all = vec![("a.c".to_owned(), long + &text), ("long.h".to_owned(), String::new())];
        all.extend(names.iter().map(|name| (name.clone(), String::new())));
        let all: Vec<(&str, &str)> = all.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let files = Folder::with(&all).find(&["a.c"]);
        assert_eq!(files.headers.len(), MAX_HEADERS);
        assert_eq!(left_out(&files), [(names[MAX_HEADERS].as_str(), LeftOutReason::TooMany)]);
    }

    #[test]
    fn library_is_not_searched_for_headers() {
        let library = Folder::with(&[("k.so", "#include \"x.h\"\n"), ("x.h", "")]);
        assert_eq!(KernelFiles::find(&[library.path("k.so")], Language::So).headers, []);
    }
}
