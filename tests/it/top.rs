//! Tests `top` in a pseudo-terminal with a real run: the screen, the keys, and the restoring of the terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use opt_tests::processes::ends_within;
use opt_tests::waiting::{LONG, holds_within};
use opt_tests::{Scenario, repository};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::control::client::LiveRun;

/// A process of `top` in its own pseudo-terminal.
struct View {
    child: Child,
    keys: File,
    terminal: OwnedFd,
    /// Everything that `top` has written.
    seen: Arc<Mutex<Vec<u8>>>,
    reader: std::thread::JoinHandle<()>,
}

impl View {
    fn start(scenario: &Scenario, arguments: &[&str]) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&ours).expect("granted");
        unlockpt(&ours).expect("unlocked");
        let name = ptsname(&ours, Vec::new()).expect("a name");
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
        let terminal = rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty())
            .expect("the other end of the terminal");
        tcsetwinsize(&ours, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
        let copy = || Stdio::from(terminal.as_fd().try_clone_to_owned().expect("a descriptor"));
        let mut command = scenario.command(arguments);
        command.stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: only system calls are made between fork and exec. (The new session is needed so that `top` has no
        // other terminal whose size it could read.)
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)
            });
        }
        let child = command.spawn().expect("the program starts");
        let keys = File::from(ours);
        let mut screen = keys.try_clone().expect("a descriptor");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let output = Arc::clone(&seen);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // After the other end of a pseudo-terminal is closed, reading fails, which ends the loop.
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                output.lock().expect("no thread panicked with the lock").extend_from_slice(&buffer[..count]);
            }
        });
        Self { child, keys, terminal, seen, reader }
    }

    /// Returns the lines of the current screen.
    fn screen(&self) -> String {
        let written = String::from_utf8_lossy(&self.seen.lock().expect("no thread panicked with the lock"))
            .into_owned();
        let mut screen = vec![vec![' '; 80]; 24];
        let (mut row, mut column) = (0, 0);
        let mut letters = written.chars();
        while let Some(letter) = letters.next() {
            if letter != '\u{1b}' {
                if let Some(cell) = screen.get_mut(row).and_then(|line: &mut Vec<char>| line.get_mut(column))
                {
                    *cell = letter;
                }
                column += 1;
                continue;
            }
            // This is an escape sequence: `ESC [`, parameters and a letter. Only those that set the cursor's position
            // matter.
            let sequence: String =
                letters.by_ref().skip(1).take_while(|c| !c.is_ascii_alphabetic()).collect();
            if let Some((down, right)) = sequence.split_once(';')
                && let (Ok(down), Ok(right)) = (down.parse::<usize>(), right.parse::<usize>())
            {
                (row, column) = (down - 1, right - 1);
            }
        }
        screen.into_iter().map(|line| line.into_iter().collect::<String>() + "\n").collect()
    }

    /// Waits until the screen shows this text.
    fn until(&mut self, text: &str) {
        let mut ended = None;
        let in_time = holds_within(LONG, || {
            ended = self.child.try_wait().expect("the child can be waited for");
            self.screen().contains(text) || ended.is_some()
        });
        assert!(
            in_time && self.screen().contains(text),
            "`top` never showed {text:?} (exit status: {ended:?}):\n{}",
            self.screen()
        );
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("pressed");
    }

    /// Waits until `top` ends, and checks that the terminal is restored. Returns the exit code and all output.
    fn finish(mut self) -> (Option<i32>, String) {
        assert!(ends_within(&self.child, LONG), "`top` does not end:\n{}", self.screen());
        let status = self.child.wait().expect("the child can be waited for");
        let modes = tcgetattr(&self.terminal).expect("the modes of the terminal").local_modes;
        drop(self.terminal);
        self.reader.join().expect("a reader");
        let seen = String::from_utf8_lossy(&self.seen.lock().expect("no thread panicked with the lock"))
            .into_owned();
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "the terminal's modes: {modes:?}");
        (status.code(), seen)
    }
}

