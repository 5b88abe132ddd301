//! Tests of `settle`: single cases, and a property over generated calls.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::fixture::{bound, dict, int, list, tensor, text, tuple, unbound};
use super::{ArgumentValue, Entry, PlainValue, Signature, SignatureBuilder, SignatureError, bind};
use crate::capture::{DType, Value};

fn settle_with(
    entries: &[Entry],
    params: Option<&[&str]>,
    defaults: &[(&str, PlainValue)],
) -> Result<Signature, Vec<SignatureError>> {
    let params = params.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    let defaults = defaults.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let mut builder = SignatureBuilder::new(params, defaults);
    for (index, entry) in entries.iter().enumerate() {
        builder.observe(&format!("e{index}"), entry);
    }
    builder.finish()
}

fn settle(entries: &[Entry]) -> Result<Signature, Vec<SignatureError>> {
    settle_with(entries, None, &[])
}

fn messages(result: Result<Signature, Vec<SignatureError>>) -> Vec<String> {
    result.expect_err("a refusal").iter().map(ToString::to_string).collect()
}

fn x() -> Value {
    tensor(DType::Float32, &[2, 3], 0)
}

#[test]
fn unrecorded_signature_has_positions_first_then_names_in_order_of_appearance() {
    let entries = [
        unbound([x(), x()], []),
        unbound([x(), x()], [("is_causal", Value::Bool(true)), ("scale", Value::Float(0.25))]),
        unbound([x(), x()], [("attn_mask", x()), ("scale", Value::Float(0.5))]),
    ];
    let signature = settle(&entries).unwrap();
    assert_eq!(signature.params, ["arg0", "arg1", "is_causal", "scale", "attn_mask"]);
    assert_eq!(signature.positional, 2);
    for entry in &entries {
        assert_eq!(bind(entry, &signature).unwrap().len(), 5);
    }
}

#[test]
fn first_recorded_signature_wins_over_earlier_entries() {
    let params = ["input", "weight", "eps"];
    let entries = [
        unbound([x(), x()], [("eps", Value::Float(1.0))]),
        bound(&params, [("eps", Value::Float(1e-5))], [("input", x()), ("weight", x())]),
        bound(&["eps", "input", "weight"], [("eps", Value::None)], [("input", x()), ("weight", x())]),
    ];
    let signature = settle(&entries).unwrap();
    assert_eq!(signature.params, params);
    assert_eq!(signature.positional, 0);
    assert_eq!(signature.defaults, BTreeMap::from([("eps".to_owned(), PlainValue::Float(1e-5))]));
    let names: Vec<String> =
        bind(&entries[0], &signature).unwrap().into_iter().map(|argument| argument.parameter).collect();
    assert_eq!(names, params);
}

#[test]
fn defaults_of_the_plan_override_recorded_ones() {
    let entries = [bound(&["input", "eps"], [("eps", Value::Float(1e-5))], [("input", x())])];
    let signature = settle_with(&entries, None, &[("eps", PlainValue::Float(0.5))]).unwrap();
    assert_eq!(signature.defaults["eps"], PlainValue::Float(0.5));
}

#[test]
fn every_mismatch_with_the_signature_is_reported() {
    let entries = [
        bound(&["input", "weight"], [], [("input", x()), ("weight", x())]),
        unbound([x()], []),
        unbound([x(), x(), x()], []),
        unbound([x(), x()], [("weight", x()), ("bias", x())]),
        unbound([x()], []),
    ];
    let messages = messages(settle(&entries));
    for part in [
        "e1: parameter `weight` is missing (and in 1 more entry) and has no default",
        "e2: 3 positional arguments, but e0 recorded a signature of 2 parameters",
        "e3: parameter `weight` is given twice",
        "e3: parameter `bias` is not in the signature that e0 recorded",
    ] {
        assert!(messages.iter().any(|message| message.contains(part)), "{part}\n{messages:#?}");
    }
    assert_eq!(messages.len(), 4, "{messages:#?}");
}

#[test]
fn different_numbers_of_positional_arguments_need_a_default() {
    let entries = [unbound([x(), int(1)], []), unbound([x()], [])];
    assert!(messages(settle(&entries))[0].starts_with("e1: parameter `arg1` is missing"));
    let signature = settle_with(&entries, None, &[("arg1", PlainValue::Int(7))]).unwrap();
    assert_eq!(bind(&entries[1], &signature).unwrap().len(), 2);
}

