//! `opt-supervisor completions` and `opt-supervisor man`: prints shell completions and the manual page. Both are
//! generated from the definition of the arguments.

use clap::CommandFactory as _;

use super::{Arguments, CommandResult, Failure, print_out};
use crate::exit::Exit;

pub(super) fn completions(shell: clap_complete::Shell) -> CommandResult {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "opt-supervisor", &mut text);
    print(&text)
}

pub(super) fn man() -> CommandResult {
    let mut text = Vec::new();
    let mut command = Arguments::command();
    // `build` gives every command its full name.
    command.build();
    clap_mangen::Man::new(command.clone()).render(&mut text).map_err(Failure::host)?;
    // A single page describes all commands. It begins with the list of commands, and then describes the arguments of
    // each.
    sections(&command, "OPT-SUPERVISOR", &mut text).map_err(Failure::host)?;
    print(&text)
}

/// Writes a section for every subcommand of a command, and for the subcommands of these. `name` is the command's full
/// name.
fn sections(command: &clap::Command, name: &str, text: &mut Vec<u8>) -> std::io::Result<()> {
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let name = format!("{name} {}", sub.get_name().to_uppercase());
        let page = clap_mangen::Man::new(sub.clone());
        text.extend(format!(".SH \"{name}\"\n").bytes());
        page.render_synopsis_section(text)?;
        page.render_options_section(text)?;
        sections(sub, &name, text)?;
    }
    Ok(())
}

fn print(text: &[u8]) -> CommandResult {
    print_out(&String::from_utf8_lossy(text))?;
    Ok(Exit::Good)
}
