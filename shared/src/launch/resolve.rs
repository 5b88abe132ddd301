//! Evaluates the launches of a plan for the arguments of one entry.

use serde::{Deserialize, Serialize};

use super::argument::{LaunchArg, LaunchValue};
use super::error::Excerpt;
use super::evaluate::{Wrong, number, whole};
use super::expression::Expression;
use super::names::{Named, Names, Pointer};
use super::node::NodeKind;
use super::scalar::{Scalar, ScalarType};
use super::{Launch, LaunchError, LaunchStep, MAX_BLOCK, MAX_BLOCK_THREADS, MAX_GRID, MAX_SHARED, Problem};
use crate::arguments::{Argument, OutputTensor, PlainValue};
use crate::units::Bytes;

/// The launches of one call, with all expressions evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedLaunch {
    pub steps: Vec<ResolvedStep>,
    /// The sizes of the workspaces, in the order of the plan.
    pub workspaces: Vec<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedStep {
    /// The index of the module that contains the kernel. It is 0 unless the artifact has several modules.
    pub module: usize,
    pub symbol: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// The dynamic shared memory, in bytes.
    pub shared_mem: u32,
    pub args: Vec<Value>,
}

impl ResolvedStep {
    /// True if the grid has no blocks, for example for an entry without elements. CUDA refuses such a step, so it is
    /// skipped.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

/// The value that is passed for a kernel's parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A device address of eight bytes.
    Pointer(Pointer),
    /// A null pointer of eight bytes, for an argument that is None in this entry.
    Null,
    Scalar(Scalar),
    /// The bytes that host code passed, some of which are addresses.
    Bytes {
        bytes: Vec<u8>,
        addresses: Vec<Address>,
    },
}

/// An address of eight bytes in the value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The offset of the address in the value.
    pub at: usize,
    pub pointer: Pointer,
    /// The distance from the start of what `pointer` stands for, in bytes.
    pub offset: i64,
}

/// Evaluates the launches of a call with these arguments and outputs.
pub fn resolve(
    launch: &Launch,
    arguments: &[Argument],
    outputs: &[OutputTensor],
) -> Result<ResolvedLaunch, LaunchError> {
    let mut names = Names { arguments, outputs, workspaces: Vec::with_capacity(launch.workspaces.len()) };
    for (at, workspace) in launch.workspaces.iter().enumerate() {
        let key = || format!("workspace[{at}].bytes");
        // This upper bound exceeds the memory of every device. Whether the device has enough memory is not checked
        // here.
        let bytes = bounded(&workspace.bytes, &names, 0..=i64::MAX.unsigned_abs(), key)?;
        names.workspaces.push((&workspace.name, bytes));
    }
    let steps = launch.steps.iter().enumerate().map(|(at, step)| resolve_step(at, step, &names));
    Ok(ResolvedLaunch {
        steps: steps.collect::<Result<_, _>>()?,
        workspaces: names.workspaces.iter().map(|(_, bytes)| Bytes::new(*bytes)).collect(),
    })
}

fn resolve_step(at: usize, step: &LaunchStep, names: &Names<'_>) -> Result<ResolvedStep, LaunchError> {
    let key = |name: &str| format!("launch[{at}].{name}");
    let grid = extents(&step.grid, 0, MAX_GRID, names, || key("grid"))?;
    let block = extents(&step.block, 1, MAX_BLOCK, names, || key("block"))?;
    let threads = block.iter().map(|extent| u64::from(*extent)).product();
    if threads > u64::from(MAX_BLOCK_THREADS) {
        let texts: Vec<&str> = step.block.iter().map(Expression::text).collect();
        let problem = Problem::Threads { threads, most: MAX_BLOCK_THREADS };
        return Err(LaunchError { key: key("block"), excerpt: whole_of(&texts.join(", ")), problem });
    }
    let shared_mem = bounded(&step.shared_mem, names, 0..=MAX_SHARED.into(), || key("shared_mem"))?;
    let args = step.args.iter().enumerate().map(|(index, arg)| {
        value(arg, names).map_err(|wrong| error(key(&format!("args[{index}]")), arg.text(), wrong))
    });
    Ok(ResolvedStep {
        module: 0,
        symbol: step.symbol.clone(),
        grid,
        block,
        shared_mem: u32::try_from(shared_mem).unwrap_or(MAX_SHARED),
        args: args.collect::<Result<_, _>>()?,
    })
}

