//! Finds files by pattern: candidates in a folder and its subfolders, and entries in a single folder. The search is
//! bounded, and no file is opened.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use walkdir::WalkDir;

/// The maximum length of a pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 1024;

/// The maximum number of files and folders that are visited for one pattern. A pattern that visits more, such as `/**`,
/// is probably a mistake, and would take very long.
const MAX_VISITED: usize = 1_000_000;

/// The maximum depth to which `**` searches. Files below this depth are not found. The limit guards against folder
/// trees that a faulty program created.
const MAX_DEPTH: usize = 64;

#[derive(Debug, thiserror::Error)]
pub(super) enum GlobError {
    #[error("this pattern is longer than {MAX_PATTERN_BYTES} bytes")]
    TooLong,
    #[error("this is not a pattern: {0}")]
    Malformed(String),
    #[error("a pattern cannot have `..` after a wildcard")]
    ParentAfterWildcard,
    #[error("cannot find the folder `{0}`")]
    NoFolder(String),
    #[error("cannot find the file `{0}`")]
    NoFile(String),
    #[error("`{path}` is {what}, not a regular file")]
    NotAFile { path: String, what: &'static str },
    #[error("`{0}` is a folder (to name its files, append a pattern such as `/*.c`)")]
    Folder(String),
    #[error("no file matches this pattern")]
    Empty,
    #[error("more than {MAX_VISITED} files and folders lie below `{0}`")]
    TooMany(String),
    #[error("more than {max} files match")]
    TooManyMatches { max: usize },
    #[error("cannot read `{path}`: {reason}")]
    Unreadable { path: String, reason: String },
    #[error("`{0}` is not UTF-8, so plans and results cannot name it")]
    NotUtf8(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) path: PathBuf,
    /// The length in bytes of the path that `relative` returns.
    length: usize,
}

impl Match {
    /// Returns the part of the path below the fixed part of the pattern, with slashes.
    pub(super) fn relative(&self) -> &str {
        tail(&self.path, self.length).unwrap_or_default()
    }
}

/// Returns the last `length` bytes of a path. `None` if the path is shorter, or if these bytes are not UTF-8.
pub(super) fn tail(path: &Path, length: usize) -> Option<&str> {
    let bytes = path.as_os_str().as_bytes();
    std::str::from_utf8(&bytes[bytes.len().checked_sub(length)?..]).ok()
}

/// Returns the files that match a pattern, sorted by path. It is an error if no file matches, or if more than `max`
/// files do. Symbolic links are followed.
pub(super) fn expand(pattern: &str, base: &Path, max: usize) -> Result<Vec<Match>, GlobError> {
    let (root, rest) = split_fixed(pattern)?;
    let root: PathBuf = base.join(root).components().collect();
    if !is_wild(&rest) {
        let path = root.join(&rest);
        if path.is_dir() {
            return Err(GlobError::Folder(super::render::label(&path)));
        }
        check_file(&path)?;
        return Ok(vec![Match { path, length: rest.len() }]);
    }
    if !root.is_dir() {
        return Err(GlobError::NoFolder(super::render::label(&root)));
    }
    let matcher = compile(&rest)?;
    let depth = if rest.contains("**") { MAX_DEPTH } else { rest.matches('/').count() + 1 };
    let mut found = Vec::new();
    for (count, entry) in WalkDir::new(&root).follow_links(true).max_depth(depth).into_iter().enumerate() {
        if count > MAX_VISITED {
            return Err(GlobError::TooMany(super::render::label(&root)));
        }
        let entry = match entry {
            Ok(entry) => entry,
            // A link to a parent folder leads only to files that are visited anyway. A dangling link, or one to itself,
            // leads to none.
            Err(error) if error.loop_ancestor().is_some() || error.io_error().is_some_and(leads_nowhere) => {
                continue;
            }
            Err(error) => {
                return Err(GlobError::Unreadable {
                    path: error.path().map(super::render::label).unwrap_or_default(),
                    reason: error.io_error().map(ToString::to_string).unwrap_or_default(),
                });
            }
        };
        let Ok(relative) = entry.path().strip_prefix(&root) else { continue };
        if !entry.file_type().is_file() || !matcher.is_match(relative) {
            continue;
        }
        let Some(length) = relative.to_str().map(str::len) else {
            return Err(GlobError::NotUtf8(super::render::label(entry.path())));
        };
        if found.len() == max {
            return Err(GlobError::TooManyMatches { max });
        }
        let mut path = entry.into_path();
        path.shrink_to_fit();
        found.push(Match { path, length });
    }
    if found.is_empty() {
        return Err(GlobError::Empty);
    }
    found.sort_by(|a, b| a.relative().cmp(b.relative()));
    Ok(found)
}

fn leads_nowhere(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// Returns an error if a path is not that of a regular file.
pub(super) fn check_file(path: &Path) -> Result<(), GlobError> {
    let name = super::render::label(path);
    let kind = match std::fs::metadata(path) {
        Ok(it) => it.file_type(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(GlobError::NoFile(name)),
        Err(error) => return Err(GlobError::Unreadable { path: name, reason: error.to_string() }),
    };
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(GlobError::NotAFile { path: name, what })
}

/// The names in one folder that match at least one of several patterns.
pub(super) struct Listing {
    /// Everything that matches, sorted by name. Anything that is not a regular file, such as a dangling link, is
    /// included, because it cannot be read and must not be left out silently.
    pub(super) files: Vec<PathBuf>,
    /// For each pattern, whether any name in the folder matches it.
    pub(super) has_match: Vec<bool>,
}

/// Lists the matching names in one folder, without its subfolders. It is an error if more than `max` names match.
pub(super) fn list(folder: &Path, patterns: &[String], max: usize) -> Result<Listing, GlobError> {
    let matchers = patterns.iter().map(|pattern| compile(pattern)).collect::<Result<Vec<_>, _>>()?;
    let unreadable = |error: std::io::Error| GlobError::Unreadable {
        path: super::render::label(folder),
        reason: error.to_string(),
    };
    let mut listing = Listing { files: Vec::new(), has_match: vec![false; patterns.len()] };
    for (count, entry) in std::fs::read_dir(folder).map_err(unreadable)?.enumerate() {
        if count == MAX_VISITED {
            return Err(GlobError::TooMany(super::render::label(folder)));
        }
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        let mut matched = false;
        for (matcher, has_match) in matchers.iter().zip(&mut listing.has_match) {
            if matcher.is_match(&name) {
                matched = true;
                *has_match = true;
            }
        }
        if !matched {
            continue;
        }
        if name.to_str().is_none() {
            return Err(GlobError::NotUtf8(super::render::label(&entry.path())));
        }
        if listing.files.len() == max {
            return Err(GlobError::TooManyMatches { max });
        }
        listing.files.push(entry.path());
    }
    listing.files.sort();
    Ok(listing)
}

pub(super) fn compile(pattern: &str) -> Result<GlobMatcher, GlobError> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(GlobError::TooLong);
    }
    GlobBuilder::new(pattern)
        .literal_separator(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| GlobError::Malformed(error.kind().to_string()))
}

/// Splits a pattern into the folder before the first wildcard, and the rest. If there is no wildcard, the rest is the
/// last part of the path.
fn split_fixed(pattern: &str) -> Result<(String, String), GlobError> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(GlobError::TooLong);
    }
    let parts: Vec<&str> = pattern.split('/').collect();
    let last = parts.len() - 1;
    let fixed = parts.iter().position(|part| is_wild(part)).unwrap_or(last).min(last);
    let rest: Vec<&str> = parts[fixed..].iter().copied().filter(|part| !matches!(*part, "" | ".")).collect();
    if rest.contains(&"..") {
        return Err(GlobError::ParentAfterWildcard);
    }
    let mut root = parts[..fixed].join("/");
    if fixed > 0 && root.is_empty() {
        root.push('/');
    }
    Ok((root, rest.join("/")))
}

