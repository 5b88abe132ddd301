//! Writes the description of an entry's call that a runner's interpreter reads.

use opt_shared::arguments::{
    ArgumentValue, BindError, Call, Entry, EntryError, Form, Signature, call, returned,
};
use opt_shared::capture::Tensor;
use opt_shared::language::Launcher;
use serde::Serialize;

use crate::graphs::CallForm;
use crate::recorded::Recorded;
use crate::runner::frame::WireCall;

#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("describing the call of {entry}")]
    Entry { entry: String, source: EntryError },
    #[error("describing the arguments of {entry}")]
    Bind { entry: String, source: BindError },
    #[error("encoding the call of {entry}")]
    Text { entry: String, source: serde_json::Error },
}

const STATE_PREFIX: &str = "self.";

/// The description, which `driver.py` reads as JSON.
#[derive(Serialize)]
struct CallText<'a> {
    call: Call,
    tensors: &'a [u32],
    outputs: Vec<Output<'a>>,
    /// Empty in the recorded form.
    state: Vec<State<'a>>,
    /// The key of the compiled call, if the launcher needs one.
    #[serde(skip_serializing_if = "Option::is_none")]
    graph: Option<String>,
}

/// An argument that is a parameter, a buffer or an attribute of a recorded model.
#[derive(Serialize)]
struct State<'a> {
    /// The name within the model, such as `conv.weight`.
    name: &'a str,
    /// The index in the positional arguments.
    place: usize,
    /// `dtype` and `shape` are `None` if the argument is not a tensor.
    dtype: Option<&'a str>,
    shape: Option<&'a [u64]>,
}

/// The properties that a value returned by the candidate must have before it is copied to an output.
#[derive(Serialize)]
struct Output<'a> {
    path: &'a str,
    dtype: &'a str,
    shape: &'a [u64],
    /// The axes along which the output has only one element, because it was recorded after `expand`.
    expanded: Vec<usize>,
}

pub(super) fn wire_call(
    recorded: &Recorded,
    signature: &Signature,
    form: Form,
    launcher: Launcher,
) -> Result<WireCall, CallError> {
    let name = || recorded.name.clone();
    let entry = Entry::from_value(recorded.capture.root())
        .map_err(|source| CallError::Entry { entry: name(), source })?;
    let call = call(&entry, signature, &recorded.arguments, form)
        .map_err(|source| CallError::Bind { entry: name(), source })?;
    let tensor_index = |(index, argument): (u32, &opt_shared::arguments::Argument)| {
        matches!(argument.value, ArgumentValue::Tensor(_)).then_some(index)
    };
    let tensors: Vec<u32> = (0..).zip(&recorded.arguments).filter_map(tensor_index).collect();
    let outputs = returned(&recorded.outputs).iter().map(|output| Output {
        path: &output.path,
        dtype: output.tensor.dtype.name(),
        shape: &output.tensor.shape,
        expanded: expanded(&output.tensor),
    });
    let state = if form == Form::Settled { state(recorded, signature) } else { Vec::new() };
    let text_error = |source| CallError::Text { entry: name(), source };
    let key = (launcher == Launcher::Graphs).then(|| CallForm::new(&call, &recorded.arguments).key());
    let graph = key.transpose().map_err(text_error)?;
    let wire = CallText { call, tensors: &tensors, outputs: outputs.collect(), state, graph };
    let text = serde_json::to_string(&wire).map_err(text_error)?;
    Ok(WireCall { text, tensors })
}

fn expanded(tensor: &Tensor) -> Vec<usize> {
    let axes = tensor.shape.iter().zip(&tensor.stride).enumerate();
    axes.filter(|(_, (size, stride))| 1 < **size && **stride == 0).map(|(axis, _)| axis).collect()
}

fn state<'a>(recorded: &'a Recorded, signature: &'a Signature) -> Vec<State<'a>> {
    let named = signature.params.iter().enumerate();
    let of_model = named.filter_map(|(place, name)| Some((place, name, name.strip_prefix(STATE_PREFIX)?)));
    of_model
        .map(|(place, parameter, name)| {
            let tensor = recorded.arguments.iter().find_map(|argument| match &argument.value {
                ArgumentValue::Tensor(tensor) if *argument.parameter == **parameter => Some(tensor),
                _ => None,
            });
            let (dtype, shape) = (tensor.map(|it| it.dtype.name()), tensor.map(|it| &*it.shape));
            State { name, place, dtype, shape }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::scripted::entries_of;

    #[test]
    fn wire_call_names_tensors_and_outputs() {
        let (entries, signature) = entries_of("torch_nn_functional_embedding", &[0]);
        let recorded = Recorded::open(&entries[0], &signature).expect("a fixture");
        let wire = wire_call(&recorded, &signature, Form::Settled, Launcher::Interpreter).expect("a call");
        let text: serde_json::Value = serde_json::from_str(&wire.text).expect("JSON");
        assert_eq!(wire.tensors, [0, 1]);
        assert_eq!(text["call"]["positional"][0]["tensor"], 0, "{text}");
        assert_eq!(text["outputs"][0]["dtype"], "float32", "{text}");
    }
}
