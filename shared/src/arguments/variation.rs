//! Decides, from the plan and an input's header, whether the input may have new values in every timed call. A later
//! check of the input's contents, or a trial with the kernel, may still rule this out.

use super::{Argument, may_vary};
use crate::capture::Tensor;
use crate::formula::variant;
use crate::settings::Vary;
use crate::units::Bytes;

/// What determines whether an argument may vary: the plan's `[profile] vary` and `[job] constant`, and facts about the
/// entry.
#[derive(Clone, Copy, Debug)]
pub struct VaryChoice<'a> {
    pub vary: &'a Vary,
    pub constant: &'a [String],
    /// Arguments that have the same values in several entries.
    pub repeated: &'a [String],
    /// The largest size that an input may have in order to vary. It depends on the device (`formula::largest_varied`).
    pub largest: Bytes,
}

/// The reason given for an input that keeps its values because there is no memory for new ones.
pub const TOO_LARGE: &str = "it is too large to get new values for each call";

impl VaryChoice<'_> {
    /// The reason why an argument is the same in every call, in a few words; `None` if it may vary.
    pub fn kept_because(&self, argument: &Argument, tensor: &Tensor) -> Option<&'static str> {
        let named = |names: &[String]| names.contains(&argument.parameter) || names.contains(&argument.path);
        let range = tensor.byte_range();
        if *self.vary == Vary::None {
            Some("the plan says vary = \"none\"")
        } else if matches!(self.vary, Vary::Only(names) if !named(names)) {
            Some("the plan's `vary` does not name it")
        } else if named(self.constant) {
            Some("the plan says that it is constant")
        } else if *self.vary == Vary::Auto && self.repeated.contains(&argument.path) {
            Some("other entries have the same values")
        } else if tensor.parameter {
            Some("it is a torch.nn.Parameter")
        } else if tensor.elements() == 0 {
            Some("it has no elements")
        } else if !may_vary(tensor) {
            Some("it is boolean, or a lazy conjugate or negative")
        } else if self.largest < variant(Bytes::new(range.end - range.start)) {
            Some(TOO_LARGE)
        } else {
            None
        }
    }

    /// Returns the first name in these settings that is neither a parameter nor part of one, with the plan's key that
    /// contains it.
    pub fn unknown<'n>(&'n self, params: &[String]) -> Option<(&'static str, &'n str)> {
        let listed: &[String] = match self.vary {
            Vary::Only(names) => names,
            Vary::Auto | Vary::None => &[],
        };
        let of_key = |key, names: &'n [String]| names.iter().map(move |name| (key, name.as_str()));
        of_key("vary", listed).chain(of_key("constant", self.constant)).find(|(_, name)| {
            let is_part = |param: &String| {
                name.strip_prefix(param.as_str()).is_some_and(|rest| rest.starts_with(['[', '.']))
            };
            !params.iter().any(|param| param == name || is_part(param))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::ArgumentValue;
    use super::super::fixture::dense;
    use super::*;
    use crate::capture::DType;
    use crate::formula::largest_varied;
    use crate::settings::CacheState;

    #[test]
    fn unknown_parameter_is_found_with_its_key() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let params = names(&["input", "tensors"]);
        for (vary, constant, found) in [
            (Vary::Auto, names(&[]), None),
            (Vary::Auto, names(&["input", "tensors[1]"]), None),
            (Vary::Auto, names(&["input", "wieght"]), Some(("constant", "wieght"))),
            (Vary::Only(names(&["input", "inputs"])), names(&["x"]), Some(("vary", "inputs"))),
            (Vary::None, names(&["tensors1"]), Some(("constant", "tensors1"))),
        ] {
            let choice = VaryChoice { vary: &vary, constant: &constant, repeated: &[], largest: Bytes::ZERO };
            assert_eq!(choice.unknown(&params), found, "{vary:?} {constant:?}");
        }
    }

    #[test]
    fn larger_inputs_may_vary_on_a_card_than_on_the_cpu() {
        let kept = |elements: u64, on_card: bool| {
            let tensor = Arc::new(dense(DType::Float32, &[elements], 0));
            let argument = Argument {
                parameter: "input".to_owned(),
                path: "input".to_owned(),
                value: ArgumentValue::Tensor(Arc::clone(&tensor)),
            };
            let choice = VaryChoice {
                vary: &Vary::Auto,
                constant: &[],
                repeated: &[],
                largest: largest_varied(on_card, CacheState::Auto),
            };
            choice.kept_because(&argument, &tensor)
        };
        let too_large = Some("it is too large to get new values for each call");
        for (elements, on_the_cpu, on_a_card) in [
            (1 << 21, None, None),
            (1 << 22, too_large, None),
            (1 << 24, too_large, None),
            (1 << 25, too_large, too_large),
        ] {
            assert_eq!((kept(elements, false), kept(elements, true)), (on_the_cpu, on_a_card), "{elements}");
        }
    }
}