fn is_wild(part: &str) -> bool {
    part.contains(['*', '?', '[', '{', '\\'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        folder
    }

    #[test]
    fn relative_paths_begin_after_the_fixed_part() {
        let folder = tree(&["k/a.c", "k/d/b.cpp", "k/d/e/c.c", "k/d/readme.md", "x.c", "k/b{1}.c"]);
        for (pattern, expected) in [
            ("k/**/*.{c,cpp}", vec!["a.c", "b{1}.c", "d/b.cpp", "d/e/c.c"]),
            ("./k//*.c", vec!["a.c", "b{1}.c"]),
            ("k/*/b.cpp", vec!["d/b.cpp"]),
            ("k/d/../*.c", vec!["a.c", "b{1}.c"]),
            ("*.c", vec!["x.c"]),
            ("k/{d/e,q}/*.c", vec!["d/e/c.c"]),
            ("k/d/b.cpp", vec!["b.cpp"]),
        ] {
            let found = expand(pattern, folder.path(), 100).unwrap();
            let names: Vec<&str> = found.iter().map(Match::relative).collect();
            assert_eq!(names, expected, "{pattern}");
            assert!(found.iter().all(|found| found.path.is_file()));
        }
        let absolute = format!("{}/k/*.c", folder.path().display());
        assert_eq!(expand(&absolute, Path::new("/nowhere"), 100).unwrap().len(), 2);
    }

    #[test]
    fn expand_reports_patterns_that_cannot_be_used() {
        let folder = tree(&["k/a.c", "k/b.c", "odd/a.c"]);
        std::os::unix::fs::symlink("loop.c", folder.path().join("odd/loop.c")).expect("a link to itself");
        let _socket =
            std::os::unix::net::UnixListener::bind(folder.path().join("odd/socket.c")).expect("a socket");
        for (pattern, fragment) in [
            ("k/*.cu", "no file matches"),
            ("q/*.c", "cannot find the folder"),
            ("k/q.c", "cannot find the file"),
            ("odd/loop.c", "Too many levels of symbolic links"),
            ("odd/socket.c", "is a socket, not a regular file"),
            ("k/[.c", "not a pattern"),
            ("*/../k/*.c", "`..` after a wildcard"),
            ("k/*.c", "more than 1 files match"),
        ] {
            let error = expand(pattern, folder.path(), 1).unwrap_err().to_string();
            assert!(error.contains(fragment), "{pattern}: {error}");
        }
        assert!(matches!(expand(&"a".repeat(2000), folder.path(), 1), Err(GlobError::TooLong)));
    }

    #[test]
    fn expand_ignores_links_to_parents_to_themselves_and_to_nothing() {
        let folder = tree(&["k/a.c"]);
        std::os::unix::fs::symlink(folder.path().join("k"), folder.path().join("k/loop")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("k/dangling.c")).unwrap();
        std::os::unix::fs::symlink("self.c", folder.path().join("k/self.c")).unwrap();
        let found = expand("k/**/*.c", folder.path(), 100).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
