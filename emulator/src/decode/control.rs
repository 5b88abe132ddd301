//! Decodes branches, exits, traps, barriers and fences, and instructions without effect, such as `nanosleep`.

use super::builder::{Builder, Patch};
use super::qualifiers::Qualifiers;
use crate::code::{BarrierMode, BarrierOp, Op};
use crate::fault::LoadError;
use crate::lane::Type;
use crate::ptx::lexer::clipped;
use crate::ptx::syntax::Operand;

/// The label to which `ret` branches in an inlined function.
pub const END_OF_BODY: &str = "end of the body";

pub fn decode<'a>(
    builder: &mut Builder<'_, 'a>,
    opcode: &str,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    match (opcode, operands) {
        ("bra", [Operand::Name(label)]) => {
            qualifiers.take("uni");
            branch(builder, label);
        }
        ("brx", _) => branch_table(builder, qualifiers, operands)?,
        ("ret", []) => {
            qualifiers.take("uni");
            if builder.frames.len() == 1 {
                builder.emit(Op::Exit);
            } else {
                branch(builder, END_OF_BODY);
            }
        }
        ("exit", []) => builder.emit(Op::Exit),
        ("trap" | "brkpt", []) => builder.emit(Op::Trap),
        ("nop", []) => builder.emit(Op::Nothing),
        ("nanosleep", [_]) => {
            qualifiers.ty()?;
            builder.emit(Op::Nothing);
        }
        ("pmevent", [_]) => {
            qualifiers.take("mask");
            builder.emit(Op::Nothing);
        }
        ("griddepcontrol", []) => {
            qualifiers.take_all(&["wait", "launch_dependents"]);
            builder.emit(Op::Nothing);
        }
        ("membar", []) => {
            qualifiers.take_all(&["cta", "gl", "sys"]);
            builder.emit(Op::Fence);
        }
        ("fence", []) => {
            qualifiers.take_all(&["sc", "acq_rel", "acquire", "release", "cta", "gpu", "sys"]);
            builder.emit(Op::Fence);
        }
        ("bar" | "barrier", _) => barrier(builder, opcode == "bar", qualifiers, operands)?,
        _ => return Err(qualifiers.wrong_operands()),
    }
    Ok(())
}

fn branch<'a>(builder: &mut Builder<'_, 'a>, label: &'a str) {
    let at = builder.kernel.code.len();
    let line = builder.line();
    builder.frame().branches.push((Patch::Branch(at), label, line));
    builder.emit(Op::Branch { target: 0 });
}

fn branch_table<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    qualifiers.take("uni");
    let ([index, Operand::Name(list)], true) = (operands, qualifiers.take("idx")) else {
        return Err(qualifiers.unsupported());
    };
    let index = builder.value(index, Type::U32)?.row;
    let Some(targets) = builder.frame().targets.get(list).cloned() else {
        let what = format!("no `.branchtargets` list `{}` precedes the branch", clipped(list));
        return Err(builder.syntax(what));
    };
    builder.spend(targets.len())?;
    let line = builder.line();
    let table = builder.kernel.tables.len();
    for (entry, label) in targets.iter().enumerate() {
        builder.frame().branches.push((Patch::Table { table, entry }, label, line));
    }
    builder.kernel.tables.push(vec![0; targets.len()]);
    builder.emit(Op::BranchTable { index, table: super::builder::index_of(table) });
    Ok(())
}

fn barrier<'a>(
    builder: &mut Builder<'_, 'a>,
    always_aligned: bool,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    qualifiers.take("cta");
    let aligned = qualifiers.take("aligned") || always_aligned;
    if qualifiers.take("warp") {
        if !qualifiers.take("sync") {
            return Err(qualifiers.unsupported());
        }
        let [members] = operands else { return Err(qualifiers.wrong_operands()) };
        return super::warp::sync(builder, members);
    }
    let kind = qualifiers.one_of(&[("sync", 's'), ("arrive", 'a'), ("red", 'r')]);
    let (mode, reduction_ty) = match kind {
        Some('s') => (BarrierMode::Sync, None),
        Some('a') => (BarrierMode::Arrive, None),
        Some('r') => {
            let mode = qualifiers.one_of(&[
                ("and", BarrierMode::And),
                ("or", BarrierMode::Or),
                ("popc", BarrierMode::Count),
            ]);
            (mode.ok_or_else(|| qualifiers.unsupported())?, Some(qualifiers.ty()?))
        }
        _ => return Err(qualifiers.unsupported()),
    };
    let (to, flag, rest) = match (reduction_ty, operands) {
        (None, rest) => (None, None, rest),
        (Some(ty), [to, rest @ .., flag]) => {
            let to = builder.result(to, ty)?;
            (Some(to), Some(builder.flag_operand(flag)?), rest)
        }
        _ => return Err(qualifiers.wrong_operands()),
    };
    let (index, threads) = match rest {
        [index] => (builder.value(index, Type::U32)?.row, None),
        [index, threads] => {
            (builder.value(index, Type::U32)?.row, Some(builder.value(threads, Type::U32)?.row))
        }
        _ => return Err(qualifiers.wrong_operands()),
    };
    if mode == BarrierMode::Arrive && threads.is_none() {
        return Err(qualifiers.wrong_operands());
    }
    let number = super::builder::index_of(builder.kernel.barrier_ops.len());
    builder.kernel.barrier_ops.push(BarrierOp { mode, index, threads, aligned, to, flag });
    builder.emit(Op::Barrier(number));
    Ok(())
}
