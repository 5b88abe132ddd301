//! Decodes loads, stores, atomic operations, prefetches and cache policies.

use super::builder::{Builder, Name};
use super::qualifiers::Qualifiers;
use crate::code::{
    Address, AtomicKind, AtomicOp, File, MemoryAction, MemoryOp, MemoryOrder, MemorySpace, Op, Slot,
};
use crate::fault::LoadError;
use crate::lane::Type;
use crate::ptx::lexer::clipped;
use crate::ptx::syntax::{Number, Operand, Space};

/// Qualifiers that this device ignores: cache hints, and `weak`, which is the default memory order.
pub const IGNORED: [&str; 22] = [
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L2::evict_first",
    "L2::evict_last",
    "L2::evict_normal",
    "L1",
    "L2",
    "weak",
];

/// The kind of value from which a cache policy is created.
#[derive(Clone, Copy)]
enum PolicyKind {
    Fraction,
    Range,
    Conversion,
}

const PRIORITIES: [&str; 4] =
    ["L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"];
/// The value of every cache policy.
const POLICY: u64 = 0x1000_0000_0000_0000;
const SCOPES: [&str; 4] = ["cta", "cluster", "gpu", "sys"];
const ORDERS: [(&str, MemoryOrder); 5] = [
    ("volatile", MemoryOrder::Volatile),
    ("relaxed", MemoryOrder::Relaxed),
    ("acquire", MemoryOrder::Acquire),
    ("release", MemoryOrder::Release),
    ("acq_rel", MemoryOrder::AcquireRelease),
];

pub fn decode<'a>(
    builder: &mut Builder<'_, 'a>,
    opcode: &str,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let space = space(qualifiers);
    // The last operand may be a cache policy.
    let operands = match operands {
        [rest @ .., _] if qualifiers.take("L2::cache_hint") => rest,
        all => all,
    };
    match opcode {
        "ld" | "ldu" => load(builder, space, qualifiers, operands),
        "st" => store(builder, space, qualifiers, operands),
        "atom" | "red" => atomic(builder, opcode == "atom", space, qualifiers, operands),
        "prefetch" | "prefetchu" => {
            qualifiers.take_all(&IGNORED);
            builder.emit(Op::Nothing);
            Ok(())
        }
        "applypriority" => priority(builder, space, qualifiers, operands),
        "createpolicy" => policy(builder, space, qualifiers, operands),
        _ => Err(qualifiers.unsupported()),
    }
}

/// Decodes a change of a cache line's priority, which has no effect on this device.
fn priority<'a>(
    builder: &mut Builder<'_, 'a>,
    space: Space,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let [to, Operand::Number(Number::Integer(128))] = operands else {
        return Err(qualifiers.wrong_operands());
    };
    if !matches!(space, Space::Global | Space::Generic) || !qualifiers.take("L2::evict_normal") {
        return Err(qualifiers.unsupported());
    }
    address(builder, space, to, qualifiers)?;
    builder.emit(Op::Nothing);
    Ok(())
}

/// Creates a cache policy. All policies have the same value, because it is opaque and this device ignores policies.
fn policy<'a>(
    builder: &mut Builder<'_, 'a>,
    space: Space,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let kind = qualifiers.one_of(&[
        ("fractional", PolicyKind::Fraction),
        ("range", PolicyKind::Range),
        ("cvt", PolicyKind::Conversion),
    ]);
    let kind = kind.ok_or_else(|| qualifiers.unsupported())?;
    let has_priority = match kind {
        PolicyKind::Conversion => qualifiers.take("L2"),
        PolicyKind::Fraction | PolicyKind::Range => qualifiers.take_all(&PRIORITIES),
    };
    let in_space = match kind {
        PolicyKind::Range => matches!(space, Space::Global | Space::Generic),
        PolicyKind::Fraction | PolicyKind::Conversion => space == Space::Generic,
    };
    if !has_priority || !in_space || qualifiers.ty()? != Type::B64 {
        return Err(qualifiers.unsupported());
    }
    let [to, rest @ ..] = operands else { return Err(qualifiers.wrong_operands()) };
    match (kind, rest) {
        (PolicyKind::Fraction, []) => {}
        (PolicyKind::Fraction, [fraction]) => {
            builder.value(fraction, Type::F32)?;
        }
        (PolicyKind::Range, [from, primary, total]) => {
            address(builder, space, from, qualifiers)?;
            builder.value(primary, Type::U32)?;
            builder.value(total, Type::U32)?;
        }
        (PolicyKind::Conversion, [property]) => {
            builder.value(property, Type::B64)?;
        }
        _ => return Err(qualifiers.wrong_operands()),
    }
    let to = builder.result(to, Type::B64)?;
    let from = builder.constant(POLICY, Type::B64);
    builder.emit_move(to, from);
    Ok(())
}

