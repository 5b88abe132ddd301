//! Codecs for arrays (which replace weaker ones or append to them), for environments (which are merged), and for
//! folders and programs.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::PathBuf;

use toml::de::DeValue;

use super::codec::{Codec, NonEmptyText, Text};
use super::error::{Findings, Located, Spot};
use super::glob::{GlobError, check_file};
use super::print;
use super::table::{TableReader, TomlValue, describe};

/// The largest size of a list of flags or of an environment in one layer, in bytes. A process receives those of up to
/// four layers (the defaults, plan, job and candidate), and both Linux and the messages to runners allow 128 KiB.
const MAX_COMMAND_BYTES: usize = 24 << 10;

/// An array of values. The array of a stronger layer replaces it.
pub(super) struct List<C>(PhantomData<C>);

/// The maximum length of an array of values in a plan, such as flags, patterns or steps. A longer array is probably a
/// mistake.
const MAX_LIST_ITEMS: usize = 4096;

impl<C: Codec> Codec for List<C> {
    type Value = Vec<C::Value>;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Self::Value> {
        let items = located_list::<C>(value, spot, findings)?;
        Some(items.into_iter().map(|item| item.value).collect())
    }

    fn print(value: &Self::Value) -> String {
        format!("[{}]", value.iter().map(C::print).collect::<Vec<_>>().join(", "))
    }
}

/// Reads the elements of an array with their positions. Returns `None` if any element has a mistake.
pub(super) fn located_list<C: Codec>(
    value: &TomlValue<'_>,
    spot: &Spot,
    findings: &mut Findings,
) -> Option<Vec<Located<C::Value>>> {
    let DeValue::Array(array) = value.get_ref() else {
        let report = findings
            .report(spot, format!("wrong type: found {}", describe(value.get_ref())))
            .expected("an array");
        if let DeValue::String(text) = value.get_ref() {
            report.help(format!("write [{}]", print::string(&super::error::quote(text))));
        }
        return None;
    };
    if array.len() > MAX_LIST_ITEMS {
        findings
            .report(spot, format!("this array has {} elements", array.len()))
            .expected(format!("{MAX_LIST_ITEMS} at most"));
        return None;
    }
    let items: Vec<Option<Located<C::Value>>> = array
        .iter()
        .map(|item| {
            let spot = spot.at(item.span());
            C::read(item, &spot, findings).map(|value| Located { value, spot })
        })
        .collect();
    items.into_iter().collect()
}

/// An array of arguments for a command. The array of a stronger layer replaces it.
pub(super) struct Flags;

impl Codec for Flags {
    type Value = Vec<String>;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Vec<String>> {
        let items = List::<Text>::read(value, spot, findings)?;
        fits_a_command(items.iter().map(String::len), spot, findings).then_some(items)
    }

    fn print(value: &Vec<String>) -> String {
        List::<Text>::print(value)
    }
}

/// An array of arguments for a command. The array of a stronger layer is appended to it.
pub(super) struct Appended;

impl Codec for Appended {
    type Value = Vec<String>;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Vec<String>> {
        Flags::read(value, spot, findings)
    }

    fn print(value: &Vec<String>) -> String {
        Flags::print(value)
    }

    fn merge(weaker: &mut Vec<String>, stronger: &Vec<String>) {
        weaker.extend_from_slice(stronger);
    }

    fn difference(weaker: &Vec<String>, value: &Vec<String>) -> Option<Vec<String>> {
        // Layers only append, so the weaker list is always the beginning of the stronger one (`layers` ensures this for
        // `--set`).
        let rest = value.strip_prefix(weaker.as_slice()).unwrap_or(value);
        (!rest.is_empty()).then(|| rest.to_vec())
    }
}

/// Returns whether all texts together are short enough for a command, and reports them if they are not.
fn fits_a_command(lengths: impl Iterator<Item = usize>, spot: &Spot, findings: &mut Findings) -> bool {
    let bytes: usize = lengths.sum();
    if MAX_COMMAND_BYTES < bytes {
        findings
            .report(spot, format!("this takes {bytes} bytes"))
            .expected(format!("{MAX_COMMAND_BYTES} bytes at most"));
    }
    bytes <= MAX_COMMAND_BYTES
}

/// An existing folder. Relative paths are resolved against the plan's folder.
pub(super) struct Folder;

