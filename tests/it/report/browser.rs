//! Controls a headless browser that loads a page and returns its DOM and its console.

use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use opt_tests::{Outcome, Scenario};

const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

pub struct Browser {
    program: PathBuf,
}

/// A page after the browser has loaded it.
pub struct LoadedPage {
    pub dom: String,
    outcome: Outcome,
}

impl Browser {
    pub fn find() -> Option<Self> {
        let path = std::env::var_os("PATH")?;
        let program = std::env::split_paths(&path)
            .flat_map(|folder| NAMES.map(|name| folder.join(name)))
            .find(|program| program.is_file())?;
        Some(Self { program })
    }

    /// Opens a page. Background downloads are switched off, and the browser stores its files in the scenario's folder.
    pub fn open(&self, scenario: &Scenario, page: &Path) -> LoadedPage {
        let home = scenario.path().join("browser");
        std::fs::create_dir_all(&home).expect("folder");
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
            "--dump-dom",
        ];
        let child = Command::new(&self.program)
            .args(arguments)
            .arg(format!("--user-data-dir={}", home.join("data").display()))
            .arg(format!("file://{}", page.display()))
            .env("HOME", &home)
            .env("XDG_CONFIG_HOME", &home)
            .env("XDG_CACHE_HOME", &home)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", self.program.display()));
        let outcome = scenario.finish(child, &arguments).expect_exit(0);
        LoadedPage { dom: outcome.stdout.clone(), outcome }
    }
}

impl LoadedPage {
    pub fn console(&self) -> Vec<&str> {
        self.outcome.stderr.lines().filter(|line| line.contains("CONSOLE")).collect()
    }

    #[track_caller]
    pub fn expect(&self, holds: bool, what: impl fmt::Display) {
        self.outcome.expect(holds, what);
    }
}

/// Reports a skipped test. Writes to standard error directly, because the test harness captures ordinary output.
pub fn skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {what}");
}

/// The test of the report requires an empty console, which proves something only if the console shows errors.
#[test]
fn console_errors_are_reported() {
    let Some(browser) = Browser::find() else {
        skipped("the browser's console was not tried: neither chromium nor google-chrome is installed");
        return;
    };
    let scenario = Scenario::create();
    let page =
        scenario.write("page.html", "<!doctype html><script>console.error('seen')</script><p>text</p>");
    let shown = browser.open(&scenario, &page);
    shown.expect(shown.console().iter().any(|line| line.contains("seen")), "the error is in the log");
    shown.expect(shown.dom.contains("<p>text</p>"), "the page is in the dump");
}
