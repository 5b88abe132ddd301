//! Decodes asynchronous copies to shared memory, and operations on matrices.

use super::builder::{Builder, index_of};
use super::memory::{IGNORED, address};
use super::qualifiers::Qualifiers;
use crate::code::{Accumulator, Address, CopyOp, Factor, MatrixOp, MemorySpace, Op, Product, SourceBytes};
use crate::fault::LoadError;
use crate::lane::Type;
use crate::ptx::syntax::{Number, Operand, Space};

/// The family of a refused instruction, if the instruction's name alone does not explain it.
pub fn family(opcode: &[&str]) -> Option<&'static str> {
    Some(match opcode {
        ["cp", "async", "bulk", "tensor" | "prefetch", ..]
        | ["cp", "reduce", "async", "bulk", "tensor", ..]
        | ["tensormap", ..] => "the tensor memory accelerator, TMA",
        ["cp", "async", "bulk", ..] | ["cp", "reduce", "async", "bulk", ..] | ["st", "bulk", ..] => {
            "bulk copies"
        }
        ["mbarrier", ..] | ["cp", "async", "mbarrier", ..] => "barriers in memory",
        ["wgmma", ..] => "matrix products of a warp group",
        ["tcgen05", ..] => "tensor cores of the fifth generation",
        ["wmma", ..] => "matrix products whose layout in registers is not documented",
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
        _ => product(builder, qualifiers, operands),
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

fn push(builder: &mut Builder<'_, '_>, op: MatrixOp) {
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

/// The rows of exactly `count` registers of 32 bits. `row` finds the register of an operand.
fn rows<'a, const N: usize>(
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

fn product<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let depth = qualifiers.one_of(&[("m16n8k4", 4_u32), ("m16n8k8", 8), ("m16n8k16", 16), ("m16n8k32", 32)]);
    let rest = ["sync", "aligned", "row", "col"].map(|name| qualifiers.take(name));
    let (Some(depth), [true, true, true, true]) = (depth, rest) else { return Err(qualifiers.unsupported()) };
    // The types of the result, of the two factors and of the matrix that is added.
    let types = [
        ("f16", "f16"),
        ("bf16", "bf16"),
        ("tf32", "tf32"),
        ("f32", "f32"),
        ("s8", "s8"),
        ("u8", "u8"),
        ("s32", "s32"),
    ];
    let [to_type, a_type, b_type, c_type] = std::array::from_fn(|_| qualifiers.one_of(&types).unwrap_or(""));
    let factor = match (a_type, b_type, depth) {
        ("f16", "f16", 8 | 16) => Factor::F16,
        ("bf16", "bf16", 8 | 16) => Factor::Bf16,
        ("tf32", "tf32", 4 | 8) => Factor::Tf32,
        ("s8" | "u8", "s8" | "u8", 16 | 32) => Factor::Bytes { signed: [a_type == "s8", b_type == "s8"] },
        _ => return Err(qualifiers.unsupported()),
    };
    let accumulator = match (to_type, c_type, factor) {
        ("f32", "f32", Factor::F16 | Factor::Bf16 | Factor::Tf32) => Accumulator::F32,
        ("f16", "f16", Factor::F16) => Accumulator::F16,
        ("s32", "s32", Factor::Bytes { .. }) => Accumulator::S32 { saturate: qualifiers.take("satfinite") },
        _ => return Err(qualifiers.unsupported()),
    };
    let [to, a, b, c] = operands else { return Err(qualifiers.wrong_operands()) };
    let columns_of_a_register = factor.elements() * 4;
    let factors = (depth / columns_of_a_register) as usize;
    let (sums, ty) = match accumulator {
        Accumulator::F16 => (2, Type::B32),
        Accumulator::F32 => (4, Type::F32),
        Accumulator::S32 { .. } => (4, Type::S32),
    };
    let to = rows(to, sums, qualifiers, |part| builder.result(part, ty).map(|slot| slot.row))?;
    let a = rows(a, 2 * factors, qualifiers, |part| builder.value(part, Type::B32).map(|slot| slot.row))?;
    let b = rows(b, factors, qualifiers, |part| builder.value(part, Type::B32).map(|slot| slot.row))?;
    let c = rows(c, sums, qualifiers, |part| builder.value(part, ty).map(|slot| slot.row))?;
    push(builder, MatrixOp::Product(Product { factor, accumulator, depth, to, a, b, c }));
    Ok(())
}

impl Factor {
    /// The number of elements in a register.
    pub fn elements(self) -> u32 {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::Tf32 => 1,
            Self::Bytes { .. } => 4,
        }
    }
}
