//! An error with everything that led to it, as one line: for logs, records and messages that hold a text.

use std::error::Error;

/// The error's own text and each cause after a colon.
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
    fn every_cause_is_told_in_order() {
        let deepest = Step { what: "no such file", source: None };
        let middle = Step { what: "opening a.pt", source: Some(Box::new(deepest)) };
        let error = Step { what: "reading the job", source: Some(Box::new(middle)) };
        assert_eq!(chain(&error), "reading the job: opening a.pt: no such file");
    }
}
