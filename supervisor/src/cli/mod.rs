//! Defines the commands of the command line, and calls the file that implements each of them.
//!
//! Parsing has no side effects. Results are written to standard output, and everything else to standard error. Errors
//! are printed in this file, once, with their causes.

mod captures;
mod check;
mod check_machine;
mod check_replays;
mod ctl;
mod ctl_text;
mod doctor;
mod eval;
mod import;
mod init;
mod inspect;
mod log;
mod memory_plan;
mod output;
mod report;
mod repro;
mod run;
mod shell;
mod solutions;
mod stored;
mod top;

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::exit::Exit;
use crate::store::StoreError;

/// Check candidate kernels against recorded calls of an op, and time those that are correct. Kernels run in isolated
/// processes, under a memory limit.
#[derive(Parser)]
#[command(name = "opt-supervisor", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes of `run`: 0 every job that was not skipped has a candidate other than its \
baseline that passed and was timed (passing is enough if the plan times nothing or the candidate cannot be timed; in a \
job with only a baseline, the baseline counts); 1 finished, but some job has none, a baseline or a replay failed, or \
all jobs were skipped; 2 usage or plan error; 3 host error, no job fits into memory, or a candidate or a replay has no \
verdict because a worker or the host failed; 4 interrupted, `run --resume` continues it.";

const EVAL_CODES: &str = "Exit codes: 0 the candidate PASSED; 1 it did not, or the live run refused it; 2 usage or \
plan error; 3 host error, or the candidate has no verdict because a worker or the host failed; 4 \
interrupted.";

#[derive(Subcommand)]
enum Command {
    /// Write a first plan and a C skeleton for a folder of captures
    Init(InitArguments),
    /// Check a plan without running its candidates: mistakes, odd captures, argument order, memory
    Check(CheckArguments),
    /// Build, verify and time the candidates of a plan
    Run(RunArguments),
    /// Call a candidate of a run again, with a single entry
    Repro(ReproArguments),
    /// Show the contents of a capture, or the signature classes of a folder of captures
    Inspect(InspectArguments),
    /// Print the result of a run, or compare two runs
    Report(ReportArguments),
    /// Store each repeated tensor of a capture set once; unpack or check such a store
    Captures(captures::CapturesArguments),
    /// Show which protections this machine can enforce, by testing each
    Doctor(DoctorArguments),
    /// Query and control a live run
    Ctl(ctl::CtlArguments),
    /// Watch and control a live run in a terminal
    Top(top::TopArguments),
    /// Test one candidate, in a live run of the plan or in a short separate run
    Eval(eval::EvalArguments),
    /// Turn problems, projects or data sets of other tools into a plan with captures and candidates
    Import(import::ImportArguments),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
}

#[derive(Args)]
struct DoctorArguments {
    /// Also time copies of a kernel, to see which differences in time this machine can detect now
    #[arg(long)]
    timing: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct InitArguments {
    /// Folder with `.pt` files, or a capture store
    captures: PathBuf,
    /// The plan to write, which must not exist; the skeleton goes into `kernels` beside it
    #[arg(short, long, default_value = "plan.toml", value_name = "PLAN")]
    output: PathBuf,
}

#[derive(Args)]
struct CheckArguments {
    /// The plan, a TOML file
    plan: PathBuf,
    /// Print only the order and kinds of arguments, and a C skeleton, for every job
    #[arg(long)]
    signature: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Override a key of the plan, such as `verify.repeats=3`
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Args)]
#[command(after_help = EXIT_CODES)]
struct RunArguments {
    /// The plan, a TOML file
    plan: PathBuf,
    /// Continue the newest run of this plan (or the one in --dir); verdicts on unchanged sources are kept
    #[arg(long)]
    resume: bool,
    /// Folder of the run [default: `runs/<name>` beside the plan, with a number if that exists]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only this job or candidate (with its baseline); the others end as SKIPPED
    #[arg(long, value_name = "JOB[/CANDIDATE]")]
    only: Vec<String>,
    /// Override a key of the plan, such as `verify.repeats=3`
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Exit with 0 only if each job that was not skipped has a candidate with at least this speed-up, at the lower end
    /// of its interval
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    min_speedup: Option<f64>,
    /// When all work is done, wait for candidates (`ctl submit`, `eval`) until `ctl shutdown` or Ctrl-C
    #[arg(long)]
    keep_open: bool,
    /// Serve OpenMetrics at this address, such as `127.0.0.1:9464` (port 0: any free port)
    #[arg(long, value_name = "ADDR")]
    metrics: Option<std::net::SocketAddr>,
    /// Print the result as one JSON document instead of a table
    #[arg(long, conflicts_with = "jsonl")]
    json: bool,
    /// Print one JSON line as each candidate ends, and neither progress nor a table
    #[arg(long)]
    jsonl: bool,
    /// Print neither progress nor a table
    #[arg(short, long)]
    quiet: bool,
    /// At the end, print everything that `report` prints: feedback, memory over time, decisions
    #[arg(short, long, conflicts_with_all = ["quiet", "json", "jsonl"])]
    verbose: bool,
}

