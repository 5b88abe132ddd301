//! Finds messages in the source: the texts of `#[error(…)]`, `anyhow!`, `bail!`, `warn!` and `error!`. It replaces
//! their arguments by examples.
//!
//! This is not a Rust parser: it recognises only string literals and matching brackets.

use std::path::Path;

/// A message and its position in the source.
pub struct Message {
    /// The file's path relative to the root of the repository.
    pub file: String,
    /// The name of the message: `Enum::Variant`, the struct, or the macro.
    pub name: String,
    pub example: String,
}

/// The texts with which messages begin. In a log macro, fields may precede the message.
const OPENINGS: [&str; 5] = ["#[error(", "anyhow!(", "bail!(", "warn!(", "error!("];

/// Examples for arguments, by the name of the argument. If an argument has no example, its name is shown.
const EXAMPLES: [(&str, &str); 40] = [
    ("action", "opening"),
    ("address", "127.0.0.1:9464"),
    ("and_others(*others)", " (and in 3 more entries)"),
    ("asked", "8.00 GiB"),
    ("available", "3.20 GiB"),
    ("budget", "512 MiB"),
    ("bytes", "4096"),
    ("candidate", "softmax/fast"),
    ("captures", "/data/captures/softmax"),
    ("code", "1"),
    ("command", "cc"),
    ("count", "3"),
    ("device", "cuda:0"),
    ("dtype", "float32"),
    ("entry", "entry_000003"),
    ("first", "entry_000000"),
    ("folder", "/data/captures"),
    ("format", "md"),
    ("index", "7"),
    ("job", "softmax"),
    ("key", "kwargs"),
    ("known", "4"),
    ("length", "4096"),
    ("limit", "1024"),
    ("line", "12"),
    ("name", "weight"),
    ("needed", "2.00 GiB"),
    ("offset", "64"),
    ("operation", "open"),
    ("others", "entry_000004, entry_000007"),
    ("output", "output[1]"),
    ("parameter", "dim"),
    ("path", "/data/captures/softmax/entry_000003.pt"),
    ("pid", "4711"),
    ("place", "/data/op.store/blobs/ab/ab12"),
    ("replay", "model"),
    ("shape", "[4, 33]"),
    ("signature_entry", "entry_000000"),
    ("source_name", "entry_000003.pt"),
    ("version", "7"),
];

/// Returns the messages of `shared`, `supervisor` and `worker`, without those of their tests, sorted by file.
pub fn messages(root: &Path) -> Vec<Message> {
    let mut files = Vec::new();
    for member in ["shared/src", "supervisor/src", "worker/src"] {
        collect(&root.join(member), &mut files);
    }
    files.sort();
    files.into_iter().flat_map(|file| of_file(root, &file)).collect()
}

fn collect(folder: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("a readable folder").path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" && name != "canaries" {
            collect(&path, files);
        } else if path.extension().is_some_and(|ending| ending == "rs") && !name.ends_with("tests") {
            files.push(path);
        }
    }
}

fn of_file(root: &Path, path: &Path) -> Vec<Message> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let file = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some((start, opening)) = next_opening(text, at) {
        let body_start = start + opening.len();
        let end = body_start + closing(&text[body_start..]);
        at = end;
        // A message without a literal is `transparent`, or another expression gives its text.
        let Some((literal, rest)) = first_literal(&text[body_start..end]) else { continue };
        let name = if opening == "#[error(" {
            variant(text, start, end)
        } else {
            opening.trim_end_matches('(').to_owned()
        };
        found.push(Message { file: file.clone(), name, example: example(&literal, rest) });
    }
    found
}

/// Finds the next message. A longer word that merely ends like a log macro does not count.
fn next_opening(text: &str, from: usize) -> Option<(usize, &'static str)> {
    let places = OPENINGS.iter().filter_map(|opening| {
        let mut matches = text[from..].match_indices(opening).map(|(at, _)| from + at);
        matches
            .find(|&at| !text[..at].ends_with(|char: char| char.is_alphanumeric() || char == '_'))
            .map(|at| (at, *opening))
    });
    places.min()
}

