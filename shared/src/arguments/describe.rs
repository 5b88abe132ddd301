//! Makes the argument table of a job, which shows the parameter at each position, and the kinds of values that entries
//! have there.
//!
//! `skeleton` turns the same information into C code.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::plain::shorten;
use super::{Argument, ArgumentValue, OutputTensor, PlainValue, Signature, returned};
use crate::capture::DType;

/// The kind of a plain value, as the table shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PlainKind {
    Int,
    Float,
    Bool,
    Str,
    DType,
    Device,
    Ints,
    Floats,
    Bools,
    None,
}

/// The kinds of values found at one position of the argument list.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) path: String,
    pub(super) dtypes: BTreeSet<DType>,
    pub(super) ranks: BTreeSet<usize>,
    pub(super) plain: BTreeSet<PlainKind>,
    /// True if some tensors are not contiguous.
    strided: bool,
    /// True if some calls change this argument.
    changed: bool,
    /// The plain value that all entries so far have at this position; `None` if an entry has a different value or a
    /// tensor there.
    constant: Option<String>,
    /// Number of entries that have this position. Not all entries need to have the same number of outputs.
    pub(super) entries: usize,
}

/// The kinds of values seen at every position, over the entries of a job.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub(super) arguments: Vec<Seen>,
    pub(super) outputs: Vec<Seen>,
    pub(super) entries: usize,
}

impl Observed {
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the kinds of one entry's values. Call it once for each entry, with the results of `bind` and `judged`.
    pub fn observe(&mut self, arguments: &[Argument], outputs: &[OutputTensor]) {
        self.entries += 1;
        for (index, argument) in arguments.iter().enumerate() {
            let seen = seen_at(&mut self.arguments, index);
            seen.path.clone_from(&argument.path);
            match &argument.value {
                ArgumentValue::Tensor(tensor) => {
                    seen.see_tensor(tensor.dtype, tensor.shape.len(), !tensor.is_contiguous());
                }
                ArgumentValue::Plain(value) => seen.see_plain(value),
            }
        }
        for &index in outputs.iter().flat_map(|output| &output.arguments) {
            if let Some(seen) = self.arguments.get_mut(index) {
                seen.changed = true;
            }
        }
        let outputs = returned(outputs);
        // The entry with the most outputs determines the names: if other entries have more outputs, a single `output`
        // is called `output[0]`.
        let is_longest = outputs.len() >= self.outputs.len();
        for (index, output) in outputs.iter().enumerate() {
            let seen = seen_at(&mut self.outputs, index);
            if is_longest {
                seen.path.clone_from(&output.path);
            }
            seen.see_tensor(output.tensor.dtype, output.tensor.shape.len(), !output.tensor.is_contiguous());
        }
    }
}

fn seen_at(positions: &mut Vec<Seen>, index: usize) -> &mut Seen {
    if index >= positions.len() {
        positions.resize_with(index + 1, Seen::default);
    }
    &mut positions[index]
}

impl PlainKind {
    fn of(value: &PlainValue) -> Self {
        match value {
            PlainValue::None => Self::None,
            PlainValue::Bool(_) => Self::Bool,
            PlainValue::Int(_) => Self::Int,
            PlainValue::Float(_) => Self::Float,
            PlainValue::Str(_) => Self::Str,
            PlainValue::DType(_) => Self::DType,
            PlainValue::Device(_) => Self::Device,
            PlainValue::Ints(_) => Self::Ints,
            PlainValue::Floats(_) => Self::Floats,
            PlainValue::Bools(_) => Self::Bools,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Int => "int",
            Self::Float => "float",
            Self::Bool => "bool",
            Self::Str => "str",
            Self::DType => "dtype",
            Self::Device => "device",
            Self::Ints => "ints (1-D int64 tensor on the CPU)",
            Self::Floats => "floats (1-D float64 tensor on the CPU)",
            Self::Bools => "bools (1-D bool tensor on the CPU)",
            Self::None => "None",
        }
    }
}

impl Seen {
    fn see_tensor(&mut self, dtype: DType, rank: usize, strided: bool) {
        self.entries += 1;
        self.constant = None;
        self.dtypes.insert(dtype);
        self.ranks.insert(rank);
        self.strided |= strided;
    }

    fn see_plain(&mut self, value: &PlainValue) {
        let text = value.to_string();
        self.constant = match self.constant.take() {
            _ if self.entries == 0 => Some(text),
            Some(first) if first == text => Some(first),
            _ => None,
        };
        self.entries += 1;
        self.plain.insert(PlainKind::of(value));
    }