#[derive(Args)]
struct ReproArguments {
    /// The folder of the run, such as `runs/latest`
    run_dir: PathBuf,
    /// JOB/CANDIDATE, or just the candidate if only one job has it
    candidate: String,
    /// The entry to call the candidate with, such as `entry_000123`
    #[arg(long)]
    entry: String,
}

#[derive(Args)]
struct InspectArguments {
    /// A `.pt` file, a folder of them, or a capture store
    path: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Print JSON with digests of the data of a file, and check its CRCs
    #[arg(long)]
    digests: bool,
}

#[derive(Args)]
struct ReportArguments {
    /// The folder of a run, such as `runs/latest`; the run need not have ended
    run_dir: PathBuf,
    /// A second run, to compare with the first, as text, md or json
    other_run_dir: Option<PathBuf>,
    /// What to print
    #[arg(long, default_value = "text")]
    format: ReportFormat,
    /// Write to this file instead of standard output; it is replaced only once the report is complete
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// With jsonl: the `workloads.json` of an imported data set, which describes the entries
    #[arg(long, value_name = "FILE")]
    workloads: Option<PathBuf>,
    /// Instead of a report, write the winners to this folder, as solutions in the FlashInfer-Trace format
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["other_run_dir", "format", "output", "workloads"])]
    solutions: Option<PathBuf>,
    /// With --solutions: write this candidate, JOB/NAME, instead of the winners
    #[arg(long, value_name = "CANDIDATE", requires = "solutions")]
    candidate: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ReportFormat {
    /// For a terminal
    Text,
    /// For a pull request
    Md,
    /// The whole document
    Json,
    /// A line for each timed or failed entry of a candidate, in the FlashInfer-Trace format
    #[value(alias = "flashinfer-trace")]
    Jsonl,
    /// A row for each candidate
    Csv,
    /// One self-contained page
    Html,
}

/// A failed command: its exit code and its message.
struct Failure {
    exit: Exit,
    error: anyhow::Error,
}

impl Failure {
    fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { exit: Exit::Usage, error: error.into() }
    }

    fn host(error: impl Into<anyhow::Error>) -> Self {
        Self { exit: Exit::Host, error: error.into() }
    }

    /// Prints the error, and returns the exit code.
    fn end(self) -> u8 {
        print_error(&self.error);
        self.exit.code()
    }

    /// Returns the failure for an error while reading a run folder: a usage error if it is not a run folder, otherwise
    /// a host error.
    fn reading(error: StoreError) -> Self {
        match error {
            StoreError::Missing { .. } | StoreError::Foreign { .. } => Self::usage(error),
            error => Self::host(error),
        }
    }
}

type CommandResult = Result<Exit, Failure>;

/// Parses the arguments, runs the command and prints errors. Returns the exit code.
pub fn main() -> u8 {
    match crate::driver::survey::own_limits::raise_stack() {
        Ok(()) => run_command(),
        Err(error) => Failure::host(error).end(),
    }
}

/// The part of `main` that runs after the stack limit is raised. It is a separate function, because its variables may
/// need more stack than there is before that.
#[inline(never)]
fn run_command() -> u8 {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            if error.use_stderr() {
                // A failure is ignored, because there is no other place to report it.
                let _ = error.print();
                return Exit::Usage.code();
            }
            // `--help` and `--version` are not errors.
            return match output::ignore_closed_pipe(error.print().and_then(|()| std::io::stdout().flush())) {
                Ok(()) => Exit::Good.code(),
                Err(failure) => failure.end(),
            };
        }
    };
    let answer = match arguments.command {
        Command::Init(arguments) => init::init(&arguments),
        Command::Check(arguments) => check::check(&arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Repro(arguments) => repro::repro(&arguments),
        Command::Inspect(arguments) => inspect::inspect(&arguments),
        Command::Report(arguments) => report::report(&arguments),
        Command::Ctl(arguments) => ctl::ctl(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Eval(arguments) => eval::eval(arguments),
        Command::Import(arguments) => import::import(arguments),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man => shell::man(),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Captures(arguments) => captures::captures(&arguments),
    };
    match answer {
        Ok(exit) => exit.code(),
        Err(failure) => failure.end(),
    }
}

/// Prints an error with its causes. Plan errors have their own format.
fn print_error(error: &anyhow::Error) {
    if let Some(errors) = error.downcast_ref::<crate::plan::PlanErrors>() {
        print_err(format_args!("{}", errors.render(color_on_stderr())));
        return;
    }
    // The text may quote names from captures.
    print_err(format_args!("error: {}", crate::report::figures::printable(&format!("{error:#}"))));
}

fn color_on_stderr() -> bool {
    use std::io::IsTerminal;
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::io::stderr().is_terminal()
}

fn color_on_stdout() -> bool {
    use std::io::IsTerminal;
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::io::stdout().is_terminal()
}

/// Prints a line to standard error. A failure is ignored, because there is no other place to report it.
fn print_err(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints to standard output; a closed pipe (`| head`) is not an error.
fn print_out(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    output::ignore_closed_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

fn load_plan(path: &std::path::Path, set: &[String]) -> Result<crate::plan::Plan, Failure> {
    crate::driver::survey::devices::load(path, set).map_err(Failure::usage)
}
