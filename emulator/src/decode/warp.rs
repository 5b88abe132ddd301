//! Decodes collective operations of a warp, such as shuffles, votes and reductions.

use super::builder::{Builder, index_of};
use super::qualifiers::Qualifiers;
use crate::code::{File, Op, ReduceOp, ShuffleMode, VoteMode, WarpOp};
use crate::fault::LoadError;
use crate::lane::Type;
use crate::ptx::syntax::Operand;

pub fn decode<'a>(
    builder: &mut Builder<'_, 'a>,
    opcode: &str,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    match opcode {
        "shfl" => shuffle(builder, qualifiers, operands),
        "vote" => vote(builder, qualifiers, operands),
        "match" => match_values(builder, qualifiers, operands),
        "redux" => reduce(builder, qualifiers, operands),
        "elect" => elect(builder, qualifiers, operands),
        _ => {
            let ([to], Type::B32) = (operands, qualifiers.ty()?) else {
                return Err(qualifiers.wrong_operands());
            };
            let to = builder.result(to, Type::B32)?.row;
            builder.emit(Op::ActiveMask { to });
            Ok(())
        }
    }
}

fn push(builder: &mut Builder<'_, '_>, op: WarpOp) {
    let index = index_of(builder.kernel.warp_ops.len());
    builder.kernel.warp_ops.push(op);
    builder.emit(Op::Warp(index));
}

pub fn sync<'a>(builder: &mut Builder<'_, 'a>, members: &Operand<'a>) -> Result<(), LoadError> {
    let members = builder.value(members, Type::B32)?.row;
    push(builder, WarpOp::Sync { members });
    Ok(())
}

/// Returns the register and the predicate for the results, where `None` stands for one that is missing or `_`.
fn result_and_flag<'a>(
    builder: &mut Builder<'_, 'a>,
    operand: &Operand<'a>,
) -> Result<(Option<u32>, Option<u32>), LoadError> {
    let one = |builder: &mut Builder<'_, 'a>, name: &'a str, ty| match name {
        "_" => Ok(None),
        name => builder.result(&Operand::Name(name), ty).map(|slot| Some(slot.row)),
    };
    match operand {
        Operand::Pair(first, second) => {
            Ok((one(builder, first, Type::B32)?, one(builder, second, Type::Pred)?))
        }
        Operand::Sink => Ok((None, None)),
        other => Ok((Some(builder.result(other, Type::B32)?.row), None)),
    }
}

fn shuffle<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let ty = qualifiers.ty()?;
    let synchronous = qualifiers.take("sync");
    let mode = qualifiers.one_of(&[
        ("up", ShuffleMode::Up),
        ("down", ShuffleMode::Down),
        ("bfly", ShuffleMode::Butterfly),
        ("idx", ShuffleMode::Index),
    ]);
    let mode = mode.ok_or_else(|| qualifiers.unsupported())?;
    let [to, value, lane, clamp, members @ ..] = operands else { return Err(qualifiers.wrong_operands()) };
    if members.len() != usize::from(synchronous) || ty.bits() != 32 {
        return Err(qualifiers.wrong_operands());
    }
    let (to, in_range) = result_and_flag(builder, to)?;
    let to = match to {
        Some(row) => row,
        None => builder.new_row(super::operands::class_of(32)).row,
    };
    let value = builder.value(value, Type::B32)?.row;
    let lane = builder.value(lane, Type::B32)?.row;
    let clamp = builder.value(clamp, Type::B32)?.row;
    let members = members.first().map(|m| builder.value(m, Type::B32)).transpose()?.map(|slot| slot.row);
    push(builder, WarpOp::Shuffle { mode, to, in_range, value, lane, clamp, members });
    Ok(())
}

fn vote<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let ty = qualifiers.ty()?;
    let synchronous = qualifiers.take("sync");
    let mode = qualifiers.one_of(&[
        ("all", VoteMode::All),
        ("any", VoteMode::Any),
        ("uni", VoteMode::Uniform),
        ("ballot", VoteMode::Ballot),
    ]);
    let mode = mode.ok_or_else(|| qualifiers.unsupported())?;
    let [to, flag, members @ ..] = operands else { return Err(qualifiers.wrong_operands()) };
    let wanted = if mode == VoteMode::Ballot { Type::B32 } else { Type::Pred };
    if members.len() != usize::from(synchronous) || ty != wanted {
        return Err(qualifiers.wrong_operands());
    }
    let to = builder.result(to, wanted)?;
    let flag = builder.flag_operand(flag)?;
    let members = members.first().map(|m| builder.value(m, Type::B32)).transpose()?.map(|slot| slot.row);
    push(builder, WarpOp::Vote { mode, to, flag, members });
    Ok(())
}

fn match_values<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let ty = qualifiers.ty()?;
    let all = qualifiers.one_of(&[("any", false), ("all", true)]);
    let ([to, value, members], Some(all), true) = (operands, all, qualifiers.take("sync")) else {
        return Err(qualifiers.wrong_operands());
    };
    if !matches!(ty, Type::B32 | Type::B64) {
        return Err(qualifiers.unsupported());
    }
    let (to, agree) = result_and_flag(builder, to)?;
    let to = match to {
        Some(row) => row,
        None => builder.new_row(super::operands::class_of(32)).row,
    };
    let value = builder.value(value, ty)?;
    let members = builder.value(members, Type::B32)?.row;
    push(builder, WarpOp::Match { all, to, agree, value, members });
    Ok(())
}

fn reduce<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let ty = qualifiers.ty()?;
    let name = qualifiers.one_of(&["add", "min", "max", "and", "or", "xor"].map(|name| (name, name)));
    let op = match (name, ty) {
        (Some("add"), Type::U32 | Type::S32) => ReduceOp::Add,
        (Some("min"), Type::S32) => ReduceOp::MinSigned,
        (Some("max"), Type::S32) => ReduceOp::MaxSigned,
        (Some("min"), Type::U32) => ReduceOp::MinUnsigned,
        (Some("max"), Type::U32) => ReduceOp::MaxUnsigned,
        (Some("and"), Type::B32) => ReduceOp::And,
        (Some("or"), Type::B32) => ReduceOp::Or,
        (Some("xor"), Type::B32) => ReduceOp::Xor,
        _ => return Err(qualifiers.unsupported()),
    };
    let ([to, value, members], true) = (operands, qualifiers.take("sync")) else {
        return Err(qualifiers.wrong_operands());
    };
    let to = builder.result(to, ty)?.row;
    let value = builder.value(value, ty)?.row;
    let members = builder.value(members, Type::B32)?.row;
    push(builder, WarpOp::Reduce { op, to, value, members });
    Ok(())
}

fn elect<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    let ([to, members], true) = (operands, qualifiers.take("sync")) else {
        return Err(qualifiers.wrong_operands());
    };
    let (to, flag) = result_and_flag(builder, to)?;
    let flag = match flag {
        Some(row) => row,
        None => builder.new_row(super::operands::class_of(1)).row,
    };
    let members = builder.value(members, Type::B32)?;
    debug_assert_eq!(members.file, File::Narrow);
    push(builder, WarpOp::Elect { to, flag, members: members.row });
    Ok(())
}
