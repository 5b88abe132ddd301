//! Walks a parsed TOML table: hands out the keys that are asked for and reports those that nobody asked for.
//!
//! What a value must look like is the codec's affair.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Findings, Spot, nearest, suggest};

pub(super) type TomlValue<'t> = Spanned<DeValue<'t>>;

/// One table of a text, being read.
pub(super) struct TableReader<'v, 't> {
    table: &'v DeTable<'t>,
    /// Where the table itself is: its header, or its braces.
    pub(super) spot: Spot,
    asked: Vec<&'static str>,
}

impl<'v, 't> TableReader<'v, 't> {
    pub(super) fn new(table: &'v DeTable<'t>, spot: Spot) -> Self {
        Self { table, spot, asked: Vec::new() }
    }

    /// A value that must be a table.
    pub(super) fn of(value: &'v TomlValue<'t>, spot: &Spot, findings: &mut Findings) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Self::new(table, spot.clone())),
            other => {
                wrong_type(other, spot, "a table", findings);
                None
            }
        }
    }

    /// The value of a key, if the table has it. Every key of the schema is asked for, present or not, so that what
    /// is left over is unknown.
    pub(super) fn take(&mut self, key: &'static str) -> Option<(&'v TomlValue<'t>, Spot)> {
        self.asked.push(key);
        // Spans are no part of what keys are ordered by.
        let value = self.table.get(key)?;
        Some((value, Spot { source: self.spot.source, span: value.span(), key: self.path_of(key) }))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Every key with its value, for tables whose keys are the user's own.
    pub(super) fn entries(&self) -> Vec<(&'v str, &'v TomlValue<'t>, Spot, Spot)> {
        self.table
            .iter()
            .map(|(key, value)| {
                let path = self.path_of(key.get_ref());
                let at = |span| Spot { source: self.spot.source, span, key: path.clone() };
                (key.get_ref().as_ref(), value, at(value.span()), at(key.span()))
            })
            .collect()
    }

    fn path_of(&self, key: &str) -> String {
        let key = super::print::key(&super::error::quote(key));
        if self.spot.key.is_empty() { key } else { format!("{}.{key}", self.spot.key) }
    }

    /// Reports every key that was not asked for. `reserved` are those kept for a later version; `homes` tells in
    /// which other table a key belongs.
    pub(super) fn finish(
        self,
        findings: &mut Findings,
        reserved: &[&str],
        home_of: impl Fn(&str) -> Option<&'static str>,
    ) {
        for (key, _, _, spot) in self.entries() {
            if self.asked.contains(&key) {
                continue;
            }
            if reserved.contains(&key) {
                findings
                    .report(&spot, "is reserved for a later version of opt-supervisor")
                    .help("remove it; this version does nothing with it");
                continue;
            }
            let table = if self.spot.key.is_empty() {
                "at the top of a plan".to_owned()
            } else {
                format!("in `{}`", self.spot.key)
            };
            let near = nearest(key, self.asked.iter().copied());
            let help = match (near, home_of(key)) {
                (None, Some(home)) => format!("`{key}` belongs in `[{home}]`"),
                _ => suggest(key, &self.asked),
            };
            findings.report(&spot, format!("unknown key {table}")).help(help);
        }
    }
}

/// Readers for the tables of an array of tables. An array with more than `most` is reported, and none of it is read.
pub(super) fn tables<'v, 't>(
    value: &'v TomlValue<'t>,
    spot: &Spot,
    header: &str,
    most: usize,
    findings: &mut Findings,
) -> Vec<TableReader<'v, 't>> {
    let DeValue::Array(array) = value.get_ref() else {
        findings
            .report(spot, format!("wrong type: found {}", describe(value.get_ref())))
            .expected("an array of tables")
            .help(format!("write `{header}`"));
        return Vec::new();
    };
    if array.len() > most {
        findings
            .report(spot, format!("there are {} of these", array.len()))
            .expected(format!("{most} at most"));
        return Vec::new();
    }
    array.iter().filter_map(|item| TableReader::of(item, &spot.at(item.span()), findings)).collect()
}

/// Reads a key with `read`. `None` only if the key is missing.
pub(super) fn take_with<T>(
    table: &mut TableReader<'_, '_>,
    key: &'static str,
    findings: &mut Findings,
    read: impl FnOnce(&TomlValue<'_>, &Spot, &mut Findings) -> T,
) -> Option<T> {
    let (value, spot) = table.take(key)?;
    Some(read(value, &spot, findings))
}

pub(super) fn wrong_type(value: &DeValue<'_>, spot: &Spot, expected: &str, findings: &mut Findings) {
    findings.report(spot, format!("wrong type: found {}", describe(value))).expected(expected);
}

/// A value as a message names it.
pub(super) fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string \"{}\"", super::error::quote(text)),
        DeValue::Integer(number) => format!("the integer {}", super::error::quote(&number.to_string())),
        DeValue::Float(number) => format!("the number {}", super::error::quote(number.as_str())),
        DeValue::Boolean(value) => format!("{value}"),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