/// Checks that `top` restored the previous screen and the cursor.
fn assert_terminal_restored(seen: &str) {
    assert_eq!(seen.matches("\u{1b}[?1049h").count(), 1, "{seen:?}");
    assert!(seen.rfind("\u{1b}[?1049h") < seen.rfind("\u{1b}[?1049l"), "{seen:?}");
    assert!(seen.rfind("\u{1b}[?25l") < seen.rfind("\u{1b}[?25h"), "{seen:?}");
}

/// A plan with one job and a candidate that fails at once.
fn scenario() -> Scenario {
    let root = repository().display();
    Scenario::with_plan(&format!(
        "[run]\nname = \"plan\"\n[profile]\nentry_timeout = \"200ms\"\n[build]\nlibraries = [\"m\"]\n
[[job]]\nname = \"softmax\"\ncaptures = '{root}/tests/data/demo/torch_nn_functional_softmax'
baseline = '{root}/configs/demo/softmax/naive.c'\ncandidates = ['{root}/configs/demo/softmax/bad/segfaults.c']\n"
    ))
}

#[test]
fn top_shows_and_controls_a_run() {
    let scenario = scenario();
    let run = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    let folder = run.folder().to_str().expect("UTF-8").to_owned();
    let mut view = View::start(&scenario, &["top", "--run", &folder]);
    view.until("softmax/segfaults");
    view.until("running, stays open");
    view.until("CRASHED");
    view.press("p");
    view.until("done: no further leases are granted");
    let mut client = run.client();
    let paused = |client: &mut crate::control::client::Client| {
        client.call("status", &serde_json::json!({})).expect("an answer")["run"]["paused"] == true
    };
    assert!(paused(&mut client), "the key paused the run");
    // Once `top` shows that the run is paused, the same key resumes the run.
    view.until("paused");
    view.press("p");
    view.until("done: leases are granted again");
    assert!(!paused(&mut client));
    // Recycling at once needs a confirmation, which is declined here.
    view.press("R");
    view.until("sure?");
    view.press("n");
    view.press("?");
    view.until("leave the view; the run continues");
    view.press("x");
    view.press("q");
    let (code, seen) = view.finish();
    assert_eq!(code, Some(0));
    assert_terminal_restored(&seen);
    assert!(!seen.contains("\u{1b}[38;"), "NO_COLOR is set: {seen:?}");
    assert!(client.call("status", &serde_json::json!({})).is_ok(), "the run goes on");

    let mut second = View::start(&scenario, &["top", "--run", &folder]);
    second.until("softmax/segfaults");
    let mut third = View::start(&scenario, &["top", "--socket", run.socket().to_str().expect("UTF-8")]);
    third.until("softmax/segfaults");
    let pid = i32::try_from(third.child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("sent");
    let (code, seen) = third.finish();
    assert_eq!(code, Some(4), "exit code of an interrupted run");
    assert_terminal_restored(&seen);
    second.until("2 of 2 have ended");
    run.ctl(&["shutdown"]).expect_exit(0);
    second.until("the run has ended with exit code 1");
    second.press("q");
    assert_eq!(second.finish().0, Some(0));
    run.finish(1);
}

#[test]
fn top_without_terminal_or_run_reports_error() {
    let scenario = Scenario::create();
    scenario.run(&["top"]).expect_exit(2).expect_stderr(&["needs a terminal", "ctl status"]);
    let (code, output) = View::start(&scenario, &["top", "--run", "."]).finish();
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("there is no live run in ."), "{output}");
    let (code, output) = View::start(&scenario, &["top", "--socket", "nowhere.sock"]).finish();
    assert_eq!(code, Some(3), "{output}");
    assert!(!output.contains("\u{1b}[?1049h"), "the alternate screen was not entered: {output}");
}
