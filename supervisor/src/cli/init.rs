//! `opt-supervisor init`: writes a first plan, and a C skeleton with the argument table as a comment.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use opt_shared::arguments::{Observed, SignatureBuilder, bind, c_skeleton, outputs};
use opt_shared::causes::chain;

use super::inspect::{captures_in, open};
use super::{CommandResult, Failure, InitArguments, print_out};
use crate::driver::survey::facts::stem;
use crate::exit::Exit;

pub(super) fn init(arguments: &InitArguments) -> CommandResult {
    let files = captures_in(&arguments.captures)?;
    let mut entries = Vec::new();
    let mut left_out = Vec::new();
    for file in &files {
        match open(file) {
            Ok((_, entry)) => entries.push((stem(file), entry)),
            Err(why) => left_out.push(format!("{}: {why}", file.display())),
        }
    }
    if entries.is_empty() {
        print_left_out(&left_out);
        let captures = arguments.captures.display();
        return Err(Failure::usage(anyhow::anyhow!("no capture in {captures} can be read")));
    }
    let mut builder = SignatureBuilder::new(None, BTreeMap::new());
    for (name, entry) in &entries {
        builder.observe(name, entry);
    }
    let signature = builder.finish().map_err(|errors| {
        let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Failure::usage(anyhow::anyhow!("the captures have no common signature: {}", text.join("; ")))
    })?;
    let mut observed = Observed::new();
    for (name, entry) in &entries {
        match bind(entry, &signature).and_then(|bound| Ok((bound, outputs(entry)?))) {
            Ok((bound, output_tensors)) => observed.observe(&bound, &output_tensors),
            Err(error) => left_out.push(format!("{name}: {}", chain(&error))),
        }
    }
    print_left_out(&left_out);
    let captures = std::fs::canonicalize(&arguments.captures).map_err(|error| {
        let captures = arguments.captures.display();
        Failure::usage(anyhow::Error::new(error).context(format!("resolving the path {captures}")))
    })?;
    let job = captures.file_name().map_or("job".to_owned(), |name| name.to_string_lossy().into_owned());
    let folder =
        arguments.output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let skeleton = folder.join("kernels").join(format!("{job}.c"));
    let plan = crate::plan::first_plan(&captures, &job, Path::new(&format!("kernels/{job}.c")));
    if arguments.output.symlink_metadata().is_ok() {
        let exists = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        return Err(not_written(&arguments.output, exists));
    }
    write_new(&skeleton, &c_skeleton(&signature, &observed, "run"))?;
    write_new(&arguments.output, &plan)?;
    print_out(&format!(
        "wrote {} and {}\n\nnext: fill in the kernel, then\n  opt-supervisor check {}\n  opt-supervisor run {}\n",
        arguments.output.display(),
        skeleton.display(),
        arguments.output.display(),
        arguments.output.display()
    ))?;
    Ok(if left_out.is_empty() { Exit::Good } else { Exit::NonePassed })
}

fn print_left_out(left_out: &[String]) {
    for why in left_out {
        super::print_err(format_args!("left out: {}", crate::report::figures::one_line(why)));
    }
}

fn not_written(path: &Path, error: std::io::Error) -> Failure {
    Failure::usage(anyhow::Error::new(error).context(format!("writing the new file {}", path.display())))
}

/// Writes a new file. Fails if the file already exists.
fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error| not_written(path, error);
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut file = File::options().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}