#[test]
fn unsupported_recorded_default_is_an_error_only_if_needed() {
    let with = |kwargs: Vec<(&'static str, Value)>| bound(&["x", "how"], [("how", Value::Ellipsis)], kwargs);
    assert!(settle(&[with(vec![("x", x()), ("how", int(1))])]).is_ok());
    let lacking = [with(vec![("x", x())])];
    assert!(
        messages(settle(&lacking))[0].contains("e0: parameter `how` is missing and its recorded default")
    );
    assert!(settle_with(&lacking, None, &[("how", PlainValue::None)]).is_ok());
}

#[test]
fn params_select_and_order_a_kernels_parameters() {
    let entry = |eps: f64| {
        bound(
            &["input", "weight", "eps"],
            [("eps", Value::Float(1e-5))],
            [("input", x()), ("weight", x()), ("eps", Value::Float(eps))],
        )
    };
    let signature = settle_with(&[entry(1e-5), entry(1e-5)], Some(&["weight", "input"]), &[]).unwrap();
    assert_eq!(signature.params, ["weight", "input"]);
    assert_eq!(signature.captured, ["input", "weight", "eps"]);
    let arguments = bind(&unbound([x(), x(), Value::Float(1e-5)], []), &signature).unwrap();
    assert_eq!((arguments[0].path.as_str(), arguments.len()), ("weight", 2));

    let varying: Vec<Entry> = [1e-5, 1e-5, 1e-3, 0.5, 0.5, 0.5].map(entry).into();
    let messages = messages(settle_with(&varying, Some(&["weight", "input"]), &[]));
    assert_eq!(
        messages,
        [
            "e2, e3, e4 (and in 1 more entry): parameter `eps` is left out by `params` but is not the same in every \
          entry: it is 1e-05 in e0 and 0.001 in e2 (add it to `params`, or use `entries` to choose entries that agree)"
        ]
    );
}

#[test]
fn default_of_a_left_out_parameter_counts_as_its_value() {
    let entries = [unbound([x()], [("dim", int(1))]), unbound([x()], [])];
    assert!(messages(settle_with(&entries, Some(&["arg0"]), &[]))[0].contains("e1: parameter `dim`"));
    assert!(settle_with(&entries, Some(&["arg0"]), &[("dim", PlainValue::Int(1))]).is_ok());
    let positional = [unbound([x(), int(1)], []), unbound([x(), int(1)], [])];
    assert!(settle_with(&positional, Some(&["arg0"]), &[]).is_ok());
    // `dim` is given by name in one entry, and by position in the other.
    let mixed = [bound(&["x", "dim"], [], [("x", x()), ("dim", int(1))]), unbound([x(), int(2)], [])];
    assert!(messages(settle_with(&mixed, Some(&["x"]), &[]))[0].contains("`dim` is left out"));
}

#[test]
fn unsupported_value_may_be_left_out_if_constant() {
    let entry =
        |value: i64| unbound([x()], [("options", dict([("depth", int(value)), ("all", Value::Ellipsis)]))]);
    assert!(settle_with(&[entry(1), entry(1)], Some(&["arg0"]), &[]).is_ok());
    assert!(messages(settle_with(&[entry(1), entry(2)], Some(&["arg0"]), &[]))[0].contains("e1: parameter"));
    for held in [x(), list([x()]), dict([("inner", x())])] {
        let messages = messages(settle_with(&[unbound([x()], [("w", held)])], Some(&["arg0"]), &[]));
        assert!(messages[0].contains("e0: parameter `w` is left out by `params` but holds a tensor"));
    }
}

#[test]
fn unknown_name_is_reported_with_the_nearest_one() {
    let entries = [unbound([x()], [("approximate", text("tanh"))])];
    let messages = messages(settle_with(
        &entries,
        Some(&["arg0", "aproximate", "arg0", "zzz"]),
        &[("arg1", PlainValue::None)],
    ));
    for part in [
        "`params` names `aproximate`, which no entry has (did you mean `approximate`?)",
        "`params` names `zzz`, which no entry has (known: arg0, approximate)",
        "`params` names `arg0` twice",
        "`defaults` names `arg1`, which no entry has (did you mean `arg0`?)",
    ] {
        assert!(messages.iter().any(|message| message == part), "{part}\n{messages:#?}");
    }
}

/// A job's `params` apply to all of its captures, so the selected entries may lack one of the parameters.
#[test]
fn parameter_with_a_default_need_not_occur() {
    let entries = [unbound([x()], [])];
    let default = [("dropout_p", PlainValue::Float(0.0))];
    let signature = settle_with(&entries, Some(&["arg0", "dropout_p"]), &default).unwrap();
    assert_eq!(signature.params, ["arg0", "dropout_p"]);
    let bound = bind(&entries[0], &signature).unwrap();
    assert_eq!(bound[1].value, ArgumentValue::Plain(PlainValue::Float(0.0)));
    let messages = messages(settle_with(&entries, Some(&["arg0", "dropout_p"]), &[]));
    assert!(messages[0].contains("`params` names `dropout_p`, which no entry has"), "{messages:?}");
}

#[test]
fn lists_of_tensors_must_have_equal_lengths() {
    let two = unbound([tuple([x(), x()])], []);
    let signature = settle(&[two.clone(), two.clone()]).unwrap();
    assert_eq!(signature.lists, BTreeMap::from([("arg0".to_owned(), 2)]));
    let three = unbound([tuple([x(), x(), x()])], []);
    assert_eq!(
        messages(settle(&[two.clone(), three])),
        [
            "e1: the number of arguments for `arg0` is 3, but 2 in e0 (a list of tensors must have the same length in \
             every entry)"
        ]
    );
    let optional = [unbound([], [("hx", tuple([x(), x()]))]), unbound([], [])];
    assert!(
        messages(settle(&optional))[0].starts_with("e1: the number of arguments for `hx` is 1, but 2 in e0")
    );
    assert!(messages(settle(&[two, unbound([list([])], [])]))[0].contains("for `arg0` is 1, but 2"));
}

#[test]
fn job_without_entries_has_no_signature() {
    assert_eq!(settle(&[]), Err(vec![SignatureError::NoEntries]));
}

#[test]
fn too_many_different_names_are_refused() {
    let mut builder = SignatureBuilder::new(None, BTreeMap::new());
    for index in 0..5000 {
        let name = format!("name{index}");
        builder.observe("e", &unbound([], [(name.as_str(), int(1))]));
    }
    let errors = builder.finish().unwrap_err();
    assert!(matches!(errors[..], [SignatureError::TooMany { .. }]), "{errors:?}");
}

/// Makes calls of f(arg0, arg1, *, a, b, c, d), with some of the keywords in any order.
fn call() -> impl Strategy<Value = (Vec<String>, Vec<i64>)> {
    let keywords = prop::sample::subsequence(vec!["a", "b", "c", "d"], 0..=4).prop_shuffle();
    (keywords, prop::collection::vec(0..3_i64, 2))
        .prop_map(|(names, positions)| (names.into_iter().map(str::to_owned).collect(), positions))
}

proptest! {
    /// Each entry is bound to the same parameters in the same order, regardless of the keywords that the entries use.
    /// Further entries only append parameters.
    #[test]
    fn every_entry_gets_every_parameter(calls in prop::collection::vec(call(), 1..8)) {
        let entries: Vec<Entry> = calls
            .iter()
            .map(|(names, positions)| {
                unbound(positions.iter().map(|&value| int(value)), names.iter().map(|name| (name.as_str(), int(9))))
            })
            .collect();
        let signature = settle(&entries).unwrap();
        for entry in &entries {
            let arguments = bind(entry, &signature).unwrap();
            let names: Vec<&String> = arguments.iter().map(|argument| &argument.parameter).collect();
            prop_assert_eq!(names, signature.params.iter().collect::<Vec<_>>());
        }
        let fewer = settle(&entries[..1]).unwrap();
        prop_assert!(signature.params.starts_with(&fewer.params));
        let order: Vec<&str> = signature.params.iter().map(String::as_str).collect();
        let pinned = settle_with(&entries, Some(&order), &[]).unwrap();
        prop_assert_eq!(pinned.digest(), signature.digest());
    }
}
