//! How a function built with tvm-ffi takes its arguments, which is known only after its first call.
//!
//! A library says nothing about its functions' parameters. tvm-ffi refuses a call that does not fit before the function
//! begins, with an error that says what does not fit. The call is then repeated in another form. A candidate can raise
//! such an error itself, but gains nothing: the repetition counts towards the time of the same call.

use super::abi::{Arguments, Form};

/// Changes the form to fit the error of a call with these arguments. Returns false if the error is another one, or if
/// there is no other form to try. `may_return` is true if returned outputs can be taken.
pub(super) fn adapt(form: &mut Form, error: &str, arguments: &Arguments, may_return: bool) -> bool {
    if may_return && !form.returns_outputs && arguments.outputs_are_returned(error) {
        form.returns_outputs = true;
        return true;
    }
    match refused_tensor(error) {
        Some(index) if arguments.has_object(index) && !form.objects.contains(&index) => {
            form.objects.push(index);
            true
        }
        _ => false,
    }
}

/// The index of the argument that was refused because it is a borrowed tensor.
fn refused_tensor(error: &str) -> Option<usize> {
    let rest = error.strip_prefix("TypeError: Mismatched type on argument #")?;
    let (index, rest) = rest.split_once(" when calling: `")?;
    if rest.ends_with("` but got `DLTensor*`") { index.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_tensors_are_recognised_by_the_whole_message() {
        let message = |index: &str, got: &str| {
            format!(
                "TypeError: Mismatched type on argument #{index} when calling: `run(0: Tensor) -> void`. \
                 Expected `ffi.Tensor` but got `{got}`"
            )
        };
        for (error, index) in [
            (message("0", "DLTensor*"), Some(0)),
            (message("12", "DLTensor*"), Some(12)),
            (message("0", "int"), None),
            (message("-1", "DLTensor*"), None),
            (message("0", "DLTensor*") + "!", None),
            (message("0", "DLTensor*").replace("TypeError", "ValueError"), None),
            ("TypeError: Mismatched type on argument #0".to_owned(), None),
        ] {
            assert_eq!(refused_tensor(&error), index, "{error}");
        }
    }
}
