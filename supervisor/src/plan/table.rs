//! Reads the keys of a TOML table and reports unknown ones. Codecs check the values.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Findings, Spot, nearest, suggest};

pub(super) type TomlValue<'t> = Spanned<DeValue<'t>>;

/// A reader of one table. It records which keys have been read.
pub(super) struct TableReader<'v, 't> {
    table: &'v DeTable<'t>,
    /// The position of the table, which is that of its header or its braces.
    pub(super) spot: Spot,
    taken: Vec<&'static str>,
}

impl<'v, 't> TableReader<'v, 't> {
    pub(super) fn new(table: &'v DeTable<'t>, spot: Spot) -> Self {
        Self { table, spot, taken: Vec::new() }
    }

    /// Creates a reader for a value that must be a table.
    pub(super) fn of(value: &'v TomlValue<'t>, spot: &Spot, findings: &mut Findings) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Self::new(table, spot.clone())),
            other => {
                wrong_type(other, spot, "a table", findings);
                None
            }
        }
    }

    /// Returns the value of a key, if the table has the key. The caller asks for every key of the schema, so a key that
    /// is left over is unknown.
    pub(super) fn take(&mut self, key: &'static str) -> Option<(&'v TomlValue<'t>, Spot)> {
        self.taken.push(key);
        let value = self.table.get(key)?;
        Some((value, Spot { source: self.spot.source, span: value.span(), key: self.path_of(key) }))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Returns all keys with their values, for tables in which the user chooses the keys. The first position is that of
    /// the value, and the second that of the key.
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

    /// Reports every key that was not taken. `reserved` lists keys that a later version may have. `table_of_key`
    /// returns the table in which a misplaced key belongs.
    pub(super) fn finish(
        self,
        findings: &mut Findings,
        reserved: &[&str],
        table_of_key: impl Fn(&str) -> Option<&'static str>,
    ) {
        for (key, _, _, spot) in self.entries() {
            if self.taken.contains(&key) {
                continue;
            }
            if reserved.contains(&key) {
                findings
                    .report(&spot, "this name is reserved for a later version of opt-supervisor")
                    .help("remove it, because this version cannot use it");
                continue;
            }
            let table = if self.spot.key.is_empty() {
                "at the top of a plan".to_owned()
            } else {
                format!("in `{}`", self.spot.key)
            };
            let near = nearest(key, self.taken.iter().copied());
            let help = match (near, table_of_key(key)) {
                (None, Some(table)) => format!("`{key}` belongs in `[{table}]`"),
                _ => suggest(key, &self.taken),
            };
            findings.report(&spot, format!("unknown key {table}")).help(help);
        }
    }
}

/// Creates a reader for each table of an array. An array with more than `max` tables is reported, and none of it is
/// read.
pub(super) fn tables<'v, 't>(
    value: &'v TomlValue<'t>,
    spot: &Spot,
    header: &str,
    max: usize,
    findings: &mut Findings,
) -> Vec<TableReader<'v, 't>> {
    let DeValue::Array(array) = value.get_ref() else {
        findings
            .report(spot, format!("wrong type: found {}", describe(value.get_ref())))
            .expected("an array of tables")
            .help(format!("write `{header}`"));
        return Vec::new();
    };
    if array.len() > max {
        findings
            .report(spot, format!("there are {} `{header}` tables", array.len()))
            .expected(format!("{max} at most"));
        return Vec::new();
    }
    array.iter().filter_map(|item| TableReader::of(item, &spot.at(item.span()), findings)).collect()
}

/// Reads a key with `read`. Returns `None` only if the key is missing.
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

/// Describes a value for a message.
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
