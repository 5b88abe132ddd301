//! Decodes calls by inlining the body of the called function, with its own scope of names.

use super::builder::{Builder, Name, index_of};
use super::convert::temporary;
use super::qualifiers::Qualifiers;
use super::{enter, function_body};
use crate::code::{Address, CallOp, File, Guard, MemoryAction, MemoryOp, MemoryOrder, MemorySpace, Op, Slot};
use crate::fault::LoadError;
use crate::limits;
use crate::ptx::lexer::clipped;
use crate::ptx::syntax::{Function, Operand, Space};

pub fn decode<'a>(
    builder: &mut Builder<'_, 'a>,
    qualifiers: &mut Qualifiers<'a>,
    operands: &[Operand<'a>],
) -> Result<(), LoadError> {
    qualifiers.take("uni");
    let (results, name, arguments): (&[Operand<'a>], _, &[Operand<'a>]) = match operands {
        [Operand::Name(name)] => (&[], *name, &[]),
        [Operand::Name(name), Operand::List(arguments)] => (&[], *name, arguments),
        [Operand::List(results), Operand::Name(name)] => (results, *name, &[]),
        [Operand::List(results), Operand::Name(name), Operand::List(arguments)] => {
            (results, *name, arguments)
        }
        _ => return Err(LoadError::unsupported(builder.line(), "indirect calls".to_owned())),
    };
    match name {
        "vprintf" => return print(builder, results, arguments, qualifiers),
        "__assertfail" => return assertion(builder, arguments, qualifiers),
        _ => {}
    }
    let source = builder.source;
    let Some(index) = source.defined.get(name) else {
        let is_register = matches!(builder.find(name), Some(Name::Register(_)));
        let what =
            if is_register { "indirect calls".to_owned() } else { format!("calls of `{}`", clipped(name)) };
        return Err(LoadError::unsupported(builder.line(), what));
    };
    let function = &source.functions[*index];
    inline(builder, function, results, arguments, qualifiers)
}

fn inline<'a>(
    builder: &mut Builder<'_, 'a>,
    function: &Function<'a>,
    results: &[Operand<'a>],
    arguments: &[Operand<'a>],
    qualifiers: &Qualifiers<'a>,
) -> Result<(), LoadError> {
    if builder.called.contains(&function.name) {
        let what = format!("recursion (`{}`)", clipped(function.name));
        return Err(LoadError::unsupported(builder.line(), what));
    }
    if limits::CALL_DEPTH <= builder.called.len() {
        let most = limits::CALL_DEPTH;
        let what = format!("a chain of calls has more than {most} functions, including the kernel");
        return Err(LoadError::limit(builder.line(), what));
    }
    // Lanes whose guard is false skip the inlined body: they take this branch.
    let mut around = None;
    if let Some(guard) = builder.guard() {
        around = Some(builder.kernel.code.len());
        builder.set_guard(Some(Guard { negated: !guard.negated, ..guard }));
        builder.emit(Op::Branch { target: 0 });
        builder.set_guard(None);
    }
    let inputs = bind(builder, function, false, arguments, qualifiers)?;
    let outputs = bind(builder, function, true, results, qualifiers)?;
    let (line, location) = (builder.line(), builder.location);
    let before = builder.frame().local;
    enter(builder);
    let mut after = Vec::new();
    for (name, meaning) in inputs {
        let meaning = match meaning {
            // Registers are passed by value.
            Name::Register(slot) => {
                let own = temporary(builder, slot.bits);
                builder.emit_move(own, slot);
                Name::Register(own)
            }
            variable => variable,
        };
        builder.declare(name, meaning);
    }
    for (name, meaning) in outputs {
        if let Name::Register(slot) = meaning {
            let own = temporary(builder, slot.bits);
            after.push((slot, own));
            builder.declare(name, Name::Register(own));
        } else {
            builder.declare(name, meaning);
        }
    }
    builder.called.push(function.name);
    // Local variables must be marked as never written, because they may still contain values that a previous call
    // wrote.
    let start = builder.kernel.code.len();
    builder.emit(Op::Nothing);
    let outer_bytes = builder.kernel.local_bytes;
    builder.kernel.local_bytes = before;
    let body = function.body.as_deref().unwrap_or_default();
    function_body(builder, body)?;
    let used = builder.kernel.local_bytes;
    if let (Ok(offset), Ok(bytes)) = (u32::try_from(before), u32::try_from(used - before))
        && bytes != 0
    {
        builder.kernel.code[start].op = Op::EnterLocal { offset, bytes };
    }
    builder.kernel.local_bytes = outer_bytes.max(used);
    builder.called.pop();
    builder.frames.pop();
    builder.location = location;
    builder.set_line(line);
    builder.set_guard(None);
    for (to, from) in after {
        builder.emit_move(to, from);
    }
    if let Some(around) = around {
        builder.kernel.code[around].op = Op::Branch { target: builder.position() };
    }
    Ok(())
}

/// Pairs the names of parameters or results with the caller's operands.
fn bind<'a>(
    builder: &mut Builder<'_, 'a>,
    function: &Function<'a>,
    results: bool,
    given: &[Operand<'a>],
    qualifiers: &Qualifiers<'a>,
) -> Result<Vec<(&'a str, Name)>, LoadError> {
    let variables = if results { &function.returns } else { &function.params };
    let registers: Vec<_> = function.registers.iter().filter(|r| r.is_result == results).collect();
    if variables.len() + registers.len() != given.len() || !(variables.is_empty() || registers.is_empty()) {
        return Err(qualifiers.wrong_operands());
    }
    let mut bound = Vec::new();
    for (variable, operand) in variables.iter().zip(given) {
        let Operand::Name(name) = operand else { return Err(qualifiers.wrong_operands()) };
        match builder.find(name) {
            Some(meaning @ Name::Variable { space: Space::Local, .. }) => {
                bound.push((variable.name, meaning))
            }
            _ => {
                return Err(LoadError::unsupported(
                    builder.line(),
                    "calls with an argument or result that is not a local `.param` variable".to_owned(),
                ));
            }
        }
    }
    for (register, operand) in registers.iter().zip(given) {
        let Operand::Name(name) = operand else { return Err(qualifiers.wrong_operands()) };
        let slot = builder.register(name)?;
        bound.push((register.name, Name::Register(slot)));
    }
    Ok(bound)
}

/// Returns the register that contains an argument. If the argument is a variable in memory, first emits code that loads
/// it.
fn argument<'a>(
    builder: &mut Builder<'_, 'a>,
    operand: Option<&Operand<'a>>,
    bits: u32,
    qualifiers: &Qualifiers<'a>,
) -> Result<Slot, LoadError> {
    let Some(Operand::Name(name)) = operand else { return Err(qualifiers.wrong_operands()) };
    match builder.find(name) {
        Some(Name::Register(slot)) if slot.bits == bits => Ok(slot),
        Some(Name::Variable { space: Space::Local, address, .. }) => {
            let to = temporary(builder, bits);
            let action = MemoryAction::Load { signed: false, to: vec![Some(to)] };
            access(builder, address, bits / 8, action);
            Ok(to)
        }
        _ => Err(qualifiers.wrong_operands()),
    }
}

