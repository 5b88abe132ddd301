//! Splits the text of an expression into tokens.

use std::ops::Range;

use super::SyntaxError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Number(i64),
    Name(&'a str),
    /// One of `+ - * / % ( ) [ ] , .`.
    Sign(char),
    End,
}

/// Splits a text into tokens, with one token of lookahead.
pub(super) struct Tokens<'a> {
    text: &'a str,
    /// The end of the part of the text that is parsed. After it, the text may contain a type.
    end: usize,
    next: Token<'a>,
    /// The byte range of the next token.
    at: Range<usize>,
    /// The end of the last token that the parser took.
    pub(super) last: usize,
}

impl<'a> Tokens<'a> {
    /// Splits the first `end` bytes of a text.
    pub(super) fn new(text: &'a str, end: usize) -> Result<Self, SyntaxError> {
        let mut tokens = Self { text, end, next: Token::End, at: 0..0, last: 0 };
        tokens.advance()?;
        Ok(tokens)
    }

    pub(super) fn peek(&self) -> Token<'a> {
        self.next
    }

    pub(super) fn at(&self) -> Range<usize> {
        self.at.clone()
    }

    pub(super) fn take(&mut self) -> Result<Token<'a>, SyntaxError> {
        let token = self.next;
        self.last = self.at.end;
        self.advance()?;
        Ok(token)
    }

    /// Takes the next token if it is this sign. Returns true if so.
    pub(super) fn took(&mut self, sign: char) -> Result<bool, SyntaxError> {
        let is_next = self.next == Token::Sign(sign);
        if is_next {
            self.take()?;
        }
        Ok(is_next)
    }

    /// Takes the next token, which must be this sign.
    pub(super) fn expect(&mut self, sign: char) -> Result<(), SyntaxError> {
        if self.took(sign)? { Ok(()) } else { Err(self.unexpected(&format!("`{sign}`"))) }
    }

    pub(super) fn unexpected(&self, expected: &str) -> SyntaxError {
        let found = match self.next {
            Token::End => "the end".to_owned(),
            _ => format!("`{}`", &self.text[self.at()]),
        };
        self.error(self.at(), format!("expected {expected}, found {found}"))
    }

    pub(super) fn error(&self, at: Range<usize>, message: String) -> SyntaxError {
        SyntaxError { text: self.text.to_owned(), at, message }
    }

    fn advance(&mut self) -> Result<(), SyntaxError> {
        let rest = &self.text[self.at.end..self.end];
        let start = self.end - rest.trim_start().len();
        let rest = &self.text[start..self.end];
        let Some(first) = rest.chars().next() else {
            (self.next, self.at) = (Token::End, start..start);
            return Ok(());
        };
        let run = |of: fn(char) -> bool| start..start + rest.find(|c| !of(c)).unwrap_or(rest.len());
        (self.next, self.at) = if first.is_ascii_digit() {
            let at = run(|c| c.is_ascii_digit());
            let number = self.text[at.clone()]
                .parse()
                .map_err(|_| self.error(at.clone(), format!("a number is at most {}", i64::MAX)))?;
            (Token::Number(number), at)
        } else if is_start(first) {
            let at = run(is_part);
            (Token::Name(&self.text[at.clone()]), at)
        } else {
            let at = start..start + first.len_utf8();
            if !"+-*/%()[],.".contains(first) {
                return Err(self.error(at, format!("{first:?} is not allowed in an expression")));
            }
            (Token::Sign(first), at)
        };
        Ok(())
    }
}

fn is_start(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// True if an expression can refer to a workspace by this name.
pub fn is_name(text: &str) -> bool {
    text.starts_with(is_start) && text.chars().all(is_part)
}