fn space(qualifiers: &mut Qualifiers<'_>) -> Space {
    let found = qualifiers.one_of(&[
        ("global", Space::Global),
        ("const", Space::Const),
        ("shared", Space::Shared),
        ("shared::cta", Space::Shared),
        ("local", Space::Local),
        ("param", Space::Param),
        ("param::entry", Space::Param),
        ("param::func", Space::Param),
    ]);
    found.unwrap_or(Space::Generic)
}

/// Returns the address of an access: its state space, a base and an offset.
pub fn address<'a>(
    builder: &mut Builder<'_, 'a>,
    space: Space,
    operand: &Operand<'a>,
    qualifiers: &Qualifiers<'a>,
) -> Result<(MemorySpace, Slot, i64), LoadError> {
    let Operand::Address(base, offset) = operand else { return Err(qualifiers.wrong_operands()) };
    let of = |space| match space {
        Space::Global | Space::Const => MemorySpace::Global,
        Space::Shared => MemorySpace::Shared,
        Space::Local => MemorySpace::Local,
        Space::Param => MemorySpace::Param,
        Space::Generic => MemorySpace::Generic,
    };
    let is_inside_call = 1 < builder.frames.len();
    let Some(name) = base else {
        let row = builder.wide_constant(0);
        return Ok((of(space), Slot { file: File::Wide, row, bits: 64 }, *offset));
    };
    match builder.find(name) {
        Some(Name::Register(slot)) if slot.file != File::Flag && 32 <= slot.bits => {
            // Parameters of an inlined function are local variables.
            let space = if space == Space::Param && is_inside_call { Space::Local } else { space };
            Ok((of(space), slot, *offset))
        }
        Some(Name::Variable { space: found, address, dynamic }) => {
            // The access is to the variable's state space, even if the instruction names another one. For example, a
            // call's parameters are in local memory.
            let row = if dynamic {
                builder.dynamic_constant(address, true)
            } else {
                builder.wide_constant(address)
            };
            Ok((of(found), Slot { file: File::Wide, row, bits: 64 }, *offset))
        }
        _ => Err(builder.syntax(format!(
            "`{}` is not an address: it is neither a variable nor a register of 32 or 64 bits",
            clipped(name)
        ))),
    }
}

fn push(builder: &mut Builder<'_, '_>, op: MemoryOp) {
    let index = super::builder::index_of(builder.kernel.memory_ops.len());
    builder.kernel.memory_ops.push(op);
    builder.emit(Op::Memory(index));
}

/// Returns the element's type, the number of elements, and the memory order.
fn shape(qualifiers: &mut Qualifiers<'_>) -> Result<(Type, usize, MemoryOrder), LoadError> {
    let ty = qualifiers.ty()?;
    let count = qualifiers.one_of(&[("v2", 2), ("v4", 4)]).unwrap_or(1);
    qualifiers.take_all(&IGNORED);
    let order = qualifiers.one_of(&ORDERS).unwrap_or(MemoryOrder::Weak);
    qualifiers.take_all(&SCOPES);
    let too_wide = 16 < ty.bits() as usize / 8 * count;
    if ty == Type::Pred || too_wide {
        return Err(qualifiers.unsupported());
    }
    Ok((ty, count, order))
}

fn elements<'o, 'a>(operand: &'o Operand<'a>, count: usize) -> Option<Vec<&'o Operand<'a>>> {
    match operand {
        Operand::Vector(parts) if parts.len() == count => Some(parts.iter().collect()),
        Operand::Vector(_) => None,
        one => (count == 1).then(|| vec![one]),
    }
}

fn load<'a>(
    builder: &mut Builder<'_, 'a>,
    space: Space,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let (ty, count, order) = shape(qualifiers)?;
    let [to, from] = operands else { return Err(qualifiers.wrong_operands()) };
    let parts = elements(to, count).ok_or_else(|| qualifiers.wrong_operands())?;
    let mut slots = Vec::new();
    for part in parts {
        if *part == Operand::Sink {
            slots.push(None);
            continue;
        }
        let slot = builder.result_of_any_size(part)?;
        if slot.file == File::Flag || slot.bits < ty.bits() {
            return Err(qualifiers.wrong_operands());
        }
        slots.push(Some(slot));
    }
    let (space, base, offset) = address(builder, space, from, qualifiers)?;
    let element = ty.bits() / 8;
    let bytes = element * super::builder::index_of(count);
    let action = MemoryAction::Load { signed: ty.is_signed(), to: slots };
    push(builder, MemoryOp { space, at: Address { base, offset }, element, bytes, order, action });
    Ok(())
}

