//! `opt-supervisor completions` and `man`, both generated from the definition of the arguments.

use clap::CommandFactory as _;

use super::{Answer, Arguments, Failure, print_out};
use crate::exit::Exit;

pub(super) fn completions(shell: clap_complete::Shell) -> Answer {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "opt-supervisor", &mut text);
    print(&text)
}

pub(super) fn man() -> Answer {
    let mut text = Vec::new();
    let mut command = Arguments::command();
    // This sets the full name of every command.
    command.build();
    clap_mangen::Man::new(command.clone()).render(&mut text).map_err(Failure::host)?;
    // One page has all commands: first the list of commands, then the arguments of each.
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let page = clap_mangen::Man::new(sub.clone());
        text.extend(format!(".SH \"OPT-SUPERVISOR {}\"\n", sub.get_name().to_uppercase()).bytes());
        page.render_synopsis_section(&mut text).map_err(Failure::host)?;
        page.render_options_section(&mut text).map_err(Failure::host)?;
    }
    print(&text)
}

fn print(text: &[u8]) -> Answer {
    print_out(&String::from_utf8_lossy(text))?;
    Ok(Exit::Good)
}
