//! Decodes moves, conversions of values, and instructions that convert or test addresses.

use super::builder::{Builder, Name};
use super::operands::class_of;
use super::qualifiers::Qualifiers;
use super::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES};
use crate::code::{Comparable, Compare, File, Op, Slot, Wide2};
use crate::fault::LoadError;
use crate::lane::soft::Rounding;
use crate::lane::{Conversion, Function, Type};
use crate::ptx::syntax::{Operand, RegisterClass, Space};

pub fn decode<'a>(
    builder: &mut Builder<'_, 'a>,
    opcode: &str,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    match opcode {
        "mov" => mov(builder, qualifiers, operands),
        "cvt" => convert(builder, qualifiers, operands),
        "cvta" => address(builder, qualifiers, operands),
        _ => space_test(builder, qualifiers, operands),
    }
}

fn mov<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let ty = qualifiers.ty()?;
    let [to, from] = operands else { return Err(qualifiers.wrong_operands()) };
    match (to, from) {
        (Operand::Vector(parts), from) => return unpack(builder, ty, parts, from, qualifiers),
        (to, Operand::Vector(parts)) => return pack(builder, ty, to, parts, qualifiers),
        _ => {}
    }
    if ty == Type::Pred {
        let to = builder.result(to, ty)?.row;
        let from = builder.plain_flag(from)?;
        builder.emit(Op::FlagMove { to, from });
        return Ok(());
    }
    if let Operand::Name("%clock" | "%clock_hi" | "%clock64" | "%globaltimer" | "%globaltimer_lo") = from {
        let to = builder.result(to, ty)?;
        builder.emit(Op::Clock { to });
        return Ok(());
    }
    let to = builder.result(to, ty)?;
    let from = builder.value(from, ty)?;
    builder.emit_move(to, from);
    Ok(())
}

impl Builder<'_, '_> {
    /// Emits a move between rows of the same size.
    pub fn emit_move(&mut self, to: Slot, from: Slot) {
        self.emit(match to.file {
            File::Wide => Op::MoveWide { to: to.row, from: from.row },
            File::Narrow => Op::MoveNarrow { to: to.row, from: from.row },
            File::Flag => Op::FlagMove { to: to.row, from: from.row },
        });
    }
}

fn part(ty: Type, count: usize, qualifiers: &Qualifiers<'_>) -> Result<Type, LoadError> {
    match (ty.bits(), count) {
        (64, 2) => Ok(Type::B32),
        (64, 4) | (32, 2) => Ok(Type::B16),
        (32, 4) | (16, 2) => Ok(Type::B8),
        _ => Err(qualifiers.unsupported()),
    }
}

fn pack<'a>(
    builder: &mut Builder<'_, 'a>,
    ty: Type,
    to: &Operand<'a>,
    parts: &[Operand<'a>],
    qualifiers: &Qualifiers<'a>,
) -> Result<(), LoadError> {
    let part = part(ty, parts.len(), qualifiers)?;
    let to = builder.result(to, ty)?;
    let from = builder.values(parts, part)?;
    builder.emit_lane(Function::Pack { bits: part.bits() }, to, from);
    Ok(())
}

fn unpack<'a>(
    builder: &mut Builder<'_, 'a>,
    ty: Type,
    parts: &[Operand<'a>],
    from: &Operand<'a>,
    qualifiers: &Qualifiers<'a>,
) -> Result<(), LoadError> {
    let part = part(ty, parts.len(), qualifiers)?;
    let from = builder.value(from, ty)?;
    let mut shift = 0;
    for to in parts {
        if *to != Operand::Sink {
            let to = builder.result(to, part)?;
            builder.emit_lane(Function::Extract { shift }, to, vec![from]);
        }
        shift += part.bits();
    }
    Ok(())
}

fn is_float(ty: Type) -> bool {
    ty.is_half() || matches!(ty, Type::F32 | Type::F64)
}

fn convert<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    if qualifiers.take("tf32") {
        let (true, Type::F32, [to, from]) = (qualifiers.take("rna"), qualifiers.ty()?, operands) else {
            return Err(qualifiers.unsupported());
        };
        let (to, from) = (builder.result(to, Type::B32)?, builder.value(from, Type::F32)?);
        builder.emit_lane(Function::RoundToTf32, to, vec![from]);
        return Ok(());
    }
    let (from, to) = (qualifiers.ty()?, qualifiers.ty()?);
    let to_integer = qualifiers.one_of(&[
        ("rni", Rounding::NearestEven),
        ("rzi", Rounding::TowardsZero),
        ("rmi", Rounding::Down),
        ("rpi", Rounding::Up),
    ]);
    let to_float = qualifiers.rounding();
    let conversion = Conversion {
        to,
        from,
        rounding: to_integer.or(to_float).unwrap_or(Rounding::NearestEven),
        integral: to_integer.is_some(),
        flush: qualifiers.take("ftz"),
        saturate: qualifiers.take("sat"),
        relu: qualifiers.take("relu"),
    };
    let pair = matches!(to, Type::F16x2 | Type::Bf16x2);
    let plain = |ty: Type| is_float(ty) || ty.is_integer();
    let wrong = !plain(from)
        || !plain(to)
        || matches!(from, Type::F16x2 | Type::Bf16x2)
        || (pair && from != Type::F32)
        || (to_float.is_some() && to_integer.is_some())
        // A conversion from float to integer requires a rounding mode.
        || (is_float(from) && !is_float(to) && to_integer.is_none())
        || (!is_float(from) && is_float(to) && to_float.is_none())
        || (!is_float(from) && !is_float(to) && (to_float.is_some() || to_integer.is_some()));
    if wrong {
        return Err(qualifiers.unsupported());
    }
    let [result, sources @ ..] = operands else { return Err(qualifiers.wrong_operands()) };
    if sources.len() != 1 + usize::from(pair) {
        return Err(qualifiers.wrong_operands());
    }
    let result = builder.result_of_any_size(result)?;
    if result.bits < to.bits() || result.file == File::Flag || (is_float(to) && result.bits != to.bits()) {
        return Err(qualifiers.wrong_operands());
    }
    let slots = sources.iter().map(|o| builder.wider_value(o, from)).collect::<Result<Vec<_>, _>>()?;
    match fast(&conversion, result, &slots) {
        Some(op) => builder.emit(op),
        None => builder.emit_lane(Function::Convert(conversion), result, slots),
    }
    Ok(())
}

