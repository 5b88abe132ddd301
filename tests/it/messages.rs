//! Every text that the program shows, in one file per kind, so that a change of tone is seen: `tests/data/messages`.
//!
//! Where a text has changed, the test writes what it found beside the kept file, as `NAME.txt.new`; move it over the old one
//! if it reads well. Mistakes of plans and feedback are kept there too, by tests of the supervisor.

mod source;

use std::fmt::Write as _;

use opt_tests::{Scenario, data, repository};

use source::{Message, messages};

/// Fails if `found` is not what is kept.
fn same_as_kept(name: &str, found: &str) {
    let kept = data("messages").join(name);
    if std::fs::read_to_string(&kept).unwrap_or_default() != found {
        let new = kept.with_extension("txt.new");
        std::fs::write(&new, found).unwrap_or_else(|error| panic!("{}: {error}", new.display()));
        panic!("texts have changed: {} replaces {name} if they read well", new.display());
    }
}

fn help(scenario: &Scenario, command: &[String]) -> String {
    let arguments = [command, &["--help".to_owned()]].concat();
    let mut process = scenario.command(&arguments);
    let child = process.env("COLUMNS", "80").spawn().expect("the program starts");
    scenario.finish(child, &arguments).expect_exit(0).stdout
}

/// Appends the help of a command and of all below it.
fn write_help(scenario: &Scenario, command: &[String], text: &mut String) {
    let own = help(scenario, command);
    write!(text, "==== opt-supervisor {}\n{own}\n", command.join(" ")).expect("a string takes all");
    let listed =
        own.split("\nCommands:\n").nth(1).unwrap_or_default().split("\n\n").next().unwrap_or_default();
    for line in listed.lines().filter_map(|line| line.strip_prefix("  ")) {
        let name = line.split(' ').next().unwrap_or_default();
        // A line that begins further in goes on with the text of the one above.
        if !name.is_empty() && name != "help" {
            write_help(scenario, &[command, &[name.to_owned()]].concat(), text);
        }
    }
}

#[test]
fn help_is_as_it_was_read() {
    let mut text = String::new();
    write_help(&Scenario::create(), &[], &mut text);
    assert!(text.contains("==== opt-supervisor ctl submit\n"), "subcommands are found:\n{text}");
    same_as_kept("help.txt", &text);
}

#[test]
fn errors_are_as_they_were_read() {
    let mut text = String::new();
    let mut last = String::new();
    for Message { file, name, example } in messages(repository()) {
        if file != last {
            write!(text, "\n{file}\n").expect("a string takes all");
            last = file;
        }
        writeln!(text, "  {name}\n    {example}").expect("a string takes all");
    }
    assert!(200 < text.lines().count(), "the sources are read");
    same_as_kept("errors.txt", text.trim_start());
}
