//! Checks the names of runs, jobs, candidates, replays and parameters. People type names, read them in tables, and find
//! them as folder names.

/// The longest name, in characters. A name must fit into a column of a table and into `--only JOB/CANDIDATE`.
pub(super) const MAX_NAME_CHARS: usize = 128;

/// The kind of thing that a name is for. It decides which characters are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameOf {
    /// The name of a run, which becomes a folder beside the link `latest`, or of a replay, after which a file is named.
    Run,
    /// A job's name, which comes before the slash in `JOB/CANDIDATE`.
    Job,
    Candidate,
    Parameter,
}

/// Returns why a text cannot be a name, as the end of a sentence (`is empty`). `None` if it can be one.
pub(super) fn objection(name: &str, of: NameOf) -> Option<&'static str> {
    if name.is_empty() {
        return Some("is empty");
    }
    if name.chars().count() > MAX_NAME_CHARS {
        return Some("is longer than 128 characters");
    }
    if !name.chars().all(is_printable) {
        return Some("contains an unprintable character");
    }
    if name.trim() != name {
        return Some("begins or ends with a space");
    }
    if matches!(of, NameOf::Run | NameOf::Job) && name.contains('/') {
        return Some("contains a `/`");
    }
    if of == NameOf::Run && name.starts_with('.') {
        return Some("begins with a dot");
    }
    if of == NameOf::Run && name == "latest" {
        return Some("is reserved for the link to the newest run");
    }
    None
}

/// Returns false for control characters, for most invisible ones, and for those that change how the rest of a line is
/// shown.
pub(super) fn is_printable(c: char) -> bool {
    let invisible = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !invisible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objection_refuses_names_that_cannot_be_typed_or_stored() {
        for name in ["a", "naive v2", "größe", "a/b.c"] {
            assert_eq!(objection(name, NameOf::Candidate), None, "{name}");
        }
        let long = "x".repeat(MAX_NAME_CHARS + 1);
        for name in ["", " a", "a ", "a\tb", "a\u{202e}b", "a\n", &long] {
            assert!(objection(name, NameOf::Candidate).is_some(), "{name:?}");
        }
        assert!(objection("a/b", NameOf::Job).is_some());
        assert!(objection("latest", NameOf::Run).is_some());
        assert_eq!(objection("latest", NameOf::Job), None);
        assert!(objection("..", NameOf::Run).is_some());
    }
}
