//! Translates parsed statements into code for the interpreter: replaces names by register rows and labels by positions,
//! and inlines calls.

mod arithmetic;
mod bits;
mod builder;
mod calls;
mod compare;
mod control;
mod convert;
mod fragments;
mod mbarrier;
mod memory;
mod operands;
mod qualifiers;
mod tensor;
mod warp;

use std::collections::HashMap;

use crate::code::Kernel;
use crate::fault::LoadError;
use crate::limits;
use crate::ptx::lexer::clipped;
use crate::ptx::syntax::{Function, Item, Operand, Source, Space, Statement};
use builder::{Builder, Frame, Name};
use qualifiers::Qualifiers;

/// The first generic address of shared memory. The windows (address ranges) of shared, local and parameter memory are
/// below the heap.
pub const SHARED_WINDOW: u64 = 0x7f_0000_0000;
pub const LOCAL_WINDOW: u64 = 0x7f_1000_0000;
pub const PARAM_WINDOW: u64 = 0x7f_2000_0000;
/// The size of each window.
pub const WINDOW_BYTES: u64 = 1 << 24;

/// The addresses of a module's variables in global and constant memory.
pub type Symbols<'a> = HashMap<&'a str, u64>;

/// Decodes one entry (kernel) of a module. `left` is what remains of the budget `limits::DECODED` for the module's
/// kernels.
///
/// # Errors
/// A part of the entry, or of a function that it calls, is wrong, is not supported, or exceeds a limit.
pub fn kernel<'a>(
    source: &Source<'a>,
    entry: &Function<'a>,
    symbols: &Symbols<'a>,
    left: &mut usize,
) -> Result<Kernel, LoadError> {
    let mut builder = Builder::new(source, symbols, entry.name, *left);
    let mut offset = 0_u64;
    for param in &entry.params {
        offset = offset.next_multiple_of(param.align.max(1));
        builder.kernel.params.push(crate::code::Param { offset, bytes: param.bytes });
        builder.declare(param.name, Name::Variable { space: Space::Param, address: offset, dynamic: false });
        offset += param.bytes;
        if limits::PARAMETER_BYTES < offset {
            return Err(LoadError::limit(
                param.line,
                format!(
                    "the parameters of `{}` take more than {} bytes",
                    clipped(entry.name),
                    limits::PARAMETER_BYTES
                ),
            ));
        }
    }
    builder.kernel.param_bytes = offset;
    builder.kernel.largest_block = entry.largest_block;
    builder.kernel.required_block = entry.required_block;
    let body = entry.body.as_deref().unwrap_or_default();
    function_body(&mut builder, body)?;
    builder.emit_plain(crate::code::Op::Exit);
    *left = builder.left;
    builder.finish()
}

/// Decodes the items of the function whose frame is innermost, and resolves its labels.
fn function_body<'a>(builder: &mut Builder<'_, 'a>, items: &[Item<'a>]) -> Result<(), LoadError> {
    for item in items {
        builder.spend(1)?;
        match item {
            Item::Open => builder.open_scope(),
            Item::Close => builder.close_scope(),
            Item::Registers { line, name, count, class } => {
                builder.declare_registers(*line, name, *count, *class)?;
            }
            Item::Variable(variable) => builder.declare_variable(variable)?,
            Item::Label { line, name } => builder.declare_label(*line, name)?,
            Item::BranchTargets { name, targets, .. } => {
                builder.spend(targets.len())?;
                builder.frame().targets.insert(name, targets.clone());
            }
            Item::Location { at, inlined_at } => builder.locate(*at, *inlined_at),
            Item::Statement(found) => statement(builder, found)?,
        }
    }
    // The target of `ret` in an inlined function.
    builder.declare_label(0, control::END_OF_BODY)?;
    builder.resolve_labels()
}

fn statement<'a>(builder: &mut Builder<'_, 'a>, statement: &Statement<'a>) -> Result<(), LoadError> {
    builder.begin(statement)?;
    let mut qualifiers = Qualifiers::new(statement);
    let operands = statement.operands.as_slice();
    builder.spend(operands.iter().map(Operand::parts).sum())?;
    let opcode = statement.opcode[0];
    match opcode {
        "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "abs" | "neg" | "min" | "max" | "mul24"
        | "mad24" | "sad" | "addc" | "subc" | "madc" | "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2"
        | "ex2" | "tanh" | "copysign" | "testp" => {
            arithmetic::decode(builder, opcode, &mut qualifiers, operands)?;
        }
        "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "shf" | "lop3" | "prmt" | "bfe" | "bfi"
        | "brev" | "popc" | "clz" | "bfind" | "bmsk" | "szext" | "dp4a" | "dp2a" => {
            bits::decode(builder, opcode, &mut qualifiers, operands)?;
        }
        "setp" | "set" | "selp" | "slct" => compare::decode(builder, opcode, &mut qualifiers, operands)?,
        "mov" | "cvt" | "cvta" | "isspacep" => convert::decode(builder, opcode, &mut qualifiers, operands)?,
        "ld" | "ldu" | "st" | "atom" | "red" | "prefetch" | "prefetchu" | "applypriority" | "discard"
        | "createpolicy" => {
            memory::decode(builder, opcode, &mut qualifiers, operands)?;
        }
        "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" => {
            warp::decode(builder, opcode, &mut qualifiers, operands)?;
        }
        "bra" | "brx" | "ret" | "exit" | "trap" | "brkpt" | "bar" | "barrier" | "membar" | "fence"
        | "nanosleep" | "pmevent" | "nop" | "griddepcontrol" => {
            control::decode(builder, opcode, &mut qualifiers, operands)?;
        }
        "cp" | "ldmatrix" | "mma" | "wmma" => tensor::decode(builder, opcode, &mut qualifiers, operands)?,
        "mbarrier" => mbarrier::decode(builder, &mut qualifiers, operands)?,
        "call" => calls::decode(builder, &mut qualifiers, operands)?,
        _ => return Err(qualifiers.unsupported()),
    }
    qualifiers.finish()
}

/// Pushes a frame for the function that is inlined next.
fn enter<'a>(builder: &mut Builder<'_, 'a>) {
    let local = builder.frame().local;
    let caller = builder.location;
    builder.frames.push(Frame::new(local, caller));
}
