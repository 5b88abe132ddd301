//! The qualifiers of an opcode. Each has to be taken: one that is left is not supported.

use crate::fault::LoadError;
use crate::lane::Type;
use crate::lane::soft::Rounding;
use crate::ptx::lexer::clipped;
use crate::ptx::syntax::Statement;

pub struct Qualifiers<'a> {
    line: u32,
    opcode: Vec<&'a str>,
    rest: Vec<&'a str>,
}

impl<'a> Qualifiers<'a> {
    pub fn new(statement: &Statement<'a>) -> Self {
        let opcode = statement.opcode.clone();
        Self { line: statement.line, rest: opcode[1..].to_vec(), opcode }
    }

    pub fn has(&self, name: &str) -> bool {
        self.rest.contains(&name)
    }

    pub fn take(&mut self, name: &str) -> bool {
        let found = self.rest.iter().position(|qualifier| *qualifier == name);
        if let Some(index) = found {
            self.rest.remove(index);
        }
        found.is_some()
    }

    /// Takes all that are in a list; whether there were any.
    pub fn take_all(&mut self, names: &[&str]) -> bool {
        let before = self.rest.len();
        self.rest.retain(|qualifier| !names.contains(qualifier));
        self.rest.len() != before
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[(&str, T)]) -> Option<T> {
        let (index, value) = self.rest.iter().enumerate().find_map(|(index, qualifier)| {
            choices.iter().find(|(name, _)| name == qualifier).map(|(_, value)| (index, *value))
        })?;
        self.rest.remove(index);
        Some(value)
    }

    /// The type that stands last.
    pub fn ty(&mut self) -> Result<Type, LoadError> {
        let last = self.rest.last().copied().unwrap_or_default();
        let found = Type::named(last).ok_or_else(|| self.unsupported())?;
        self.rest.pop();
        Ok(found)
    }

    /// `rn` and its like, as an arithmetic instruction has them.
    pub fn rounding(&mut self) -> Option<Rounding> {
        self.one_of(&[
            ("rn", Rounding::NearestEven),
            ("rz", Rounding::TowardsZero),
            ("rm", Rounding::Down),
            ("rp", Rounding::Up),
        ])
    }

    pub fn unsupported(&self) -> LoadError {
        LoadError::unsupported(self.line, format!("`{}`", clipped(&self.opcode.join("."))))
    }

    /// A qualifier that is not known explains operands that do not fit.
    pub fn wrong_operands(&self) -> LoadError {
        if !self.rest.is_empty() {
            return self.unsupported();
        }
        let what = format!("`{}` does not take these operands", clipped(&self.opcode.join(".")));
        LoadError::syntax(self.line, what)
    }

    pub fn finish(&self) -> Result<(), LoadError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.unsupported()) }
    }
}
