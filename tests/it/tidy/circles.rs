//! Checks that the modules of `shared`, `supervisor` and `worker` have no circular dependencies except known ones.
//!
//! The check runs at each level of a crate's module tree, where a module includes all its descendants. It finds
//! dependencies in the text: in `use` declarations, and in paths that begin with `crate`, `self`, `super`, a child or
//! an imported name. A module may depend on its parent, and test code does not count.

use std::collections::{BTreeMap, BTreeSet};

use super::{assert_none, texts};

/// The known circular dependencies. Each row has the crate, the level, and the members. A circle may have fewer members
/// than listed.
const KNOWN_CIRCLES: [(&str, &str, &[&str]); 10] = [
    ("supervisor", "core", &["event", "spec"]),
    ("supervisor", "core", &["job", "supply"]),
    ("supervisor", "driver", &["answer", "candidate_facts", "error", "folder", "run", "survey"]),
    ("supervisor", "driver/run", &["agenda", "candidates", "replay", "supply"]),
    ("supervisor", "report", &["markdown", "replays", "text"]),
    ("worker", "judge", &["compare", "evidence", "feed", "layout", "tally", "unwritten"]),
    ("worker", "runner", &["abi", "enter"]),
    ("worker", "sandbox/canary", &["attempts", "confined"]),
    ("worker", "session/host", &["clock", "session"]),
    ("worker", "session/host", &["outputs", "placed", "read_ahead"]),
];

type Path = Vec<String>;

/// The modules of a library, with their code.
struct Library {
    modules: BTreeMap<Path, String>,
    /// The names that each module imports, with their paths.
    names: BTreeMap<(Path, String), Path>,
}

#[test]
fn modules_form_only_known_circles() {
    let mut wrong = Vec::new();
    let mut gone: Vec<_> = KNOWN_CIRCLES.iter().collect();
    for library in ["shared", "supervisor", "worker"] {
        for (level, circle) in circles(&Library::read(library)) {
            let known = |(crate_, at, members): &(&str, &str, &[&str])| {
                (*crate_, *at) == (library, level.as_str())
                    && circle.iter().all(|it| members.contains(&it.as_str()))
            };
            gone.retain(|it| !known(it));
            if !KNOWN_CIRCLES.iter().any(known) {
                wrong.push(format!("{library}/src/{level}: {}", circle.join(", ")));
            }
        }
    }
    wrong.extend(gone.iter().map(|(library, level, circle)| {
        format!(
            "{library}/src/{level}: {} no longer depend on each other (remove them from `KNOWN_CIRCLES`)",
            circle.join(", ")
        )
    }));
    assert_none("modules that depend on each other", &wrong);
}

/// The check finds a circle through a re-export and a circle between folders. It finds none between a child and its
/// parent, because such circles are allowed.
#[test]
fn check_finds_circles() {
    let of = |files: &[(&str, &str)]| {
        let modules = files.iter().map(|(path, code)| (parts(path), (*code).to_owned())).collect();
        circles(&Library::new(modules))
    };
    let circle =
        |level: &str, members: &[&str]| (level.to_owned(), members.iter().map(ToString::to_string).collect());
    let straight = [
        ("lib", "mod a; mod b; use a::f;"),
        ("a", "use crate::b::{self, g};"),
        ("b", "fn g() { super::h() }"),
    ];
    assert_eq!(of(&straight), []);
    let back = [straight[0], straight[1], ("b", "use crate::f as other;")];
    assert_eq!(of(&back), [circle("", &["a", "b"])]);
    let folders = [
        ("lib", ""),
        ("x/one", "use crate::y;"),
        ("x/mod", "mod one;"),
        ("y/two", "crate::x::one::f()"),
        ("y/mod", ""),
    ];
    assert_eq!(of(&folders), [circle("", &["x", "y"])]);
    let inner = [
        ("lib", ""),
        ("x/mod", ""),
        ("x/one", "two::f()\nuse super::two;"),
        ("x/two", "use super::three::{a};"),
        ("x/three", "use super::one;"),
    ];
    assert_eq!(of(&inner), [circle("x", &["one", "three", "two"])]);
}

fn parts(path: &str) -> Path {
    let mut parts: Path = path.split('/').map(str::to_owned).collect();
    parts.pop_if(|last| matches!(last.as_str(), "mod" | "lib"));
    parts
}

impl Library {
    fn read(name: &str) -> Self {
        let root = format!("{name}/src/");
        let mut modules = BTreeMap::new();
        let mut tests: Vec<Path> = Vec::new();
        for file in texts(&root, &[".rs"]) {
            let below = file.path.strip_prefix(&root).and_then(|path| path.strip_suffix(".rs")).unwrap_or("");
            if below == "main" {
                continue;
            }
            let path = parts(below);
            let code: String = file.code().flat_map(|(_, line)| [line, "\n"]).collect();
            for after in code.split("#[cfg(test)]\n").skip(1) {
                let declared = after.split(';').next().and_then(|text| text.split("mod ").nth(1));
                tests.extend(declared.map(|it| [path.as_slice(), &[it.trim().to_owned()]].concat()));
            }
            let end = code.find("#[cfg(test)]\nmod tests {").unwrap_or(code.len());
            modules.insert(path, code[..end].to_owned());
        }
        modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
        Self::new(modules)
    }