fn store<'a>(
    builder: &mut Builder<'_, 'a>,
    space: Space,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let (ty, count, order) = shape(qualifiers)?;
    let [to, from] = operands else { return Err(qualifiers.wrong_operands()) };
    let parts = elements(from, count).ok_or_else(|| qualifiers.wrong_operands())?;
    let slots = parts.iter().map(|part| builder.wider_value(part, ty)).collect::<Result<Vec<_>, _>>()?;
    if slots.iter().any(|slot| slot.file == File::Flag) {
        return Err(qualifiers.wrong_operands());
    }
    let (space, base, offset) = address(builder, space, to, qualifiers)?;
    let element = ty.bits() / 8;
    let bytes = element * super::builder::index_of(count);
    let action = MemoryAction::Store { from: slots };
    push(builder, MemoryOp { space, at: Address { base, offset }, element, bytes, order, action });
    Ok(())
}

fn atomic<'a>(
    builder: &mut Builder<'_, 'a>,
    gives_result: bool,
    space: Space,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let ty = qualifiers.ty()?;
    let op = qualifiers.one_of(&[
        ("and", AtomicOp::And),
        ("or", AtomicOp::Or),
        ("xor", AtomicOp::Xor),
        ("exch", AtomicOp::Exchange),
        ("cas", AtomicOp::CompareExchange),
        ("add", AtomicOp::Add),
        ("inc", AtomicOp::Increment),
        ("dec", AtomicOp::Decrement),
        ("min", AtomicOp::Min),
        ("max", AtomicOp::Max),
    ]);
    let op = op.ok_or_else(|| qualifiers.unsupported())?;
    let order = qualifiers.one_of(&ORDERS).unwrap_or(MemoryOrder::Relaxed);
    qualifiers.take_all(&SCOPES);
    qualifiers.take_all(&IGNORED);
    qualifiers.take("noftz");
    let kind = atomic_kind(op, ty).ok_or_else(|| qualifiers.unsupported())?;
    let (to, rest) = match operands {
        [to, rest @ ..] if gives_result => (Some(to), rest),
        rest => (None, rest),
    };
    let wants = if op == AtomicOp::CompareExchange { 3 } else { 2 };
    if rest.len() != wants {
        return Err(qualifiers.wrong_operands());
    }
    let to = match to {
        None | Some(Operand::Sink) => None,
        Some(to) => Some(builder.result(to, ty)?),
    };
    let first = builder.value(&rest[1], ty)?;
    let second = rest.get(2).map(|operand| builder.value(operand, ty)).transpose()?;
    let (space, base, offset) = address(builder, space, &rest[0], qualifiers)?;
    let bytes = ty.bits() / 8;
    let action = MemoryAction::Atomic { op, kind, to, first, second };
    push(builder, MemoryOp { space, at: Address { base, offset }, element: bytes, bytes, order, action });
    Ok(())
}

fn atomic_kind(op: AtomicOp, ty: Type) -> Option<AtomicKind> {
    use AtomicOp as A;
    Some(match (op, ty) {
        (A::And | A::Or | A::Xor | A::Exchange | A::CompareExchange, Type::B32) => AtomicKind::Bits32,
        (A::And | A::Or | A::Xor | A::Exchange | A::CompareExchange, Type::B64) => AtomicKind::Bits64,
        // Older compilers write a type, such as `u32`, although the size alone would suffice.
        (A::Exchange | A::CompareExchange, Type::U32 | Type::S32 | Type::F32) => AtomicKind::Bits32,
        (A::Exchange | A::CompareExchange, Type::U64 | Type::S64 | Type::F64) => AtomicKind::Bits64,
        (A::CompareExchange, Type::B16) => AtomicKind::Bits16,
        (A::Increment | A::Decrement | A::Add | A::Min | A::Max, Type::U32) => AtomicKind::Unsigned32,
        (A::Add | A::Min | A::Max, Type::U64) => AtomicKind::Unsigned64,
        (A::Add | A::Min | A::Max, Type::S32) => AtomicKind::Signed32,
        (A::Add | A::Min | A::Max, Type::S64) => AtomicKind::Signed64,
        (A::Add, Type::F32) => AtomicKind::F32,
        (A::Add, Type::F64) => AtomicKind::F64,
        (A::Add, Type::F16) => AtomicKind::F16,
        (A::Add, Type::Bf16) => AtomicKind::Bf16,
        (A::Add, Type::F16x2) => AtomicKind::F16x2,
        (A::Add, Type::Bf16x2) => AtomicKind::Bf16x2,
        _ => return None,
    })
}
