//! Finds out in which form a function built with tvm-ffi takes its arguments, which only its first calls show.
//!
//! A library does not describe the parameters of its functions. If a call does not fit, tvm-ffi refuses it before the
//! function begins, with an error that says what does not fit. The call is then repeated in another form. A candidate
//! can raise such an error itself, but it gains nothing, because the repetition counts towards the time of the same
//! call.

use super::abi::{Arguments, Form, Passed};

/// Changes the form according to the error of a call with these arguments. Returns false if the error has another
/// reason, or if there is no other form to try. `may_return` is true if the runner can take outputs that the function
/// returns.
pub(super) fn adapt(form: &mut Form, error: &str, arguments: &Arguments, may_return: bool) -> bool {
    if may_return && !form.returns_outputs && arguments.outputs_are_returned(error) {
        form.returns_outputs = true;
        return true;
    }
    let Some((index, was_array)) = refused_argument(error) else { return false };
    let next = match form.objects.get(&index) {
        None if was_array => return false,
        None if arguments.is_list(index) => Passed::Array,
        None if arguments.is_tensor(index) => Passed::Tensor,
        Some(Passed::Array) if was_array => Passed::Tensor,
        _ => return false,
    };
    form.objects.insert(index, next);
    true
}

/// Returns the index of the argument that was refused because of its type. The second value is true if the argument was
/// passed as an array, and false if it was passed as a borrowed tensor.
fn refused_argument(error: &str) -> Option<(usize, bool)> {
    let rest = error.strip_prefix("TypeError: Mismatched type on argument #")?;
    let (index, rest) = rest.split_once(" when calling: `")?;
    let (was_tensor, was_array) =
        (rest.ends_with("` but got `DLTensor*`"), rest.ends_with("` but got `ffi.Array`"));
    if was_tensor || was_array { Some((index.parse().ok()?, was_array)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_arguments_are_recognised_by_the_whole_message() {
        let message = |index: &str, got: &str| {
            format!(
                "TypeError: Mismatched type on argument #{index} when calling: `run(0: Tensor) -> void`. \
                 Expected `ffi.Tensor` but got `{got}`"
            )
        };
        for (error, refused) in [
            (message("0", "DLTensor*"), Some((0, false))),
            (message("12", "DLTensor*"), Some((12, false))),
            (message("1", "ffi.Array"), Some((1, true))),
            (message("1", "Array[size=2]"), None),
            (message("0", "int"), None),
            (message("-1", "DLTensor*"), None),
            (message("0", "DLTensor*") + "!", None),
            (message("0", "DLTensor*").replace("TypeError", "ValueError"), None),
            ("TypeError: Mismatched type on argument #0".to_owned(), None),
        ] {
            assert_eq!(refused_argument(&error), refused, "{error}");
        }
    }
}
