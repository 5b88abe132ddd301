//! Decodes `setp`, `set`, `selp` and `slct`.

use super::builder::Builder;
use super::qualifiers::Qualifiers;
use crate::code::{Comparable, Compare, FlagOp, Op, Slot};
use crate::fault::LoadError;
use crate::lane::{Comparison, Function, Selection, Type};
use crate::ptx::syntax::Operand;

pub fn decode<'a>(
    builder: &mut Builder<'_, 'a>,
    opcode: &str,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    match opcode {
        "selp" => select(builder, qualifiers, operands),
        "slct" => select_by_sign(builder, qualifiers, operands),
        _ => set(builder, opcode == "setp", qualifiers, operands),
    }
}

/// Returns the comparison of values of this type that a qualifier names.
fn compare(name: &str, ty: Type) -> Option<Compare> {
    let is_float = ty.is_half() || matches!(ty, Type::F32 | Type::F64);
    let found = match name {
        "eq" => Compare::Eq,
        "ne" => Compare::Ne,
        "lt" => Compare::Lt,
        "le" => Compare::Le,
        "gt" => Compare::Gt,
        "ge" => Compare::Ge,
        "equ" if is_float => Compare::EqOrNan,
        "neu" if is_float => Compare::NeOrNan,
        "ltu" if is_float => Compare::LtOrNan,
        "leu" if is_float => Compare::LeOrNan,
        "gtu" if is_float => Compare::GtOrNan,
        "geu" if is_float => Compare::GeOrNan,
        "num" if is_float => Compare::BothNumbers,
        "nan" if is_float => Compare::AnyNan,
        "lo" if !is_float => Compare::Lt,
        "ls" if !is_float => Compare::Le,
        "hi" if !is_float => Compare::Gt,
        "hs" if !is_float => Compare::Ge,
        _ => return None,
    };
    let orders = !matches!(found, Compare::Eq | Compare::Ne);
    if ty.is_untyped() && orders { None } else { Some(found) }
}

fn set<'a>(
    builder: &mut Builder<'_, 'a>,
    gives_flags: bool,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let ty = qualifiers.ty()?;
    let result = if gives_flags { Type::Pred } else { qualifiers.ty()? };
    let combine = qualifiers.one_of(&[("and", FlagOp::And), ("or", FlagOp::Or), ("xor", FlagOp::Xor)]);
    let names = [
        "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan", "lo",
        "ls", "hi", "hs",
    ];
    let name = qualifiers.one_of(&names.map(|name| (name, name))).ok_or_else(|| qualifiers.unsupported())?;
    let compare = compare(name, ty).ok_or_else(|| qualifiers.unsupported())?;
    let flush = qualifiers.take("ftz");
    if ty.bits() == 8 || ty == Type::Pred {
        return Err(qualifiers.unsupported());
    }
    if !gives_flags
        && !matches!(result, Type::U32 | Type::S32 | Type::F32 | Type::U16 | Type::S16)
        && !result.is_half()
    {
        return Err(qualifiers.unsupported());
    }
    let [to, a, b, flag @ ..] = operands else { return Err(qualifiers.wrong_operands()) };
    if flag.len() != usize::from(combine.is_some()) {
        return Err(qualifiers.wrong_operands());
    }
    let (a, b) = (builder.value(a, ty)?, builder.value(b, ty)?);
    let (to, second) = match to {
        Operand::Pair(first, second) if gives_flags => {
            let first = flag_or_sink(builder, first)?;
            (first, Some(flag_or_sink(builder, second)?))
        }
        _ if gives_flags => (builder.result(to, Type::Pred)?, None),
        _ => (builder.result(to, if result.bits() == 32 { Type::B32 } else { Type::B16 })?, None),
    };
    if let (true, None, None, false, Some(kind)) = (gives_flags, combine, second, flush, comparable(ty)) {
        builder.emit(Op::Compare(compare, kind, to.row, a.row, b.row));
        return Ok(());
    }
    let mut from = vec![a, b];
    let mut combined = None;
    if let (Some(op), [flag]) = (combine, flag) {
        let flag = builder.flag_operand(flag)?;
        combined = Some((op, flag.negated));
        from.push(Slot { file: crate::code::File::Flag, row: flag.row, bits: 1 });
    }
    let comparison = Comparison { compare, ty, flush, combine: combined, result };
    builder.emit_lane_with(Function::Compare(comparison), to, second, from);
    Ok(())
}

fn flag_or_sink<'a>(builder: &mut Builder<'_, 'a>, name: &'a str) -> Result<Slot, LoadError> {
    if name == "_" {
        return Ok(builder.new_row(crate::ptx::syntax::RegisterClass::Predicate));
    }
    builder.result(&Operand::Name(name), Type::Pred)
}

fn comparable(ty: Type) -> Option<Comparable> {
    match ty {
        Type::S32 => Some(Comparable::Signed32),
        Type::U32 | Type::B32 => Some(Comparable::Unsigned32),
        Type::F32 => Some(Comparable::Float32),
        Type::S64 => Some(Comparable::Signed64),
        Type::U64 | Type::B64 => Some(Comparable::Unsigned64),
        // 16-bit values are zero-extended, so they can be compared as 32-bit values.
        Type::U16 | Type::B16 => Some(Comparable::Unsigned32),
        _ => None,
    }
}

fn select<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let ty = qualifiers.ty()?;
    let [to, a, b, flag] = operands else { return Err(qualifiers.wrong_operands()) };
    if matches!(ty.bits(), 1 | 8) {
        return Err(qualifiers.unsupported());
    }
    let to = builder.result(to, ty)?;
    let (a, b) = (builder.value(a, ty)?, builder.value(b, ty)?);
    let flag = builder.flag_operand(flag)?;
    let (yes, no) = if flag.negated { (b.row, a.row) } else { (a.row, b.row) };
    let op = if ty.bits() == 64 {
        Op::SelectWide { to: to.row, yes, no, flag: flag.row }
    } else {
        Op::SelectNarrow { to: to.row, yes, no, flag: flag.row }
    };
    builder.emit(op);
    Ok(())
}

fn select_by_sign<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let by = qualifiers.ty()?;
    let ty = qualifiers.ty()?;
    let flush = qualifiers.take("ftz");
    let selection = match by {
        Type::S32 => Selection::BySignOfS32,
        Type::F32 => Selection::BySignOfF32 { flush },
        _ => return Err(qualifiers.unsupported()),
    };
    let [to, a, b, sign] = operands else { return Err(qualifiers.wrong_operands()) };
    let to = builder.result(to, ty)?;
    let from = vec![builder.value(a, ty)?, builder.value(b, ty)?, builder.value(sign, by)?];
    builder.emit_lane(Function::Select(selection), to, from);
    Ok(())
}
