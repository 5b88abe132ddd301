//! Compares the program's help texts and error messages with the snapshots in `tests/data/messages`, so that a change
//! of wording is noticed.
//!
//! If a text has changed, the test writes the new version beside the snapshot as `NAME.txt.new`. If the new text reads
//! well, move it over the old file. Unit tests of the supervisor keep snapshots of plan mistakes and feedback in this
//! folder too.

mod source;

use std::fmt::Write as _;

use opt_tests::{Scenario, data, repository};

use source::{Message, messages};

/// Panics if `found` differs from the snapshot.
fn assert_snapshot(name: &str, found: &str) {
    let snapshot = data("messages").join(name);
    if std::fs::read_to_string(&snapshot).unwrap_or_default() != found {
        let new = snapshot.with_extension("txt.new");
        std::fs::write(&new, found).unwrap_or_else(|error| panic!("{}: {error}", new.display()));
        panic!(
            "the texts of {name} have changed (if those in {} read well, move it over {name})",
            new.display()
        );
    }
}

fn help(scenario: &Scenario, command: &[String]) -> String {
    let arguments = [command, &["--help".to_owned()]].concat();
    let mut process = scenario.command(&arguments);
    let child = process.env("COLUMNS", "80").spawn().expect("the program starts");
    scenario.finish(child, &arguments).expect_exit(0).stdout
}

/// Appends the help of a command and of its subcommands.
fn write_help(scenario: &Scenario, command: &[String], text: &mut String) {
    let command_help = help(scenario, command);
    write!(text, "==== opt-supervisor {}\n{command_help}\n", command.join(" "))
        .expect("a string cannot fail");
    let listed = command_help
        .split("\nCommands:\n")
        .nth(1)
        .unwrap_or_default()
        .split("\n\n")
        .next()
        .unwrap_or_default();
    for line in listed.lines().filter_map(|line| line.strip_prefix("  ")) {
        let name = line.split(' ').next().unwrap_or_default();
        // An indented line continues the text of the line above.
        if !name.is_empty() && name != "help" {
            write_help(scenario, &[command, &[name.to_owned()]].concat(), text);
        }
    }
}

#[test]
fn help_matches_its_snapshot() {
    let mut text = String::new();
    write_help(&Scenario::create(), &[], &mut text);
    assert!(text.contains("==== opt-supervisor ctl submit\n"), "subcommands are found:\n{text}");
    assert_snapshot("help.txt", &text);
}

#[test]
fn errors_match_their_snapshot() {
    let mut text = String::new();
    let mut last = String::new();
    for Message { file, name, example } in messages(repository()) {
        if file != last {
            write!(text, "\n{file}\n").expect("a string cannot fail");
            last = file;
        }
        writeln!(text, "  {name}\n    {example}").expect("a string cannot fail");
    }
    assert!(200 < text.lines().count(), "messages were found in the sources");
    assert_snapshot("errors.txt", text.trim_start());
}
