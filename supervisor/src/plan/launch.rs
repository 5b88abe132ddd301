//! Reads and prints `[[job.candidate.launch]]` and `[[job.candidate.workspace]]`, which say how a candidate without
//! host code is called.
//!
//! A syntax error in an expression is reported at its position in the plan. Names in expressions are resolved later,
//! with the captures.

use std::collections::BTreeSet;
use std::ops::Range;

use opt_shared::launch::{
    Expression, Launch, LaunchArg, LaunchStep, MAX_ARGS, MAX_STEPS, MAX_WORKSPACES, SyntaxError, Workspace,
    is_name,
};
use toml::de::DeValue;

use super::codec::{Codec, NonEmptyText, integer, string};
use super::error::{Findings, Spot, quote};
use super::lists::List;
use super::print;
use super::schema::table_of_key;
use super::table::{TableReader, TomlValue, tables, take_with};

/// Keys that are valid only in a launch. If a candidate's own table contains one of them, the error says that the key
/// belongs in a launch.
pub(super) const LAUNCH_KEYS: [&str; 4] = ["grid", "block", "shared_mem", "args"];

const EXPRESSION: &str = "a whole number, or an expression such as \"ceil_div(out.numel, 256)\"";
const NUMBER: &str = "a whole number from 0 to 4294967295, or an expression";
const EXTENT: &str =
    "a whole number, an expression such as \"ceil_div(out.numel, 256)\", or an array of up to three of them";

/// Reads the launches and workspaces of a candidate. Returns `None` if any of them has a mistake.
pub(super) fn read_launch(table: &mut TableReader<'_, '_>, findings: &mut Findings) -> Option<Launch> {
    let before = findings.count();
    let workspaces = take_with(table, "workspace", findings, |value, spot, findings| {
        let tables = tables(value, spot, "[[job.candidate.workspace]]", MAX_WORKSPACES, findings);
        let mut names = BTreeSet::new();
        tables.into_iter().filter_map(|table| read_workspace(table, &mut names, findings)).collect()
    });
    let steps = take_with(table, "launch", findings, |value, spot, findings| {
        let tables = tables(value, spot, "[[job.candidate.launch]]", MAX_STEPS, findings);
        tables.into_iter().filter_map(|table| read_step(table, findings)).collect()
    });
    let launch = Launch { steps: steps.unwrap_or_default(), workspaces: workspaces.unwrap_or_default() };
    (findings.count() == before).then_some(launch)
}

fn read_workspace(
    mut table: TableReader<'_, '_>,
    names: &mut BTreeSet<String>,
    findings: &mut Findings,
) -> Option<Workspace> {
    const NAME: &str = "a name of letters, digits and `_` that does not begin with a digit";
    let name = required(&mut table, "name", NAME, findings, |value, spot, findings| {
        let name = string(value, spot, NAME, findings)?;
        if !is_name(&name) {
            findings
                .report(spot, format!("`{}` cannot be used in an expression", quote(&name)))
                .expected(NAME);
            return None;
        }
        if !names.insert(name.clone()) {
            findings.report(spot, format!("two workspaces are named `{}`", quote(&name)));
            return None;
        }
        Some(name)
    });
    let bytes = required(&mut table, "bytes", EXPRESSION, findings, expression);
    table.finish(findings, &[], table_of_key);
    Some(Workspace { name: name?, bytes: bytes? })
}

fn read_step(mut table: TableReader<'_, '_>, findings: &mut Findings) -> Option<LaunchStep> {
    let symbol = required(
        &mut table,
        "symbol",
        "the name of a `__global__` function",
        findings,
        |value, spot, findings| {
            let symbol = NonEmptyText::read(value, spot, findings)?;
            let fits = symbol.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_$.@".contains(&byte));
            if !fits || symbol.len() > 1024 {
                findings.report(spot, format!("`{}` is not a symbol", quote(&symbol)));
                return None;
            }
            Some(symbol)
        },
    );
    let grid = required(&mut table, "grid", EXTENT, findings, extents);
    let block = required(&mut table, "block", EXTENT, findings, extents);
    let shared_mem = take_with(&mut table, "shared_mem", findings, expression);
    let args = take_with(&mut table, "args", findings, |value, spot, findings| {
        let args = List::<Arg>::read(value, spot, findings)?;
        if args.len() > MAX_ARGS {
            findings
                .report(spot, format!("this launch has {} arguments", args.len()))
                .expected(format!("{MAX_ARGS} at most"));
            return None;
        }
        Some(args)
    });
    table.finish(findings, &[], table_of_key);
    Some(LaunchStep {
        symbol: symbol?,
        grid: grid?,
        block: block?,
        shared_mem: shared_mem.unwrap_or_else(|| Some(Expression::number(0)))?,
        args: args.unwrap_or_else(|| Some(Vec::new()))?,
    })
}