fn access(builder: &mut Builder<'_, '_>, address: u64, bytes: u32, action: MemoryAction) {
    let base = Slot { file: File::Wide, row: builder.wide_constant(address), bits: 64 };
    let index = index_of(builder.kernel.memory_ops.len());
    let space = MemorySpace::Local;
    builder.kernel.memory_ops.push(MemoryOp {
        space,
        at: Address { base, offset: 0 },
        element: bytes,
        bytes,
        order: MemoryOrder::Weak,
        action,
    });
    builder.emit(Op::Memory(index));
}

fn print<'a>(
    builder: &mut Builder<'_, 'a>,
    results: &[Operand<'a>],
    arguments: &[Operand<'a>],
    qualifiers: &Qualifiers<'a>,
) -> Result<(), LoadError> {
    let format = argument(builder, arguments.first(), 64, qualifiers)?;
    let values = argument(builder, arguments.get(1), 64, qualifiers)?;
    let to = temporary(builder, 32);
    call(builder, CallOp::Print { format, arguments: values, to: Some(to) });
    match results {
        [] => {}
        [Operand::Name(name)] => match builder.find(name) {
            Some(Name::Register(slot)) if slot.bits == 32 => builder.emit_move(slot, to),
            Some(Name::Variable { space: Space::Local, address, .. }) => {
                access(builder, address, 4, MemoryAction::Store { from: vec![to] });
            }
            _ => return Err(qualifiers.wrong_operands()),
        },
        _ => return Err(qualifiers.wrong_operands()),
    }
    Ok(())
}

fn assertion<'a>(
    builder: &mut Builder<'_, 'a>,
    arguments: &[Operand<'a>],
    qualifiers: &Qualifiers<'a>,
) -> Result<(), LoadError> {
    let message = argument(builder, arguments.first(), 64, qualifiers)?;
    let file = argument(builder, arguments.get(1), 64, qualifiers)?;
    let line = argument(builder, arguments.get(2), 32, qualifiers)?;
    let function = argument(builder, arguments.get(3), 64, qualifiers)?;
    call(builder, CallOp::Assert { message, file, line, function });
    Ok(())
}

fn call(builder: &mut Builder<'_, '_>, op: CallOp) {
    let index = index_of(builder.kernel.call_ops.len());
    builder.kernel.call_ops.push(op);
    builder.emit(Op::Call(index));
}
