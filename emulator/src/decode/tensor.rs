//! Decodes asynchronous copies to shared memory, and loads of matrices by `ldmatrix`.

use super::builder::{Builder, index_of};
use super::fragments;
use super::mbarrier;
use super::memory::{IGNORED, address};
use super::qualifiers::Qualifiers;
use crate::code::{Address, CopyOp, MatrixOp, MemorySpace, Op, SourceBytes};
use crate::fault::LoadError;
use crate::lane::Type;
use crate::ptx::syntax::{Number, Operand, Space};

/// Returns the family of instructions to which a refused one belongs, if the instruction's name alone would not explain
/// why it is refused.
pub fn family(opcode: &[&str]) -> Option<&'static str> {
    Some(match opcode {
        ["cp", "async", "bulk", "tensor" | "prefetch", ..]
        | ["cp", "reduce", "async", "bulk", "tensor", ..]
        | ["tensormap", ..] => "the tensor memory accelerator, TMA",
        ["cp", "async", "bulk", ..] | ["cp", "reduce", "async", "bulk", ..] | ["st", "bulk", ..] => {
            "bulk copies"
        }
        ["mbarrier", ..] | ["cp", "async", "mbarrier", ..] => "`mbarrier` forms of newer GPUs",
        ["wgmma", ..] => "matrix products of a warp group",
        ["tcgen05", ..] => "tensor cores of the fifth generation",
        ["wmma", ..] => "other forms of `wmma`",
        ["mapa" | "getctarank" | "clusterlaunchcontrol", ..] | ["barrier", "cluster", ..] => "clusters",
        _ => return None,
    })
}

pub fn decode<'a>(
    builder: &mut Builder<'_, 'a>,
    opcode: &str,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    match opcode {
        "cp" => copy(builder, qualifiers, operands),
        "ldmatrix" => load(builder, qualifiers, operands),
        "mma" => fragments::mma(builder, qualifiers, operands),
        _ => fragments::wmma(builder, qualifiers, operands),
    }
}

fn copy<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    if !qualifiers.take("async") {
        return Err(qualifiers.unsupported());
    }
    if qualifiers.take("mbarrier") {
        return mbarrier::arrive_after_copies(builder, qualifiers, operands);
    }
    let op = if qualifiers.take("commit_group") {
        let [] = operands else { return Err(qualifiers.wrong_operands()) };
        CopyOp::Commit
    } else if qualifiers.take("wait_all") {
        let [] = operands else { return Err(qualifiers.wrong_operands()) };
        CopyOp::WaitForAll
    } else if qualifiers.take("wait_group") {
        let [Operand::Number(Number::Integer(groups))] = operands else {
            return Err(qualifiers.wrong_operands());
        };
        CopyOp::WaitForGroups(u32::try_from(*groups).map_err(|_| qualifiers.wrong_operands())?)
    } else {
        start(builder, qualifiers, operands)?
    };
    let index = index_of(builder.kernel.copy_ops.len());
    builder.kernel.copy_ops.push(op);
    builder.emit(Op::Copy(index));
    Ok(())
}

fn start<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<CopyOp, LoadError> {
    let through_l1 = qualifiers.one_of(&[("ca", true), ("cg", false)]);
    let to_shared = qualifiers.take("shared") || qualifiers.take("shared::cta");
    let (Some(through_l1), true, true) = (through_l1, to_shared, qualifiers.take("global")) else {
        return Err(qualifiers.unsupported());
    };
    let operands = match operands {
        [rest @ .., _] if qualifiers.take("L2::cache_hint") => rest,
        all => all,
    };
    qualifiers.take_all(&IGNORED);
    let [to, from, Operand::Number(Number::Integer(bytes)), source @ ..] = operands else {
        return Err(qualifiers.wrong_operands());
    };
    let bytes = match (bytes, through_l1) {
        (4, true) => 4,
        (8, true) => 8,
        (16, _) => 16,
        _ => return Err(qualifiers.wrong_operands()),
    };
    let source = match source {
        [] => SourceBytes::All,
        [one] => source_bytes(builder, one)?,
        _ => return Err(qualifiers.wrong_operands()),
    };
    let (to_space, base, offset) = address(builder, Space::Shared, to, qualifiers)?;
    let to = Address { base, offset };
    let (from_space, base, offset) = address(builder, Space::Global, from, qualifiers)?;
    let from = Address { base, offset };
    if (to_space, from_space) != (MemorySpace::Shared, MemorySpace::Global) {
        return Err(qualifiers.wrong_operands());
    }
    Ok(CopyOp::Start { to, from, bytes, source })
}

/// Decodes the last operand of a copy, which is a number of bytes or a predicate.
fn source_bytes<'a>(builder: &mut Builder<'_, 'a>, operand: &Operand<'a>) -> Result<SourceBytes, LoadError> {
    let is_flag = match operand {
        Operand::Not(_) => true,
        Operand::Name(name) => builder.register(name)?.file == crate::code::File::Flag,
        _ => false,
    };
    if is_flag {
        return builder.flag_operand(operand).map(SourceBytes::Unless);
    }
    builder.value(operand, Type::U32).map(SourceBytes::Some)
}

pub fn push(builder: &mut Builder<'_, '_>, op: MatrixOp) {
    let index = index_of(builder.kernel.matrix_ops.len());
    builder.kernel.matrix_ops.push(op);
    builder.emit(Op::Matrix(index));
}

fn parts<'o, 'a>(operand: &'o Operand<'a>) -> &'o [Operand<'a>] {
    match operand {
        Operand::Vector(parts) => parts,
        one => std::slice::from_ref(one),
    }
}

/// Returns the rows of exactly `count` registers of 32 bits. `row` finds the register of an operand.
pub fn rows<'a, const N: usize>(
    operand: &Operand<'a>,
    count: usize,
    qualifiers: &Qualifiers<'a>,
    mut row: impl FnMut(&Operand<'a>) -> Result<u32, LoadError>,
) -> Result<[u32; N], LoadError> {
    let parts = parts(operand);
    if parts.len() != count {
        return Err(qualifiers.wrong_operands());
    }
    let mut rows = [0; N];
    for (to, part) in rows.iter_mut().zip(parts) {
        *to = row(part)?;
    }
    Ok(rows)
}

fn load<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let count = qualifiers.one_of(&[("x1", 1_u32), ("x2", 2), ("x4", 4)]);
    let transposed = qualifiers.take("trans");
    let is_shared = qualifiers.take("shared") || qualifiers.take("shared::cta");
    let rest = ["sync", "aligned", "m8n8", "b16"].map(|name| qualifiers.take(name));
    let (Some(count), [true, true, true, true]) = (count, rest) else { return Err(qualifiers.unsupported()) };
    let [to, from] = operands else { return Err(qualifiers.wrong_operands()) };
    let to =
        rows(to, count as usize, qualifiers, |part| builder.result(part, Type::B32).map(|slot| slot.row))?;
    let space = if is_shared { Space::Shared } else { Space::Generic };
    let (space, base, offset) = address(builder, space, from, qualifiers)?;
    if !matches!(space, MemorySpace::Shared | MemorySpace::Generic) {
        return Err(qualifiers.wrong_operands());
    }
    push(builder, MatrixOp::Load { space, from: Address { base, offset }, count, to, transposed });
    Ok(())
}