/// Reads a key, and reports it if it is missing.
fn required<T>(
    table: &mut TableReader<'_, '_>,
    key: &'static str,
    expected: &str,
    findings: &mut Findings,
    read: impl FnOnce(&TomlValue<'_>, &Spot, &mut Findings) -> Option<T>,
) -> Option<T> {
    if !table.has(key) {
        findings.report(&table.spot.clone(), format!("the key `{key}` is missing")).expected(expected);
    }
    take_with(table, key, findings, read).flatten()
}

fn extents(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<[Expression; 3]> {
    let mut extents = [1; 3].map(Expression::number);
    let DeValue::Array(array) = value.get_ref() else {
        extents[0] = expression(value, spot, findings)?;
        return Some(extents);
    };
    if array.is_empty() || extents.len() < array.len() {
        findings.report(spot, format!("this array has {} elements", array.len())).expected(EXTENT);
        return None;
    }
    let mut all_valid = true;
    for (extent, item) in extents.iter_mut().zip(array.iter()) {
        match expression(item, &spot.at(item.span()), findings) {
            Some(read) => *extent = read,
            None => all_valid = false,
        }
    }
    all_valid.then_some(extents)
}

fn expression(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Expression> {
    if let DeValue::Integer(_) = value.get_ref() {
        let number = integer(value, spot, EXPRESSION, findings)?;
        let number = u32::try_from(number).ok();
        if number.is_none() {
            findings.report(spot, "this number is out of range").expected(NUMBER);
        }
        return number.map(Expression::number);
    }
    let text = string(value, spot, EXPRESSION, findings)?;
    Expression::parse(&text).map_err(|error| report(&error, spot, findings)).ok()
}

/// Reports a syntax error in an expression. Its exact position is known only if the string has no escapes. Otherwise
/// the whole string is marked.
fn report(error: &SyntaxError, spot: &Spot, findings: &mut Findings) {
    let string_span = spot.span.clone();
    let without_escapes = string_span.len() == error.text.len() + 2;
    let at = |part: &Range<usize>| {
        let start = string_span.start + 1 + part.start;
        // A missing part has length zero, so one character is marked instead. At the end of the text, this is the
        // closing quote.
        start..(string_span.start + 1 + part.end).max(start + 1)
    };
    let span = if without_escapes { at(&error.at) } else { string_span.clone() };
    findings.report(&spot.at(span), error.message.clone());
}

struct Arg;

impl Codec for Arg {
    type Value = LaunchArg;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<LaunchArg> {
        const FORM: &str = "an argument such as \"input\", \"out.numel\" or \"1e-5:f32\"";
        let text = string(value, spot, FORM, findings)?;
        LaunchArg::parse(&text).map_err(|error| report(&error, spot, findings)).ok()
    }

    fn print(value: &LaunchArg) -> String {
        print::string(value.text())
    }
}

/// Returns the tables of a launch. Each consists of its header and its lines.
pub(super) fn print_launch(launch: &Launch) -> Vec<(&'static str, Vec<(&'static str, String)>)> {
    let text = |expression: &Expression| print::string(expression.text());
    let extents = |extents: &[Expression; 3]| format!("[{}]", extents.each_ref().map(text).join(", "));
    let workspaces = launch.workspaces.iter().map(|workspace| {
        let lines = vec![("name", print::string(&workspace.name)), ("bytes", text(&workspace.bytes))];
        ("[[job.candidate.workspace]]", lines)
    });
    let steps = launch.steps.iter().map(|step| {
        let lines = vec![
            ("symbol", print::string(&step.symbol)),
            ("grid", extents(&step.grid)),
            ("block", extents(&step.block)),
            ("shared_mem", text(&step.shared_mem)),
            ("args", List::<Arg>::print(&step.args)),
        ];
        ("[[job.candidate.launch]]", lines)
    });
    workspaces.chain(steps).collect()
}
