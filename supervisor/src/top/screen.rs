//! Takes over the terminal, and restores it when the view ends, even after a panic. Callers decide what is drawn.

use std::io::{self, Stdout, Write};
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{Frame, Terminal};

/// True while this process has taken over the terminal. It ensures that the terminal is restored only once.
static TAKEN: AtomicBool = AtomicBool::new(false);

pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes over the terminal. Call this only once in a process, because it installs a panic hook. The hook restores
    /// the terminal before the message of a panic in any thread is printed.
    pub(super) fn take() -> io::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| on_panic(panic, &before)));
        enable_raw_mode()?;
        TAKEN.store(true, Ordering::SeqCst);
        let entered = execute!(io::stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match entered {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        if !TAKEN.load(Ordering::SeqCst) {
            // A thread has panicked, and its message is on the restored terminal.
            return Err(io::Error::other("the terminal was restored after a panic"));
        }
        self.terminal.draw(draw).map(|_| ())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn on_panic(panic: &PanicHookInfo<'_>, before: &dyn Fn(&PanicHookInfo<'_>)) {
    give_back();
    before(panic);
}

/// Restores the terminal. Errors are ignored, because this terminal is the only place where they could be reported.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = disable_raw_mode();
        let _ = leave(&mut io::stdout());
    }
}

fn leave(out: &mut impl Write) -> io::Result<()> {
    execute!(out, Show, LeaveAlternateScreen)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsFd, OwnedFd};
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

    use super::*;

    /// The environment variable that the test sets for the copy of itself that panics.
    const PANICS: &str = "OPT_TEST_TOP_PANICS";

    /// Opens a pseudo-terminal. Returns our end, and the end for the child.
    fn terminal() -> (File, OwnedFd) {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&ours).expect("granted");
        unlockpt(&ours).expect("unlocked");
        let name = ptsname(&ours, Vec::new()).expect("a name");
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
        let theirs = rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty()).expect("opened");
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&ours, size).expect("a size");
        (File::from(ours), theirs)
    }

    fn copy(terminal: &OwnedFd) -> Stdio {
        Stdio::from(terminal.as_fd().try_clone_to_owned().expect("a descriptor"))
    }

    #[test]
    fn panic_restores_the_terminal_before_its_message() {
        if std::env::var_os(PANICS).is_some() {
            let mut screen = Screen::take().expect("a terminal");
            screen.draw(|_| {}).expect("drawn");
            panic!("what happened");
        }
        let (mut ours, theirs) = terminal();
        let modes = tcgetattr(&theirs).expect("modes").local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO));
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "top::screen::tests::panic_restores_the_terminal_before_its_message"])
            .args(["--nocapture", "--test-threads=1"])
            .env(PANICS, "1")
            .stdin(copy(&theirs))
            .stdout(copy(&theirs))
            .stderr(copy(&theirs))
            .spawn()
            .expect("started");
        let reader = std::thread::spawn(move || {
            let mut output = Vec::new();
            // Reading fails once the other end of a pseudo-terminal is closed.
            let _ = ours.read_to_end(&mut output);
            (String::from_utf8_lossy(&output).into_owned(), ours)
        });
        let status = child.wait().expect("it ends");
        let modes = tcgetattr(&theirs).expect("modes").local_modes;
        drop(theirs);
        let (output, _ours) = reader.join().expect("a reader");
        assert!(!status.success(), "it panicked: {output:?}");
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "the modes are restored: {modes:?}");
        let place = |what: &str| output.find(what).unwrap_or_else(|| panic!("no {what:?} in {output:?}"));
        assert!(place("\u{1b}[?1049h") < place("\u{1b}[?1049l"), "{output:?}");
        assert!(place("\u{1b}[?1049l") < place("what happened"), "{output:?}");
        assert!(output.contains("\u{1b}[?25h"), "the cursor is visible: {output:?}");
        assert_eq!(output.matches("\u{1b}[?1049l").count(), 1, "once: {output:?}");
    }
}
