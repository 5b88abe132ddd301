//! Tests of unknown names in pickles. The pickle's description of them is kept, nothing is imported or called, and
//! memory stays in proportion to the file.

use opt_shared::arguments::{PlainValue, plain_value};
use opt_shared::capture::{CaptureFile, Value};
use serde_json::{Value as Json, json};

use crate::files::{capture_of, inspected, outcome_of, with_file};
use crate::memory::MAX_MEMORY;

fn root(pickle: &[u8]) -> Json {
    let (document, peak) = inspected(&capture_of(pickle));
    assert_eq!(outcome_of(&document), "ok", "{document}");
    assert!(peak < MAX_MEMORY);
    document["root"].clone()
}

fn value(pickle: &[u8]) -> Value {
    with_file(&capture_of(pickle), |path| CaptureFile::open(path).expect("a capture").root().clone())
}

fn int(value: &str) -> Json {
    json!({"type": "int", "value": value})
}

#[test]
fn unknown_name_is_kept_as_a_name() {
    assert_eq!(root(b"\x80\x02cmod\nf\n."), json!({"type": "global", "name": "mod.f"}));
    assert_eq!(root(b"\x80\x02ctorch.nn.functional\nrelu\n.")["name"], "torch.nn.functional.relu");
    assert_eq!(
        root(b"\x80\x02cmod\nC\n)\x81}U\x01xK\x01sb."),
        json!({"type": "object", "class": "mod.C", "new": [], "state": [
            {"type": "dict", "items": [[{"type": "str", "value": "x"}, int("1")]]}
        ]})
    );
    // Here one class is derived from list, and one from dict.
    assert_eq!(root(b"\x80\x02cmod\nL\n)\x81(K\x01K\x02e.")["state"], json!([int("1"), int("2")]));
    assert_eq!(root(b"\x80\x02cmod\nD\n)R(K\x01K\x02u.")["state"], json!([int("1"), int("2")]));
    assert_eq!(root(b"\x80\x04cmod\nK\n)}U\x01aK\x01s\x92.")["new"][0]["type"], "dict");
    // This object contains itself.
    assert_eq!(root(b"\x80\x02cmod\nC\n)\x81q\0h\0b.")["state"], json!([{"type": "cycle", "to": "$"}]));
}

/// Python 3.11 writes such pickles for `C.A` of an enum and for a named tuple such as `Point(1, C.A)`.
#[test]
fn members_of_enums_and_named_tuples_are_their_values() {
    let member = value(b"\x80\x02cmod\nC\nK\x07\x85R.");
    assert_eq!(plain_value(&member), Ok(PlainValue::Int(7)));
    let text = value(b"\x80\x02cmod\nC\nX\x03\0\0\0sum\x85R.");
    assert_eq!(plain_value(&text), Ok(PlainValue::Str("sum".to_owned())));
    let point = value(b"\x80\x02cmod\nPoint\nK\x01cmod\nC\nK\x07\x85R\x86\x81.");
    assert_eq!(plain_value(&point), Ok(PlainValue::Ints(vec![1, 7])));
    for pickle in
        [&b"\x80\x02cmod\nC\n)\x81}U\x01xK\x01sb."[..], b"\x80\x02cmod\nC\n.", b"\x80\x02cmod\nC\n]\x85R."]
    {
        let refused = plain_value(&value(pickle)).expect_err("its class is not known").to_string();
        assert!(refused.contains("`mod.C`") && refused.contains("`params`"), "{refused}");
    }
}

#[test]
fn harmful_names_are_refused() {
    for pickle in [
        &b"cposix\nsystem\n."[..],
        b"cos.path\njoin\n.",
        b"c__builtin__\ngetattr\n.",
        b"cbuiltins\neval\n.",
        b"\x80\x04\x8c\x05torch\x8c\x10serialization.os\x93.".as_slice(),
        b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93.".as_slice(),
        b"ctorch._utils\n_rebuild_something\n.",
        b"cfunctools\npartial\n.",
    ] {
        let (document, _) = inspected(&capture_of(pickle));
        assert!(matches!(outcome_of(&document).as_str(), "unsafe_global" | "bad_pickle"), "{document}");
    }
    let derived =
        b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor\ncmod\nT\n)}tR.";
    let (document, _) = inspected(&capture_of(derived));
    assert_eq!(outcome_of(&document), "unsupported");
    assert!(document["message"].as_str().is_some_and(|why| why.contains("`mod.T`")), "{document}");
}

#[test]
fn results_of_calls_cannot_be_called_and_calls_are_limited() {
    for pickle in [&b"\x80\x02cmod\nf\n)R)R."[..], b"\x80\x02cmod\nf\nK\x01b.", b"\x80\x02cmod\nf\nK\x01a."] {
        assert_eq!(outcome_of(&inspected(&capture_of(pickle)).0), "bad_pickle");
    }
    let many = [&b"\x80\x02cmod\nf\nq\0("[..], &b"h\0)R".repeat(1 << 18), b"l."].concat();
    let (document, peak) = inspected(&capture_of(&many));
    assert_eq!(outcome_of(&document), "limit");
    assert!(peak < MAX_MEMORY, "{peak}");
}

/// numpy swaps the bytes of an array that is filled from a state, as in protocols up to 4, but not the bytes of an
/// array made from a buffer.
#[test]
fn big_endian_items_are_swapped_as_in_numpy() {
    let dtype = |name: &str| {
        [
            b"cnumpy\ndtype\n(U\x02",
            name.as_bytes(),
            b"tR(K\x03U\x01>NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb",
        ]
        .concat()
    };
    let bytes = |hex: &[u8]| {
        let text: String = hex.iter().map(|&byte| char::from(byte)).collect();
        let length = u32::try_from(text.len()).expect("small").to_le_bytes();
        [b"c_codecs\nencode\n(X", &length[..], text.as_bytes(), b"U\x06latin1tR"].concat()
    };
    let start = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\x01btR(K\x01(K\x02t";
    let by_state =
        |name: &str, data: &[u8]| [&start[..], &dtype(name), b"\x89", &bytes(data), b"tb."].concat();
    let head = |root: &Json| (root["dtype"].clone(), root["head_hex"].clone());
    assert_eq!(head(&root(&by_state("i2", &[1, 2, 3, 4]))), (json!("<i2"), json!("02010403")));
    let complex = root(&by_state("c8", &(1..=16).collect::<Vec<u8>>()));
    assert_eq!(head(&complex), (json!("<c8"), json!("0403020108070605".to_owned() + "0c0b0a09100f0e0d")));
    let buffer = [
        &b"\x80\x02cnumpy.core.numeric\n_frombuffer\n("[..],
        &bytes(&[1, 2]),
        &dtype("i2"),
        b"(K\x01tU\x01CtR.",
    ]
    .concat();
    assert_eq!(head(&root(&buffer)), (json!(">i2"), json!("0102")));
    let scalar =
        [&b"\x80\x02cnumpy.core.multiarray\nscalar\n("[..], &dtype("i2"), &bytes(&[1, 2]), b"tR."].concat();
    assert_eq!(root(&scalar), json!({"type": "numpy_scalar", "dtype": "<i2", "hex": "0201"}));
}
