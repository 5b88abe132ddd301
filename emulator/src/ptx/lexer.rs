//! Splits a PTX text into words, numbers, strings and punctuation.

use crate::fault::LoadError;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// A word: a name, a register, a directive, or an opcode with its qualifiers.
    Word(&'a str),
    /// A number, or any other token that begins with a digit.
    Digits(&'a str),
    Text(&'a str),
    Mark(char),
    End,
}

/// Reads the tokens of a PTX text. Lines are counted from 1.
#[derive(Clone, Debug)]
pub struct Lexer<'a> {
    rest: &'a str,
    reached: u32,
    next: Token<'a>,
    line: u32,
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Result<Self, LoadError> {
        let mut lexer = Self { rest: text, reached: 1, next: Token::End, line: 1 };
        lexer.advance()?;
        Ok(lexer)
    }

    /// The line of the next token.
    pub fn line(&self) -> u32 {
        self.line
    }

    pub fn peek(&self) -> Token<'a> {
        self.next
    }

    pub fn take(&mut self) -> Result<Token<'a>, LoadError> {
        let token = self.next;
        self.advance()?;
        Ok(token)
    }

    pub fn is(&self, mark: char) -> bool {
        self.next == Token::Mark(mark)
    }

    /// Takes the next token if it is this mark, and returns whether it was.
    pub fn accept(&mut self, mark: char) -> Result<bool, LoadError> {
        let found = self.is(mark);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub fn expect(&mut self, mark: char) -> Result<(), LoadError> {
        if self.accept(mark)? { Ok(()) } else { Err(self.unexpected(&format!("`{mark}`"))) }
    }

    pub fn word(&mut self, what: &str) -> Result<&'a str, LoadError> {
        match self.next {
            Token::Word(word) => {
                self.advance()?;
                Ok(word)
            }
            _ => Err(self.unexpected(what)),
        }
    }

    /// Returns the error for an unexpected token.
    pub fn unexpected(&self, wanted: &str) -> LoadError {
        let found = match self.next {
            Token::Word(word) | Token::Digits(word) => format!("`{}`", clipped(word)),
            Token::Text(_) => "a string".to_owned(),
            Token::Mark(mark) => format!("`{mark}`"),
            Token::End => "the end of the text".to_owned(),
        };
        LoadError::syntax(self.line, format!("expected {wanted}, found {found}"))
    }

    /// Skips all tokens up to and including `end`.
    pub fn skip_to(&mut self, end: char) -> Result<(), LoadError> {
        while !self.is(end) {
            if self.next == Token::End {
                return Err(self.unexpected(&format!("`{end}`")));
            }
            self.advance()?;
        }
        self.advance()
    }

    fn advance(&mut self) -> Result<(), LoadError> {
        self.skip_blanks()?;
        self.line = self.reached;
        let Some(first) = self.rest.chars().next() else {
            self.next = Token::End;
            return Ok(());
        };
        self.next = if first.is_ascii_digit() {
            Token::Digits(self.split(number_length(self.rest)))
        } else if first == '.' {
            // A directive ends at the next dot: `.reg.b16` is `.reg .b16`.
            let length = word_length(self.rest);
            let dot = self.rest[1..length].find('.').map(|at| at + 1);
            Token::Word(self.split(dot.unwrap_or(length)))
        } else if is_in_word(first) {
            Token::Word(self.split(word_length(self.rest)))
        } else if first == '"' {
            let Some(end) = self.rest[1..].find('"') else {
                return Err(LoadError::syntax(self.reached, "a string has no closing quote".to_owned()));
            };
            let text = &self.rest[1..=end];
            self.reached = self.reached.saturating_add(lines(text));
            self.split(end + 2);
            Token::Text(text)
        } else {
            self.split(first.len_utf8());
            Token::Mark(first)
        };
        Ok(())
    }

    fn split(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken
    }

    fn skip_blanks(&mut self) -> Result<(), LoadError> {
        loop {
            let trimmed =
                self.rest.trim_start_matches(|char: char| char.is_ascii_whitespace() || char == '\0');
            self.reached = self.reached.saturating_add(lines(&self.rest[..self.rest.len() - trimmed.len()]));
            self.rest = trimmed;
            if self.rest.starts_with("//") {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.split(end);
            } else if self.rest.starts_with("/*") {
                let Some(end) = self.rest[2..].find("*/") else {
                    return Err(LoadError::syntax(self.reached, "a comment has no closing `*/`".to_owned()));
                };
                let comment = self.split(end + 4);
                self.reached = self.reached.saturating_add(lines(comment));
            } else {
                return Ok(());
            }
        }
    }
}

/// Returns the beginning of a word, which is short enough for a message.
pub fn clipped(word: &str) -> &str {
    word.char_indices().nth(60).map_or(word, |(end, _)| &word[..end])
}

fn lines(text: &str) -> u32 {
    u32::try_from(text.bytes().filter(|byte| *byte == b'\n').count()).unwrap_or(u32::MAX)
}

fn is_in_word(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '_' | '$' | '%')
}

/// Returns the length of a word, which may contain dots, and `::` as in `.shared::cta`.
fn word_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        if is_in_word(char::from(*byte)) || *byte == b'.' {
            at += 1;
        } else if bytes[at..].starts_with(b"::") {
            at += 2;
        } else {
            break;
        }
    }
    at
}

/// Returns the length of a token that begins with a digit and consists of letters, digits, dots, and the sign of a
/// decimal exponent. The parser checks whether the token is a number.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_prefixed = bytes.len() > 1 && bytes[0] == b'0' && bytes[1].is_ascii_alphabetic();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let after_exponent = 0 < at && matches!(bytes[at - 1], b'e' | b'E') && !is_prefixed;
        if byte.is_ascii_alphanumeric() || *byte == b'.' || (after_exponent && matches!(byte, b'+' | b'-')) {
            at += 1;
        } else {
            break;
        }
    }
    at
}
