//! Keeps the qualifiers of an opcode. The decoder takes each qualifier that it supports. If any is left at the end, the
//! instruction is refused.

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

    /// Takes all qualifiers that are in `names`, and returns whether there were any.
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

    /// Takes the last qualifier, which must be a type.
    pub fn ty(&mut self) -> Result<Type, LoadError> {
        let last = self.rest.last().copied().unwrap_or_default();
        let found = Type::named(last).ok_or_else(|| self.unsupported())?;
        self.rest.pop();
        Ok(found)
    }

    /// Takes the rounding mode of an arithmetic instruction, such as `rn`.
    pub fn rounding(&mut self) -> Option<Rounding> {
        self.one_of(&[
            ("rn", Rounding::NearestEven),
            ("rz", Rounding::TowardsZero),
            ("rm", Rounding::Down),
            ("rp", Rounding::Up),
        ])
    }

    pub fn unsupported(&self) -> LoadError {
        let name = format!("`{}`", clipped(&self.opcode.join(".")));
        LoadError::unsupported(
            self.line,
            match super::tensor::family(&self.opcode) {
                Some(family) => format!("{name} ({family})"),
                None => name,
            },
        )
    }

    /// Returns the error for operands that do not match. If an unsupported qualifier is left, it is reported instead,
    /// because it is the more likely cause.
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