/// The number of bytes before the bracket that closes the one opened just before `text` starts.
fn closing(text: &str) -> usize {
    let (mut depth, mut chars) = (1, text.char_indices());
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => {
                while chars.next().is_some_and(|(_, char)| {
                    if char == '\\' {
                        chars.next();
                    }
                    char != '"'
                }) {}
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Returns the first string literal, with its escapes resolved, and the rest of the body.
fn first_literal(body: &str) -> Option<(String, &str)> {
    let start = body.find('"')?;
    let mut literal = String::new();
    let mut chars = body[start + 1..].char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((literal, &body[start + 1 + at + 1..])),
            '\\' => match chars.next()?.1 {
                '\n' => while chars.next_if(|(_, char)| char.is_whitespace()).is_some() {},
                'n' => literal.push('\n'),
                other => literal.push(other),
            },
            other => literal.push(other),
        }
    }
    None
}

/// Returns the name that follows the attributes: `Enum::Variant` or the name of a struct.
fn variant(text: &str, start: usize, end: usize) -> String {
    let name = |line: &str| -> String {
        line.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect()
    };
    let item = |line: &str| {
        let line = line.trim_start();
        let line =
            line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub(super) ")).unwrap_or(line);
        let line = line.strip_prefix("pub ").unwrap_or(line);
        line.strip_prefix("enum ").or_else(|| line.strip_prefix("struct ")).map(name)
    };
    let mut following = text[end..].lines().skip(1).map(str::trim_start);
    let line = following.find(|line| !line.starts_with(['#', '/'])).unwrap_or_default();
    if let Some(own) = item(line) {
        return own;
    }
    let parent = text[..start].lines().rev().find_map(item).unwrap_or_default();
    format!("{parent}::{}", name(line))
}

/// Returns the text with an example in place of each argument.
fn example(literal: &str, rest: &str) -> String {
    let mut arguments = top_level_parts(rest).into_iter();
    let named: Vec<(String, String)> = top_level_parts(rest)
        .iter()
        .filter_map(|part| part.split_once(" = ").map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect();
    let mut text = String::new();
    let mut chars = literal.chars().peekable();
    while let Some(char) = chars.next() {
        if (char == '{' || char == '}') && chars.next_if_eq(&char).is_some() {
            text.push(char);
        } else if char == '{' {
            let inside: String = chars.by_ref().take_while(|char| *char != '}').collect();
            let wanted = inside.split(':').next().unwrap_or_default();
            let argument =
                if wanted.is_empty() { arguments.next().unwrap_or_default() } else { wanted.to_owned() };
            let argument =
                named.iter().find(|(name, _)| *name == argument).map_or(argument, |(_, value)| value.clone());
            text.push_str(&example_for(&argument));
        } else {
            text.push(char);
        }
    }
    text.replace('\n', "\\n")
}

/// Returns the text that a message shows in place of an argument: the argument's example, or its name if it has none.
fn example_for(argument: &str) -> String {
    let plain = argument.trim().trim_start_matches(['*', '&']);
    let plain = plain.strip_suffix(".display()").unwrap_or(plain);
    let last = plain.rsplit('.').find(|part| !part.ends_with(')')).unwrap_or(plain);
    let example_of = |wanted: &str| {
        EXAMPLES.iter().find(|(name, _)| *name == wanted).map(|(_, example)| (*example).to_owned())
    };
    example_of(plain).or_else(|| example_of(last)).unwrap_or_else(|| format!("‹{plain}›"))
}

/// Splits a list of arguments at its commas, ignoring commas inside brackets.
fn top_level_parts(text: &str) -> Vec<String> {
    let (mut depth, mut parts, mut quoted) = (0, vec![String::new()], false);
    for char in text.chars() {
        match char {
            '"' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => depth += 1,
            ')' | ']' | '}' if !quoted => depth -= 1,
            _ => {}
        }
        match parts.last_mut() {
            Some(_) if char == ',' && depth == 0 && !quoted => parts.push(String::new()),
            Some(part) => part.push(char),
            None => {}
        }
    }
    let parts = parts.into_iter().map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    parts.filter(|part| !part.is_empty()).collect()
}
