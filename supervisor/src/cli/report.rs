//! `opt-supervisor report`: what a run folder says.

use super::{Answer, Failure, ReportArguments, ReportFormat, print_out};
use crate::exit::Exit;
use crate::store::Store;

pub(super) fn report(arguments: &ReportArguments) -> Answer {
    let text = match arguments.format {
        ReportFormat::Text => super::run::result_text(&arguments.run_dir)?,
        ReportFormat::Json => {
            let store = Store::read(&arguments.run_dir).map_err(Failure::host)?;
            let document = store.document().map_err(Failure::host)?;
            let mut text = serde_json::to_string_pretty(&document).map_err(Failure::host)?;
            text.push('\n');
            text
        }
    };
    match &arguments.output {
        Some(path) => std::fs::write(path, text).map_err(|error| {
            Failure::host(anyhow::Error::new(error).context(format!("writing {}", path.display())))
        })?,
        None => print_out(&text)?,
    }
    Ok(Exit::Good)
}