impl Codec for Folder {
    type Value = PathBuf;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<PathBuf> {
        let written = NonEmptyText::read(value, spot, findings)?;
        let path = findings.absolute(&written);
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => Some(path),
            Ok(_) => {
                findings.report(spot, format!("`{}` is not a folder", super::render::label(&path)));
                None
            }
            Err(error) => {
                findings.report(
                    spot,
                    format!("cannot find the folder `{}`: {error}", super::render::label(&path)),
                );
                None
            }
        }
    }

    fn print(value: &PathBuf) -> String {
        print::string(&value.to_string_lossy())
    }
}

/// A program, given by a name that is looked up on `PATH`, or by a path relative to the plan's folder. Symbolic links
/// are not resolved, because the interpreter of a virtual environment is such a link.
pub(super) struct Program;

impl Codec for Program {
    type Value = String;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<String> {
        let written = NonEmptyText::read(value, spot, findings)?;
        if !written.contains('/') {
            return Some(written);
        }
        let path = findings.absolute(&written);
        if let Err(error) = check_file(&path) {
            let why = match error {
                GlobError::NoFile(path) => format!("cannot find the program `{path}`"),
                other => other.to_string(),
            };
            findings.report(spot, why);
            return None;
        }
        Some(path.to_string_lossy().into_owned())
    }

    fn print(value: &String) -> String {
        print::string(value)
    }
}

/// Environment variables, merged key by key.
pub(super) struct Environment;

impl Codec for Environment {
    type Value = BTreeMap<String, String>;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Self::Value> {
        let table = TableReader::of(value, spot, findings)?;
        let mut variables = BTreeMap::new();
        let before = findings.count();
        for (name, value, spot, key_spot) in table.entries() {
            if name.is_empty() || name.contains(['=', '\0']) {
                findings
                    .report(&key_spot, "this cannot be the name of an environment variable")
                    .expected("at least one character, and no `=` or NUL");
            }
            if let Some(text) = Text::read(value, &spot, findings) {
                variables.insert(name.to_owned(), text);
            }
        }
        let lengths = variables.iter().map(|(name, text)| name.len() + text.len());
        let fits = fits_a_command(lengths, spot, findings);
        (findings.count() == before && fits).then_some(variables)
    }

    fn print(value: &Self::Value) -> String {
        let pairs: Vec<String> = value
            .iter()
            .map(|(name, text)| format!("{} = {}", print::key(name), print::string(text)))
            .collect();
        print::braces(&pairs)
    }

    fn merge(weaker: &mut Self::Value, stronger: &Self::Value) {
        weaker.extend(stronger.iter().map(|(name, text)| (name.clone(), text.clone())));
    }

    fn difference(weaker: &Self::Value, value: &Self::Value) -> Option<Self::Value> {
        let changed: Self::Value = value
            .iter()
            .filter(|(name, text)| weaker.get(*name) != Some(text))
            .map(|(name, text)| (name.clone(), text.clone()))
            .collect();
        (!changed.is_empty()).then_some(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::plan::mistakes::fixture_folder;

    #[test]
    fn flags_and_environments_that_do_not_fit_a_command_are_refused() {
        let folder = fixture_folder();
        let long = "x".repeat(MAX_COMMAND_BYTES);
        for (table, fits) in [
            (format!("[build]\nflags = [\"{long}\"]"), true),
            (format!("[build]\nflags = [\"{long}\", \"y\"]"), false),
            (format!("[build]\nextra_flags = [\"{long}\", \"y\"]"), false),
            (format!("[build]\nlink_flags = [\"{long}\", \"y\"]"), false),
            (format!("[build]\nenv = {{ A = \"{long}\" }}"), false),
            (format!("[limits]\nenv = {{ A = \"{long}\" }}"), false),
        ] {
            let text = format!("[[job]]\ncaptures = \"cap\"\nbaseline = \"k/naive.c\"\n{table}\n");
            let errors = Plan::parse(&text, &folder.path().join("plan.toml"), &[]).err();
            let shown = errors.map(|errors| errors.to_string()).unwrap_or_default();
            let refused =
                ["takes 24577 bytes", "expected 24576 bytes at most"].iter().all(|it| shown.contains(it));
            assert_eq!((shown.is_empty(), refused), (fits, !fits), "{}: {shown}", &table[..20]);
        }
    }
}