    /// Returns the kinds as a text, such as `tensor float32|bfloat16 2-D, None`.
    fn kinds(&self) -> String {
        let mut kinds = Vec::new();
        if !self.dtypes.is_empty() {
            let dtypes: Vec<&str> = self.dtypes.iter().map(|dtype| dtype.name()).collect();
            let ranks: Vec<String> = self.ranks.iter().map(|rank| format!("{rank}-D")).collect();
            let strided = if self.strided { " strided" } else { "" };
            kinds.push(format!("tensor {} {}{strided}", dtypes.join("|"), ranks.join("|")));
        }
        kinds.extend(self.plain.iter().map(|kind| kind.name().to_owned()));
        let mut text = kinds.join(", ");
        if let Some(constant) = self.constant.as_ref().filter(|constant| *constant != "None") {
            text.push_str(&format!(", always {constant}"));
        }
        if self.changed {
            text.push_str(", to be changed in place");
        }
        text
    }
}

/// Returns one line for each argument and output: its position, its name and the kinds seen. A last line names the
/// parameters that the plan leaves out, if there are any.
pub fn table(signature: &Signature, observed: &Observed) -> String {
    let mut rows: Vec<(String, String)> =
        observed.arguments.iter().map(|seen| (shorten(&seen.path), seen.kinds())).collect();
    if observed.entries == 0 {
        rows = signature.params.iter().map(|name| (shorten(name), String::new())).collect();
    }
    rows.extend(observed.outputs.iter().map(|seen| {
        let partial = if seen.entries < observed.entries { ", in some entries only" } else { "" };
        (shorten(&seen.path), format!("{}, to be written{partial}", seen.kinds()))
    }));
    let name_width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let place_width = rows.len().saturating_sub(1).to_string().len();
    let mut text = String::new();
    for (index, (name, kinds)) in rows.iter().enumerate() {
        let line = format!("args[{index:place_width$}]  {name:name_width$}  {kinds}");
        let write = writeln!(text, "{}", line.trim_end());
        debug_assert!(write.is_ok(), "writing to a String does not fail");
    }
    let left_out: Vec<String> = signature
        .captured
        .iter()
        .filter(|name| !signature.params.contains(name))
        .map(|name| shorten(name))
        .collect();
    if !left_out.is_empty() {
        text.push_str(&format!("left out (the same in every entry): {}\n", left_out.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{bound, int, observed, tensor, text, tuple};
    use super::*;
    use crate::capture::Value;

    #[test]
    fn table_has_every_position_and_the_kinds_seen_there() {
        let entry = |dtype, index: Value, pad: Value, output: Value| {
            let params = ["input", "weight", "padding_idx", "norm_type", "pad", "mode", "max_norm"];
            let mut entry = bound(
                &params,
                [],
                [
                    ("input", tensor(DType::Int64, &[2, 3], 0)),
                    ("weight", tensor(dtype, &[7, 5], 1)),
                    ("padding_idx", index),
                    ("norm_type", Value::Float(2.0)),
                    ("pad", pad),
                    ("mode", text("sum")),
                    ("max_norm", Value::None),
                ],
            );
            entry.output = Some(output);
            entry
        };
        let first = tensor(DType::Float32, &[2, 5], 2);
        let second = tuple([tensor(DType::BFloat16, &[5], 2), tensor(DType::Int64, &[5], 3)]);
        let (signature, observed) = observed(&[
            entry(DType::Float32, Value::None, tuple([int(1), int(2)]), first),
            entry(DType::BFloat16, int(3), int(1), second),
        ]);
        assert_eq!(
            table(&signature, &observed),
            "\
args[0]  input        tensor int64 2-D
args[1]  weight       tensor float32|bfloat16 2-D
args[2]  padding_idx  int, None
args[3]  norm_type    float, always 2.0
args[4]  pad          int, ints (1-D int64 tensor on the CPU)
args[5]  mode         str, always \"sum\"
args[6]  max_norm     None
args[7]  output[0]    tensor float32|bfloat16 1-D|2-D, to be written
args[8]  output[1]    tensor int64 1-D, to be written, in some entries only
"
        );
    }

    #[test]
    fn changed_argument_is_marked() {
        let mut entry = bound(&["input"], [], [("input", tensor(DType::Float32, &[3], 0))]);
        entry.output = Some(tensor(DType::Float32, &[3], 1));
        entry.mutates = vec![("input".into(), tensor(DType::Float32, &[3], 1))];
        let (signature, observed) = observed(&[entry]);
        assert_eq!(
            table(&signature, &observed),
            "args[0]  input  tensor float32 1-D, to be changed in place\n"
        );
    }

    #[test]
    fn signature_without_entries_has_a_table() {
        let (mut signature, _) = observed(&[bound(&["x", "eps"], [], [("x", int(1)), ("eps", int(2))])]);
        signature.params = vec!["x".into()];
        let expected = "args[0]  x\nleft out (the same in every entry): eps\n";
        assert_eq!(table(&signature, &Observed::new()), expected);
    }
}
