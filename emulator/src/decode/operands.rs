//! Finds or creates the register rows that contain the operands of an instruction.

use super::builder::{Builder, Name};
use crate::code::{File, Guard, Op, Slot, Special};
use crate::fault::LoadError;
use crate::lane::Type;
use crate::ptx::lexer::clipped;
use crate::ptx::syntax::{Number, Operand, RegisterClass, Space};

/// Truncates to the low 32 bits.
pub fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or(0)
}

pub fn class_of(bits: u32) -> RegisterClass {
    match bits {
        1 => RegisterClass::Predicate,
        64 => RegisterClass::Wide,
        bits => RegisterClass::Narrow(bits),
    }
}

impl<'a> Builder<'_, 'a> {
    pub fn register(&mut self, name: &str) -> Result<Slot, LoadError> {
        match self.find(name) {
            Some(Name::Register(slot)) => Ok(slot),
            Some(_) => Err(self.syntax(format!("`{}` is a variable, not a register", clipped(name)))),
            None => Err(self.syntax(format!("`{}` is not declared", clipped(name)))),
        }
    }

    pub fn flag(&mut self, name: &str) -> Result<u32, LoadError> {
        let slot = self.register(name)?;
        if slot.file == File::Flag {
            Ok(slot.row)
        } else {
            Err(self.syntax(format!("`{}` is not a predicate", clipped(name))))
        }
    }

    /// Resolves an operand that is a predicate, possibly negated, or a constant.
    pub fn flag_operand(&mut self, operand: &Operand<'a>) -> Result<Guard, LoadError> {
        match operand {
            Operand::Name(name) => Ok(Guard { row: self.flag(name)?, negated: false }),
            Operand::Not(name) => Ok(Guard { row: self.flag(name)?, negated: true }),
            Operand::Number(Number::Integer(value)) => {
                Ok(Guard { row: crate::code::ALWAYS, negated: *value == 0 })
            }
            _ => Err(self.syntax("an operand is not a predicate".to_owned())),
        }
    }

    /// Returns the row of a predicate. If the predicate is negated, its value is first written to a new row.
    pub fn plain_flag(&mut self, operand: &Operand<'a>) -> Result<u32, LoadError> {
        let flag = self.flag_operand(operand)?;
        if !flag.negated {
            return Ok(flag.row);
        }
        let to = self.new_row(RegisterClass::Predicate).row;
        self.emit_plain(Op::FlagNot { to, from: flag.row });
        Ok(to)
    }

    /// Returns the register for a result of this type.
    pub fn result(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Slot, LoadError> {
        // A discarded result is written to an unused row.
        if *operand == Operand::Sink {
            return Ok(self.new_row(class_of(ty.bits())));
        }
        let slot = self.result_of_any_size(operand)?;
        if slot.bits != ty.bits() {
            return Err(self.wrong_size(operand, slot, ty));
        }
        Ok(slot)
    }

    /// Returns the register for a result, which may have any size.
    pub fn result_of_any_size(&mut self, operand: &Operand<'a>) -> Result<Slot, LoadError> {
        match operand {
            Operand::Name(name) => self.register(name),
            _ => Err(self.syntax("the target of an instruction is not a register".to_owned())),
        }
    }

    /// Resolves an operand that must have exactly the type's size.
    pub fn value(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Slot, LoadError> {
        let slot = self.wider_value(operand, ty)?;
        if slot.bits != ty.bits() {
            return Err(self.wrong_size(operand, slot, ty));
        }
        Ok(slot)
    }

    pub fn values(&mut self, operands: &[Operand<'a>], ty: Type) -> Result<Vec<Slot>, LoadError> {
        operands.iter().map(|operand| self.value(operand, ty)).collect()
    }

    /// Resolves an operand whose register may be larger than the type.
    pub fn wider_value(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Slot, LoadError> {
        let slot = match operand {
            Operand::Number(number) => {
                let bits = self.constant_bits(*number, ty)?;
                return Ok(self.constant(bits, ty));
            }
            Operand::Name("WARP_SZ") => return Ok(self.constant(32, ty)),
            Operand::Name(name) => match self.find(name) {
                Some(Name::Register(slot)) => slot,
                Some(Name::Variable { space, address, dynamic }) => {
                    return self.address(space, address, dynamic, ty);
                }
                None => match special(name) {
                    Some(special) if matches!(ty.bits(), 16 | 32) => {
                        let row = self.special(special);
                        return Ok(Slot { file: File::Narrow, row, bits: ty.bits() });
                    }
                    _ => return Err(self.undeclared(name)),
                },
            },
            Operand::Sum(name, offset) => match self.find(name) {
                Some(Name::Variable { space, address, dynamic }) => {
                    return self.address(space, address.wrapping_add_signed(*offset), dynamic, ty);
                }
                _ => return Err(self.syntax(format!("`{}` is not a variable", clipped(name)))),
            },
            _ => {
                return Err(
                    self.syntax("an operand is neither a number, a register nor a variable".to_owned())
                );
            }
        };
        if slot.bits < ty.bits() {
            return Err(self.wrong_size(operand, slot, ty));
        }
        Ok(slot)
    }

    fn undeclared(&self, name: &str) -> LoadError {
        let is_function = self.source.functions.iter().any(|function| function.name == name);
        if is_function {
            return LoadError::unsupported(self.line(), "addresses of functions".to_owned());
        }
        if name.starts_with('%') && name.chars().nth(1).is_some_and(|c| c.is_ascii_lowercase()) {
            return LoadError::unsupported(self.line(), format!("the register `{}`", clipped(name)));
        }
        self.syntax(format!("`{}` is not declared", clipped(name)))
    }

    fn address(&mut self, _: Space, address: u64, dynamic: bool, ty: Type) -> Result<Slot, LoadError> {
        match (ty.bits(), dynamic) {
            (64, true) => Ok(Slot { file: File::Wide, row: self.dynamic_constant(address, true), bits: 64 }),
            (32, true) => {
                Ok(Slot { file: File::Narrow, row: self.dynamic_constant(address, false), bits: 32 })
            }
            (32 | 64, false) => Ok(self.constant(address, ty)),
            _ => Err(self.syntax("the address of a variable needs an operand of 32 or 64 bits".to_owned())),
        }
    }

    pub fn constant(&mut self, bits: u64, ty: Type) -> Slot {
        let size = ty.bits();
        if size == 64 {
            Slot { file: File::Wide, row: self.wide_constant(bits), bits: 64 }
        } else {
            Slot { file: File::Narrow, row: self.narrow_constant(low(ty.truncate(bits))), bits: size }
        }
    }

    fn constant_bits(&self, number: Number, ty: Type) -> Result<u64, LoadError> {
        match (number, ty) {
            (Number::Integer(bits), ty) if !matches!(ty, Type::F32 | Type::F64) => Ok(ty.truncate(bits)),
            (Number::Single(bits), ty) if ty.bits() == 32 => Ok(u64::from(bits)),
            (Number::Single(bits), Type::F64) => Ok(f64::from(f32::from_bits(bits)).to_bits()),
            (Number::Double(bits), Type::F64 | Type::B64) => Ok(bits),
            (Number::Double(bits), Type::F32) => Ok(u64::from(crate::ptx::single(bits))),
            _ => Err(self.syntax("a constant does not have the instruction's type".to_owned())),
        }
    }

    fn wrong_size(&self, operand: &Operand<'a>, slot: Slot, ty: Type) -> LoadError {
        let name = match operand {
            Operand::Name(name) => format!("`{}`", clipped(name)),
            _ => "an operand".to_owned(),
        };
        self.syntax(format!("{name} has {} bits instead of {}", slot.bits, ty.bits()))
    }
}

/// Returns the special register with this name.
pub fn special(name: &str) -> Option<Special> {
    let axis = |prefix: &str| match name.strip_prefix(prefix) {
        Some(".x") => Some(0),
        Some(".y") => Some(1),
        Some(".z") => Some(2),
        _ => None,
    };
    if let Some(axis) = axis("%tid") {
        return Some(Special::Thread(axis));
    }
    if let Some(axis) = axis("%ntid") {
        return Some(Special::BlockSize(axis));
    }
    if let Some(axis) = axis("%ctaid") {
        return Some(Special::Block(axis));
    }
    if let Some(axis) = axis("%nctaid") {
        return Some(Special::GridSize(axis));
    }
    Some(match name {
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%lanemask_eq" => Special::LanesEqual,
        "%lanemask_lt" => Special::LanesBelow,
        "%lanemask_le" => Special::LanesUpTo,
        "%lanemask_gt" => Special::LanesAbove,
        "%lanemask_ge" => Special::LanesFrom,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" => Special::TotalShared,
        "%nsmid" => Special::Number(1),
        "%smid" | "%gridid" | "%reserved_smem_offset_begin" => Special::Number(0),
        _ => return None,
    })
}