fn fast(conversion: &Conversion, to: Slot, from: &[Slot]) -> Option<Op> {
    let [from] = from else { return None };
    if conversion.saturate {
        return None;
    }
    let widens =
        to.bits == 64 && conversion.to.bits() == 64 && from.bits == 32 && conversion.from.bits() == 32;
    match (conversion.from, conversion.to) {
        (Type::U32, Type::U64 | Type::S64) if widens => {
            Some(Op::Widen { signed: false, to: to.row, from: from.row })
        }
        (Type::S32, Type::U64 | Type::S64) if widens => {
            Some(Op::Widen { signed: true, to: to.row, from: from.row })
        }
        (Type::U64 | Type::S64, Type::U32 | Type::S32) if to.bits == 32 => {
            Some(Op::Truncate { to: to.row, from: from.row })
        }
        _ => None,
    }
}

fn window(space: Space) -> Option<u64> {
    match space {
        Space::Shared => Some(SHARED_WINDOW),
        Space::Local => Some(LOCAL_WINDOW),
        Space::Param => Some(PARAM_WINDOW),
        Space::Global | Space::Const => Some(0),
        Space::Generic => None,
    }
}

const SPACES: [(&str, Space); 8] = [
    ("global", Space::Global),
    ("const", Space::Const),
    ("shared", Space::Shared),
    ("shared::cta", Space::Shared),
    ("local", Space::Local),
    ("param", Space::Param),
    ("param::entry", Space::Param),
    ("generic", Space::Generic),
];

fn address<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let ty = qualifiers.ty()?;
    let to_space = qualifiers.take("to");
    let space = qualifiers.one_of(&SPACES).ok_or_else(|| qualifiers.unsupported())?;
    let ([to, from], 64) = (operands, ty.bits()) else { return Err(qualifiers.wrong_operands()) };
    let to = builder.result(to, Type::B64)?;
    // A parameter of an inlined function is a local variable.
    let named = match from {
        Operand::Name(name) | Operand::Sum(name, _) => builder.find(name),
        _ => None,
    };
    let space = match named {
        Some(Name::Variable { space: Space::Local, .. }) => Space::Local,
        _ => space,
    };
    let base = window(space).ok_or_else(|| qualifiers.unsupported())?;
    let from = builder.value(from, Type::B64)?;
    let base = builder.wide_constant(base);
    let op = if to_space { Wide2::Sub } else { Wide2::Add };
    if matches!(space, Space::Global | Space::Const) {
        builder.emit_move(to, from);
    } else {
        builder.emit(Op::Wide2(op, to.row, from.row, base));
    }
    Ok(())
}

fn space_test<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let space = qualifiers.one_of(&SPACES).ok_or_else(|| qualifiers.unsupported())?;
    let [to, from] = operands else { return Err(qualifiers.wrong_operands()) };
    let to = builder.result(to, Type::Pred)?.row;
    let from = builder.value(from, Type::B64)?.row;
    match space {
        Space::Shared | Space::Local | Space::Param => {
            let base = window(space).unwrap_or_default();
            let (base, size) = (builder.wide_constant(base), builder.wide_constant(WINDOW_BYTES));
            let distance = builder.new_row(class_of(64)).row;
            builder.emit(Op::Wide2(Wide2::Sub, distance, from, base));
            builder.emit(Op::Compare(Compare::Lt, Comparable::Unsigned64, to, distance, size));
        }
        Space::Global => {
            let end = builder.wide_constant(PARAM_WINDOW + WINDOW_BYTES);
            builder.emit(Op::Compare(Compare::Ge, Comparable::Unsigned64, to, from, end));
        }
        Space::Const | Space::Generic => return Err(qualifiers.unsupported()),
    }
    Ok(())
}

/// Allocates a row for a temporary value.
pub fn temporary(builder: &mut Builder<'_, '_>, bits: u32) -> Slot {
    builder.new_row(if bits == 64 { RegisterClass::Wide } else { RegisterClass::Narrow(bits) })
}
