//! Checks that no file uses a word that was given up. The glossary in CONTRIBUTING.md lists these words.

use super::{assert_none, read, texts};

/// The heading of the table that lists each word or phrase with its replacement.
const HEADING: &str = "### Words that were given up";
const GLOSSARY: &str = "CONTRIBUTING.md";

/// How to search for a word.
enum Pattern {
    /// The name of a type in its exact spelling. The same word is allowed in plain English.
    Identifier(String),
    /// Consecutive words, in upper or lower case, and also as parts of names.
    Words(Vec<String>),
}

fn given_up() -> Vec<(String, Pattern)> {
    let text = read(GLOSSARY);
    let table = text.split(HEADING).nth(1).unwrap_or_else(|| panic!("{GLOSSARY} has no `{HEADING}`"));
    let rows =
        table.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let word = row.split('`').nth(1).expect("a word in backticks").to_owned();
        let pattern = if word.starts_with(char::is_uppercase) {
            Pattern::Identifier(word.clone())
        } else {
            Pattern::Words(word.split(' ').map(str::to_owned).collect())
        };
        (word, pattern)
    })
    .collect()
}

/// Returns the words of a line in lower case. Names are split at underscores and capitals.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for char in line.chars() {
        let begins = !char.is_alphanumeric() || (char.is_uppercase() && was_lower);
        was_lower = char.is_lowercase();
        if begins {
            words.push(String::new());
        }
        if char.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(char.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns whether a line contains the pattern. `words` are the words of the line.
fn is_in(pattern: &Pattern, line: &str, words: &[String]) -> bool {
    match pattern {
        Pattern::Identifier(name) => {
            line.split(|char: char| !char.is_alphanumeric() && char != '_').any(|word| word == name)
        }
        Pattern::Words(wanted) => words.windows(wanted.len()).any(|found| found == wanted.as_slice()),
    }
}

#[test]
fn given_up_words_are_not_used() {
    let given_up = given_up();
    assert!(10 < given_up.len(), "the table is read");
    let endings = [".rs", ".h", ".c", ".cpp", ".py", ".toml", ".md", ".txt", ".json", ".sh", "run"];
    let mut wrong = Vec::new();
    for file in texts("", &endings) {
        // This file's own test contains such words.
        if file.path == GLOSSARY || file.path == "tests/it/tidy/words.rs" {
            continue;
        }
        for (number, line) in file.text.lines().enumerate() {
            let words = words(line);
            // Outside Rust, the name of a type is just an English word.
            let applies =
                |pattern: &Pattern| matches!(pattern, Pattern::Words(_)) || file.path.ends_with(".rs");
            let found =
                given_up.iter().filter(|(_, pattern)| applies(pattern) && is_in(pattern, line, &words));
            wrong.extend(found.map(|(word, _)| format!("{}:{}: {word}", file.path, number + 1)));
        }
    }
    assert_none("words that were given up (CONTRIBUTING.md says what to write instead)", &wrong);
}

#[test]
fn words_are_found_in_names_and_phrases() {
    let phrase = |text: &str| Pattern::Words(text.split(' ').map(str::to_owned).collect());
    let is_in = |pattern: &Pattern, line: &str| is_in(pattern, line, &words(line));
    assert!(is_in(&phrase("yard"), "let new_yard = YardKind::default();"));
    assert!(!is_in(&phrase("yard"), "a backyard"));
    assert!(is_in(&phrase("said aloud"), "// It is *said aloud*, once."));
    assert!(is_in(&Pattern::Identifier("Told".to_owned()), "enum E { Told(u8) }"));
    assert!(!is_in(&Pattern::Identifier("Told".to_owned()), "it was told; TOLD_TWICE"));
}
