//! Joins the messages of an error and its causes, and tells whether the error was due to a lack of descriptors or of
//! memory, or because no further process or thread could be started.

use std::error::Error;
use std::io;

use rustix::io::Errno;

pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// True if an operation failed because there were too few descriptors or too little memory. In that case, the file or
/// process that the operation used is not to blame.
pub fn is_shortage(error: &(dyn Error + 'static)) -> bool {
    has_code(error, &[Errno::MFILE, Errno::NFILE, Errno::NOMEM])
}

/// True if an operation failed with `EAGAIN`, the code with which Linux refuses a new process or thread.
pub fn is_lack_of_processes(error: &(dyn Error + 'static)) -> bool {
    has_code(error, &[Errno::AGAIN])
}

fn has_code(error: &(dyn Error + 'static), codes: &[Errno]) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let system = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        let code = system.or(error.downcast_ref::<Errno>().map(|errno| errno.raw_os_error()));
        if code.is_some_and(|code| codes.iter().any(|wanted| wanted.raw_os_error() == code)) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{what}")]
    struct Step {
        what: &'static str,
        source: Option<Box<Step>>,
    }

    #[test]
    fn chain_names_every_cause_in_order() {
        let deepest = Step { what: "no such file", source: None };
        let middle = Step { what: "opening a.pt", source: Some(Box::new(deepest)) };
        let error = Step { what: "reading the job", source: Some(Box::new(middle)) };
        assert_eq!(chain(&error), "reading the job: opening a.pt: no such file");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("reading a capture")]
    struct Reading {
        source: Box<dyn Error + Send + Sync>,
    }

    #[test]
    fn shortage_is_found_among_the_causes() {
        for (code, expected) in [
            (libc::EMFILE, true),
            (libc::ENFILE, true),
            (libc::ENOMEM, true),
            (libc::ENOENT, false),
            (libc::EACCES, false),
        ] {
            let system = io::Error::from_raw_os_error(code);
            assert_eq!(is_shortage(&system), expected, "{system}");
            let capture = Reading { source: Box::new(system) };
            // An error of the capture reader arrives in this form if it passes through an `io::Error`.
            let read = Reading { source: Box::new(io::Error::other(capture)) };
            assert_eq!(is_shortage(&read), expected, "{}", chain(&read));
            let errno = Reading { source: Box::new(Errno::from_raw_os_error(code)) };
            assert_eq!(is_shortage(&errno), expected, "{}", chain(&errno));
        }
        assert!(!is_shortage(&io::Error::other("truncated")));
    }
}
