//! Decodes operations on barriers in shared memory.

use super::builder::{Builder, index_of};
use super::memory::address;
use super::qualifiers::Qualifiers;
use crate::code::{Address, MbarrierOp, MbarrierPhase, MemorySpace, Op};
use crate::fault::LoadError;
use crate::lane::Type;
use crate::ptx::syntax::{Operand, Space};

pub fn decode<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let names = ["init", "inval", "arrive", "arrive_drop", "test_wait", "pending_count"];
    let name = names.into_iter().find(|name| qualifiers.take(name));
    // This is the memory order of an instruction that does not name one. The device's compute capability supports no
    // other.
    let order = match name {
        Some("arrive" | "arrive_drop") => Some("release"),
        Some("test_wait") => Some("acquire"),
        _ => None,
    };
    let fits = order.is_none_or(|order| !qualifiers.take(order) || qualifiers.take("cta"));
    let space = if name == Some("pending_count") { Space::Generic } else { space(qualifiers) };
    let is_object = qualifiers.take("b64");
    let (Some(name), true, true) = (name, fits, is_object) else { return Err(qualifiers.unsupported()) };
    let op = match (name, operands) {
        ("init", [at, count]) => {
            let (space, at) = place(builder, space, at, qualifiers)?;
            MbarrierOp::Init { space, at, count: builder.value(count, Type::U32)? }
        }
        ("inval", [at]) => {
            let (space, at) = place(builder, space, at, qualifiers)?;
            MbarrierOp::Invalidate { space, at }
        }
        ("arrive" | "arrive_drop", [state, at, count @ ..]) => {
            let completes = !qualifiers.take("noComplete");
            let count = match count {
                [] if completes => None,
                // This form is refused, because it requires a newer GPU, on which such an arrival may complete the
                // phase.
                [_] if completes => return Err(qualifiers.unsupported()),
                [one] => Some(builder.value(one, Type::U32)?),
                _ => return Err(qualifiers.wrong_operands()),
            };
            let (space, at) = place(builder, space, at, qualifiers)?;
            let state = builder.result(state, Type::B64)?;
            MbarrierOp::Arrive { space, at, count, state, drops: name == "arrive_drop", completes }
        }
        ("test_wait", [to, at, phase]) => {
            let phase = if qualifiers.take("parity") {
                MbarrierPhase::Parity(builder.value(phase, Type::U32)?)
            } else {
                MbarrierPhase::Of(builder.value(phase, Type::B64)?)
            };
            let (space, at) = place(builder, space, at, qualifiers)?;
            MbarrierOp::TestWait { space, at, phase, to: builder.result(to, Type::Pred)?.row }
        }
        ("pending_count", [to, state]) => MbarrierOp::PendingCount {
            state: builder.value(state, Type::B64)?,
            to: builder.result(to, Type::U32)?,
        },
        _ => return Err(qualifiers.wrong_operands()),
    };
    push(builder, op);
    Ok(())
}

/// Decodes `cp.async.mbarrier.arrive`, whose first two words the caller has already taken.
pub fn arrive_after_copies<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let is_expected = qualifiers.take("noinc");
    let space = space(qualifiers);
    let rest = ["arrive", "b64"].map(|name| qualifiers.take(name));
    let ([at], [true, true]) = (operands, rest) else { return Err(qualifiers.unsupported()) };
    let (space, at) = place(builder, space, at, qualifiers)?;
    push(builder, MbarrierOp::ArriveAfterCopies { space, at, is_expected });
    Ok(())
}

fn space(qualifiers: &mut Qualifiers<'_>) -> Space {
    let is_shared = qualifiers.take("shared") || qualifiers.take("shared::cta");
    if is_shared { Space::Shared } else { Space::Generic }
}

fn place<'a>(
    builder: &mut Builder<'_, 'a>,
    space: Space,
    operand: &Operand<'a>,
    qualifiers: &Qualifiers<'a>,
) -> Result<(MemorySpace, Address), LoadError> {
    let (space, base, offset) = address(builder, space, operand, qualifiers)?;
    if !matches!(space, MemorySpace::Shared | MemorySpace::Generic) {
        return Err(qualifiers.wrong_operands());
    }
    Ok((space, Address { base, offset }))
}

fn push(builder: &mut Builder<'_, '_>, op: MbarrierOp) {
    let index = index_of(builder.kernel.mbarrier_ops.len());
    builder.kernel.mbarrier_ops.push(op);
    builder.emit(Op::Mbarrier(index));
}