    fn new(modules: BTreeMap<Path, String>) -> Self {
        let mut library = Self { modules, names: BTreeMap::new() };
        let mut names = BTreeMap::new();
        for (module, code) in &library.modules {
            for (path, name) in used(code) {
                if let Some(target) = library.absolute(module, &path) {
                    names.insert((module.clone(), name), target);
                }
            }
        }
        library.names = names;
        library
    }

    /// Converts a path that occurs in `module` to a path from the library's root. Returns `None` for a path outside the
    /// library.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Path> {
        let first = path.first()?;
        let child = || [module, std::slice::from_ref(first)].concat();
        match first.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([module, &path[1..]].concat()),
            "super" => {
                let up = path.iter().take_while(|part| *part == "super").count();
                Some([module.get(..module.len().checked_sub(up)?)?, &path[up..]].concat())
            }
            _ if self.modules.contains_key(&child()) => Some([module, path].concat()),
            _ => {
                let target = self.names.get(&(module.to_vec(), first.clone()))?;
                Some([target, &path[1..]].concat())
            }
        }
    }

    /// Returns the module that defines the item at `path`. Follows at most `max` re-exports.
    fn home(&self, path: &[String], max: u32) -> Path {
        let longest_module =
            (0..=path.len()).rev().find(|&length| self.modules.contains_key(&path[..length]));
        let (module, rest) = path.split_at(longest_module.unwrap_or(0));
        let elsewhere = rest.first().and_then(|name| self.names.get(&(module.to_vec(), name.clone())));
        match elsewhere {
            Some(target) if 0 < max => self.home(&[target, &rest[1..]].concat(), max - 1),
            _ => module.to_vec(),
        }
    }
}

/// Returns the paths of all `use` declarations, with the names that they introduce.
fn used(code: &str) -> Vec<(Path, String)> {
    let mut found = Vec::new();
    for statement in code.split(';') {
        let Some(at) = statement.rfind("use ") else { continue };
        let (before, tree) = (&statement[..at], &statement[at + 4..]);
        if before.is_empty() || before.ends_with(|c: char| c.is_whitespace()) {
            expand(tree, &[], &mut found);
        }
    }
    found
}

fn expand(tree: &str, above: &[String], found: &mut Vec<(Path, String)>) {
    let tree = tree.trim();
    if let Some((path, inner)) = tree.split_once('{') {
        let above = [above, &split_path(path)].concat();
        let mut depth = 0;
        let inner = inner.strip_suffix('}').unwrap_or(inner);
        let parts = inner.split(|c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        parts.filter(|part| !part.trim().is_empty()).for_each(|part| expand(part, &above, found));
        return;
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias)));
    let mut path = [above, &split_path(path)].concat();
    path.pop_if(|last| last == "self");
    if let Some(name) = alias.map(|it| it.trim().to_owned()).or_else(|| path.last().cloned()) {
        found.push((path, name));
    }
}

fn split_path(text: &str) -> Path {
    text.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn circles(library: &Library) -> Vec<(String, Path)> {
    // The children that each child depends on, for every level.
    let mut levels: BTreeMap<Path, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (module, code) in &library.modules {
        let paths = code
            .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
            .filter(|word| word.contains("::"))
            .map(split_path)
            .chain(used(code).into_iter().map(|(path, _)| path));
        for path in paths {
            let Some(path) = library.absolute(module, &path) else { continue };
            let target = library.home(&path, 8);
            let common = module.iter().zip(&target).take_while(|(one, other)| one == other).count();
            if let (Some(from), Some(to)) = (module.get(common), target.get(common)) {
                let level = levels.entry(module[..common].to_vec()).or_default();
                level.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    let mut found = Vec::new();
    for (level, edges) in levels {
        let reached: BTreeMap<&String, BTreeSet<&String>> =
            edges.keys().map(|from| (from, reach(&edges, from))).collect();
        let depends = |one: &String, other: &String| reached.get(one).is_some_and(|it| it.contains(other));
        let mut seen = BTreeSet::new();
        for from in edges.keys().filter(|from| depends(from, from)) {
            let circle: Path =
                edges.keys().filter(|to| depends(from, to) && depends(to, from)).cloned().collect();
            if seen.insert(circle.clone()) {
                found.push((level.join("/"), circle));
            }
        }
    }
    found
}

fn reach<'a>(edges: &'a BTreeMap<String, BTreeSet<String>>, from: &String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&String> = edges.get(from).into_iter().flatten().collect();
    while let Some(next) = open.pop() {
        if reached.insert(next) {
            open.extend(edges.get(next).into_iter().flatten());
        }
    }
    reached
}
