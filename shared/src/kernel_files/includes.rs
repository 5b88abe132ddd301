//! Finds the quoted names in the `#include` lines of a source or a header.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

/// The number of bytes that are searched in each line. The rest of a longer line is ignored.
const MAX_LINE_BYTES: u64 = 4096;

/// Passes every quoted name after an `#include` to `take`.
pub(super) fn each_include(text: File, take: &mut dyn FnMut(&str)) -> io::Result<()> {
    let mut text = BufReader::new(text);
    let mut line = Vec::new();
    let mut at_start = true;
    loop {
        line.clear();
        if text.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if at_start && let Some(name) = included(&String::from_utf8_lossy(&line)) {
            take(name);
        }
        at_start = line.ends_with(b"\n");
    }
}

/// A byte order mark, which an editor may write to the beginning of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';

fn included(line: &str) -> Option<&str> {
    let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
    let directive = after_space(after_space(line).strip_prefix('#')?);
    let words = ["include_next", "include", "import"];
    let rest = words.iter().find_map(|word| directive.strip_prefix(word))?;
    let (name, _) = after_space(rest).strip_prefix('"')?.split_once('"')?;
    (!name.is_empty()).then_some(name)
}

/// Returns the rest of a line after any spaces and comments at its beginning.
fn after_space(text: &str) -> &str {
    let mut text = text.trim_start();
    while let Some((_, rest)) = text.strip_prefix("/*").and_then(|comment| comment.split_once("*/")) {
        text = rest.trim_start();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn include_is_found_behind_marks_comments_and_bytes_that_are_not_utf_8() {
        for text in [
            "\u{feff}#include \"x.h\"\n".as_bytes(),
            b"#include \"x.h\" /* f\xfcr */\n",
            b"/* a */ /* b */ # /**/ include /* c */ \"x.h\"\n",
            b"#import \"x.h\"\n",
        ] {
            let mut found = Vec::new();
            let mut file = tempfile::tempfile().expect("a file");
            io::Write::write_all(&mut file, text).expect("written");
            io::Seek::rewind(&mut file).expect("rewound");
            each_include(file, &mut |name| found.push(name.to_owned())).expect("readable");
            assert_eq!(found, ["x.h"], "{}", String::from_utf8_lossy(text));
        }
        assert_eq!(included("/* #include \"x.h\"\n"), None);
        assert_eq!(included("#include <x.h>\n"), None);
    }
}