fn extents(
    expressions: &[Expression; 3],
    least: u64,
    most: [u32; 3],
    names: &Names<'_>,
    key: impl Fn() -> String,
) -> Result<[u32; 3], LaunchError> {
    let mut extents = [1; 3];
    for (axis, expression) in expressions.iter().enumerate() {
        let extent = bounded(expression, names, least..=most[axis].into(), &key)?;
        extents[axis] = u32::try_from(extent).unwrap_or(most[axis]);
    }
    Ok(extents)
}

fn bounded(
    expression: &Expression,
    names: &Names<'_>,
    limits: std::ops::RangeInclusive<u64>,
    key: impl Fn() -> String,
) -> Result<u64, LaunchError> {
    let value = whole(&expression.root, names).map_err(|wrong| error(key(), expression.text(), wrong))?;
    u64::try_from(value).ok().filter(|value| limits.contains(value)).ok_or_else(|| {
        let problem = Problem::Limit { value, least: *limits.start(), most: *limits.end() };
        LaunchError { key: key(), excerpt: whole_of(expression.text()), problem }
    })
}

fn value(arg: &LaunchArg, names: &Names<'_>) -> Result<Value, Wrong> {
    let node = match &arg.value {
        LaunchValue::Float(value) => {
            let kind = arg.kind.unwrap_or(ScalarType::F64);
            return scalar(super::scalar::Number::Float(*value), kind, 0..arg.text().len());
        }
        LaunchValue::Expression(node) => node,
    };
    if let NodeKind::Reference(reference) = &node.kind
        && reference.attribute.is_none()
    {
        let wrong = |problem| (node.at.clone(), problem);
        let named = names.find(reference).map_err(wrong)?;
        let passed = match named {
            Named::Tensor(_, pointer) | Named::Workspace(_, pointer) => Some(Value::Pointer(pointer)),
            Named::Plain(PlainValue::None) if arg.kind.is_none() => return Ok(Value::Null),
            Named::Plain(
                PlainValue::Int(_) | PlainValue::Float(_) | PlainValue::Bool(_) | PlainValue::None,
            ) => None,
            Named::Plain(PlainValue::Ints(_) | PlainValue::Floats(_) | PlainValue::Bools(_))
                if reference.indices.len() == 1 =>
            {
                None
            }
            Named::Plain(PlainValue::Ints(_) | PlainValue::Floats(_) | PlainValue::Bools(_))
            | Named::Tensors(_) => {
                let advice = " as a whole (pass its elements: `name[0]`)";
                return Err(wrong(Problem::CannotPass { found: named.describe(), advice }));
            }
            Named::Plain(_) => {
                return Err(wrong(Problem::CannotPass { found: named.describe(), advice: "" }));
            }
        };
        match (passed, arg.kind) {
            (Some(value), None) => return Ok(value),
            (Some(_), Some(kind)) => {
                return Err(wrong(Problem::TypedAddress { found: named.describe(), wanted: kind.name() }));
            }
            (None, _) => {}
        }
    }
    let number = number(node, names)?;
    scalar(number, arg.kind.unwrap_or(ScalarType::of(number)), node.at.clone())
}

fn scalar(
    number: super::scalar::Number,
    kind: ScalarType,
    at: std::ops::Range<usize>,
) -> Result<Value, Wrong> {
    Scalar::of(number, kind).map(Value::Scalar).map_err(|problem| (at, problem))
}

fn whole_of(text: &str) -> Excerpt {
    Excerpt { text: text.to_owned(), at: 0..text.len() }
}

fn error(key: String, text: &str, (at, problem): Wrong) -> LaunchError {
    LaunchError { key, excerpt: Excerpt { text: text.to_owned(), at }, problem }
}
