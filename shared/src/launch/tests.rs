//! Tests expressions by comparison with an independent evaluator, and checks that errors point to the right part of the
//! text.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::arguments::{Argument, ArgumentValue, OutputTensor, PlainValue};
use crate::capture::{DType, Tensor};
use crate::ids::StorageId;
use crate::units::Bytes;

fn tensor(shape: &[u64]) -> Arc<Tensor> {
    Arc::new(Tensor::dense(DType::Float32, shape, StorageId(0)))
}

fn argument(path: &str, value: ArgumentValue) -> Argument {
    let parameter = path.split('[').next().unwrap_or(path).to_owned();
    Argument { parameter, path: path.to_owned(), value }
}

fn arguments() -> Vec<Argument> {
    let plain = |name, value| argument(name, ArgumentValue::Plain(value));
    vec![
        argument("input", ArgumentValue::Tensor(tensor(&[8, 5]))),
        argument("weight", ArgumentValue::Tensor(tensor(&[7, 3]))),
        argument("parts[0]", ArgumentValue::Tensor(tensor(&[2]))),
        argument("parts[1]", ArgumentValue::Tensor(tensor(&[4]))),
        plain("dim", PlainValue::Int(-1)),
        plain("eps", PlainValue::Float(1e-5)),
        plain("training", PlainValue::Bool(true)),
        plain("bias", PlainValue::None),
        plain("normalized_shape", PlainValue::Ints(vec![6, 5])),
        plain("approximate", PlainValue::Str("tanh".to_owned())),
    ]
}

fn outputs() -> Vec<OutputTensor> {
    vec![OutputTensor { path: "output".to_owned(), tensor: tensor(&[8, 3]), arguments: Vec::new() }]
}

fn expression(text: &str) -> Expression {
    Expression::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

fn step(grid: &str, block: &str, shared: &str, args: &[&str]) -> Launch {
    let one = || Expression::number(1);
    Launch {
        steps: vec![LaunchStep {
            symbol: "run".to_owned(),
            grid: [expression(grid), one(), one()],
            block: [expression(block), one(), one()],
            shared_mem: expression(shared),
            args: args.iter().map(|arg| LaunchArg::parse(arg).expect("an argument")).collect(),
        }],
        workspaces: vec![
            Workspace { name: "scratch".to_owned(), bytes: expression("out.numel * 4") },
            Workspace { name: "more".to_owned(), bytes: expression("scratch.bytes + 1") },
        ],
    }
}

fn resolved(launch: &Launch) -> Result<ResolvedLaunch, LaunchError> {
    resolve(launch, &arguments(), &outputs())
}

/// Evaluates an expression as the size of a workspace, because only workspaces can be this large.
fn value_of(text: &str) -> i64 {
    let launch = Launch {
        workspaces: vec![Workspace { name: "w".to_owned(), bytes: expression(text) }],
        ..Launch::default()
    };
    let resolved = resolved(&launch).unwrap_or_else(|error| panic!("{text}: {error}"));
    i64::try_from(resolved.workspaces[0].get()).expect("a size")
}

#[test]
fn expressions_combine_shapes_parameters_and_numbers() {
    for (text, expected) in [
        ("input.numel", 40),
        ("weight.shape[1]", 3),
        ("weight.shape[-2]", 7),
        ("input.stride[0]", 5),
        ("weight.ndim", 2),
        ("weight.itemsize", 4),
        ("weight.bytes", 84),
        ("parts.numel", 2),
        ("parts[1].numel", 4),
        ("out.numel", 24),
        ("output.shape[0]", 8),
        ("out[0].shape[1]", 3),
        ("dim + 1", 0),
        ("training", 1),
        ("normalized_shape[-1]", 5),
        ("normalized_shape.numel", 2),
        ("ceil_div(out.numel, 7)", 4),
        ("min(3, 1, 2) * max(4, 5)", 5),
        ("2 + 3 * 4 - 10 / 3 % 2", 13),
        ("(2 + 3) * 4", 20),
        ("10 - 3 - 2", 5),
        ("- 7 / 2 + 100", 96),
        ("-7 % 4", 1),
        ("ceil_div(-7, 2) + 100", 97),
        ("--5", 5),
        ("9223372036854775807", i64::MAX),
    ] {
        assert_eq!(value_of(text), expected, "{text}");
    }
}

#[test]
fn syntax_errors_point_to_the_faulty_part() {
    for (text, part, message) in [
        ("", "", "expected a number, a name or `(`, found the end"),
        ("out.numel +", "", "found the end"),
        ("out.numel 256", "256", "expected an operator or the end"),
        ("ceil_div(out.numel 256)", "256", "expected `)`"),
        ("cdiv(out.numel, 256)", "cdiv", "not a function (known: min, max, ceil_div)"),
        ("ceil_div(1)", "ceil_div(1)", "takes two operands, found 1"),
        ("1 + min(2)", "min(2)", "takes at least two operands, found 1"),
        ("out.size", "size", "expected `numel`, `shape[…]`"),
        ("out.shape", "", "expected `[`"),
        ("out.shape[n]", "n", "expected a number"),
        ("out // 2", "/", "expected a number, a name or `(`"),
        ("2 ** 3", "*", "expected a number"),
        ("a ? b", "?", "is not allowed in an expression"),
        ("1 + 99999999999999999999", "99999999999999999999", "at most 9223372036854775807"),
        ("((1)", "", "expected `)`"),
        ("größe.nummel", "nummel", "expected `numel`"),
    ] {
        let error = Expression::parse(text).expect_err(text);
        assert_eq!(&text[error.at.clone()], part, "{text}: {error}");
        assert!(error.message.contains(message), "{text}: {error}");
    }
    let error = Expression::parse("größe.nummel").expect_err("a mistake").to_string();
    assert!(error.starts_with("column 7 of `größe.nummel`: "), "{error}");
    let error = LaunchArg::parse("64:int").expect_err("a mistake");
    assert_eq!((&error.text[error.at.clone()], error.at.start), ("int", 3));
    assert!(error.message.contains("not a type (known: bool, i8, "), "{error}");
}

#[test]
fn depth_and_length_are_limited() {
    let within = |count: usize| format!("{}1{}", "(".repeat(count), ")".repeat(count));
    Expression::parse(&within(MAX_DEPTH - 1)).expect("deep enough");
    for text in [within(MAX_DEPTH), "-".repeat(MAX_DEPTH + 1), "1".to_owned() + &"+1".repeat(MAX_DEPTH)] {
        let error = Expression::parse(&text).expect_err("too deep");
        assert!(error.message.contains("nested operations"), "{error}");
    }
    let error = Expression::parse(&" ".repeat(MAX_TEXT + 1)).expect_err("too long");
    assert!(error.message.contains("at most 1024 bytes"), "{error}");
}

#[test]
fn launches_are_evaluated_for_an_entry() {
    let args =
        ["input", "weight", "parts[1]", "out", "scratch", "bias", "input.numel", "weight.shape[1]:i32"];
    let launch = step("ceil_div(out.numel, 16)", "16", "16 * out.itemsize", &args);
    let resolved = resolved(&launch).expect("a resolved launch");
    assert_eq!(resolved.workspaces, [Bytes::new(96), Bytes::new(97)]);
    let [step] = &*resolved.steps else { panic!("{resolved:?}") };
    assert_eq!((step.grid, step.block, step.shared_mem), ([2, 1, 1], [16, 1, 1], 64));
    let shown: Vec<String> = step.args.iter().map(|value| format!("{value:?}")).collect();
    assert_eq!(
        shown,
        [
            "Pointer(Argument(0))",
            "Pointer(Argument(1))",
            "Pointer(Argument(3))",
            "Pointer(Output(0))",
            "Pointer(Workspace(0))",
            "Null",
            "Scalar(40:i64)",
            "Scalar(3:i32)",
        ]
    );
}

#[test]
fn numbers_are_converted_to_the_type_of_their_parameter() {
    let args = [
        "1e-5:f32", "64:i32", "eps", "eps:f32", "dim", "dim:i8", "training", "-0.5", "3:f16", "-1:bf16",
        "0:bool",
    ];
    let resolved = resolved(&step("1", "1", "0", &args)).expect("a resolved launch");
    let shown: Vec<String> = resolved.steps[0].args.iter().map(|value| format!("{value:?}")).collect();
    let expected = [
        "1e-5:f32",
        "64:i32",
        "1e-5:f64",
        "1e-5:f32",
        "-1:i64",
        "-1:i8",
        "true:bool",
        "-0.5:f64",
        "3.0:f16",
        "-1.0:bf16",
        "false:bool",
    ];
    assert_eq!(shown, expected.map(|text| format!("Scalar({text})")));
    let bytes = |at: usize| match &resolved.steps[0].args[at] {
        Value::Scalar(scalar) => scalar.bytes().to_vec(),
        other => panic!("{other:?}"),
    };
    assert_eq!(bytes(0), 1e-5f32.to_le_bytes());
    assert_eq!(bytes(1), [64, 0, 0, 0]);
    assert_eq!(bytes(5), [0xff]);
    assert_eq!(bytes(6), [1]);
}

/// The first numbers are just above the midpoint between two numbers of their type. If they were rounded to a wider
/// type first, they would end up exactly at the midpoint, and would then be rounded towards zero. The last numbers are
/// at the end of their type's range.
#[test]
fn number_just_above_a_midpoint_is_rounded_once() {
    let (f16_above, bf16_above) =
        (1.0 + 2_f64.powi(-11) + 2_f64.powi(-40), 1.0 + 2_f64.powi(-8) + 2_f64.powi(-40));
    let above_half_of_the_smallest = 2_f64.powi(-25) * (1.0 + f64::EPSILON);
    let cases = [
        (format!("{f16_above:?}:f16"), 0x3c01_u16.to_le_bytes().to_vec()),
        (format!("-{f16_above:?}:f16"), 0xbc01_u16.to_le_bytes().to_vec()),
        (format!("{above_half_of_the_smallest:?}:f16"), 1_u16.to_le_bytes().to_vec()),
        (format!("{bf16_above:?}:bf16"), 0x3f81_u16.to_le_bytes().to_vec()),
        (format!("{}:bf16", (1_i64 << 60) + (1 << 52) + 1), 0x5d81_u16.to_le_bytes().to_vec()),
        (format!("{}:f32", (1_i64 << 60) + (1 << 36) + 1), 0x5d80_0001_u32.to_le_bytes().to_vec()),
        (format!("{}:f32", -(1_i64 << 60) - (1 << 36) - 1), 0xdd80_0001_u32.to_le_bytes().to_vec()),
        ("1e39:bf16".to_owned(), 0x7f80_u16.to_le_bytes().to_vec()),
        ("65519:f16".to_owned(), 0x7bff_u16.to_le_bytes().to_vec()),
        ("65520:f16".to_owned(), 0x7c00_u16.to_le_bytes().to_vec()),
    ];
    let args: Vec<&str> = cases.iter().map(|(text, _)| text.as_str()).collect();
    let resolved = resolved(&step("1", "1", "0", &args)).expect("a resolved launch");
    for (value, (text, wanted)) in resolved.steps[0].args.iter().zip(&cases) {
        let Value::Scalar(scalar) = value else { panic!("{value:?}") };
        assert_eq!(scalar.bytes(), wanted, "{text}");
    }
}

#[test]
fn expression_without_a_value_is_reported_with_its_key_and_text() {
    for (grid, block, shared, arg, expected) in [
        (
            "wieght.numel",
            "1",
            "0",
            "out",
            "launch[0].grid `wieght.numel`: no argument, output or workspace has this name (did you mean `weight`?)",
        ),
        ("1 + eps", "1", "0", "out", "launch[0].grid `eps` in `1 + eps`: it is a float, not a whole number"),
        ("weight", "1", "0", "out", "launch[0].grid `weight`: it is a tensor, not a number"),
        ("1", "2048", "0", "out", "launch[0].block `2048`: it is 2048; it must be 1 to 1024"),
        ("1", "0", "0", "out", "launch[0].block `0`: it is 0; it must be 1 to 1024"),
        (
            "out.numel - 25",
            "1",
            "0",
            "out",
            "launch[0].grid `out.numel - 25`: it is -1; it must be 0 to 2147483647",
        ),
        ("1", "1", "1000000", "out", "launch[0].shared_mem `1000000`: it is 1000000; it must be 0 to 232448"),
        (
            "1 / (dim + 1)",
            "1",
            "0",
            "out",
            "launch[0].grid `1 / (dim + 1)`: the divisor is 0; it must be greater than 0",
        ),
        ("9223372036854775807 * 2", "1", "0", "out", "the result does not fit in 64 bits"),
        ("weight.shape[2]", "1", "0", "out", "index 2 is out of range: the length is 2"),
        ("parts[2].numel", "1", "0", "out", "index 2 is out of range: the length is 2"),
        ("dim.numel", "1", "0", "out", "an int has no `numel`"),
        ("bias.numel", "1", "0", "out", "it is None in this entry"),
        ("1", "1", "0", "bias:i32", "launch[0].args[0] `bias` in `bias:i32`: it is None in this entry"),
        (
            "1",
            "1",
            "0",
            "weight:f32",
            "it is a tensor, which is passed as an address without a type (leave out `:f32`)",
        ),
        ("1", "1", "0", "300:i8", "launch[0].args[0] `300` in `300:i8`: 300 is not a value of the type `i8`"),
        ("1", "1", "0", "-1:u32", "-1 is not a value of the type `u32`"),
        ("1", "1", "0", "1.5:i32", "1.5 is not a value of the type `i32`"),
        ("1", "1", "0", "2:bool", "2 is not a value of the type `bool`"),
        (
            "1",
            "1",
            "0",
            "normalized_shape",
            "it is a list, which cannot be passed to a kernel as a whole (pass its elements: `name[0]`)",
        ),
        ("1", "1", "0", "approximate", "it is a string, which cannot be passed to a kernel"),
        ("1", "1", "0", "parts", "it is a list of 2 tensors, which cannot be passed"),
    ] {
        let error = resolved(&step(grid, block, shared, &[arg])).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}\n{expected}");
    }
    let mut launch = step("1", "32", "0", &["out"]);
    launch.steps[0].block = ["32", "32", "2"].map(expression);
    let error = resolved(&launch).expect_err("too many").to_string();
    assert_eq!(error, "launch[0].block `32, 32, 2`: the block has 2048 threads; it must have at most 1024");
}

#[test]
fn launch_without_blocks_is_empty() {
    let resolved = resolved(&step("out.numel - 24", "1", "0", &["out"])).expect("a resolved launch");
    assert!(resolved.steps[0].is_empty());
}

#[test]
fn parameter_named_out_takes_precedence_over_the_output() {
    let mut arguments = arguments();
    arguments.push(argument("out", ArgumentValue::Tensor(tensor(&[1]))));
    let resolved =
        resolve(&step("1", "1", "0", &["out", "output"]), &arguments, &outputs()).expect("a resolved launch");
    let expected = [Pointer::Argument(arguments.len() - 1), Pointer::Output(0)].map(Value::Pointer);
    assert_eq!(resolved.steps[0].args, expected);
}

/// The text of an expression, and its value as computed with wider arithmetic. The value is `None` if evaluating the
/// expression must fail.
#[derive(Clone, Debug)]
struct Sample {
    text: String,
    value: Option<i128>,
}

fn within(value: Option<i128>) -> Option<i128> {
    value.filter(|value| i64::try_from(*value).is_ok())
}

fn samples() -> impl Strategy<Value = Sample> {
    let leaf = prop_oneof![
        (0..i64::MAX).prop_map(|value| Sample { text: value.to_string(), value: Some(value.into()) }),
        (0i64..50).prop_map(|value| Sample { text: value.to_string(), value: Some(value.into()) }),
        Just(Sample { text: "input.numel".to_owned(), value: Some(40) }),
        Just(Sample { text: " weight . shape [ - 1 ] ".to_owned(), value: Some(3) }),
        Just(Sample { text: "dim".to_owned(), value: Some(-1) }),
    ];
    leaf.prop_recursive(5, 40, 2, |inner| {
        (inner.clone(), inner, 0usize..9).prop_map(|(a, b, which)| {
            let both = a.value.zip(b.value);
            let divided = both.filter(|(_, b)| *b > 0);
            let (text, value) = match which {
                0 => (format!("({} + {})", a.text, b.text), both.map(|(a, b)| a + b)),
                1 => (format!("({} - {})", a.text, b.text), both.map(|(a, b)| a - b)),
                2 => (format!("({} * {})", a.text, b.text), both.map(|(a, b)| a * b)),
                3 => (format!("({} / {})", a.text, b.text), divided.map(|(a, b)| a.div_euclid(b))),
                4 => (format!("({} % {})", a.text, b.text), divided.map(|(a, b)| a.rem_euclid(b))),
                5 => (format!("min({}, {})", a.text, b.text), both.map(|(a, b)| a.min(b))),
                6 => (format!("max({}, {})", a.text, b.text), both.map(|(a, b)| a.max(b))),
                7 => (format!("ceil_div({}, {})", a.text, b.text), divided.map(|(a, b)| -(-a).div_euclid(b))),
                _ => (format!("-({})", a.text), a.value.map(|a| -a)),
            };
            Sample { text, value: within(value) }
        })
    })
}

proptest! {
    #[test]
    fn expressions_have_the_value_of_wider_arithmetic(sample in samples()) {
        prop_assume!(sample.text.len() <= MAX_TEXT);
        let names = super::names::Names { arguments: &arguments(), outputs: &outputs(), workspaces: vec![] };
        let parsed = Expression::parse(&sample.text);
        let found = parsed.map(|it| super::evaluate::whole(&it.root, &names).ok().map(i128::from));
        prop_assert_eq!(found, Ok(sample.value), "{}", sample.text);
    }

    #[test]
    fn syntax_errors_lie_within_the_text(text in "[-a-z0-9_.,:()\\[\\]+*/% é]{0,40}|\\PC{0,40}") {
        for error in [Expression::parse(&text).err(), LaunchArg::parse(&text).err()].into_iter().flatten() {
            prop_assert!(error.text.get(error.at.clone()).is_some(), "{}", error);
        }
    }

    #[test]
    fn expressions_and_arguments_survive_serialization(sample in samples(), kind in 0usize..13) {
        prop_assume!(sample.text.len() < MAX_TEXT - 8);
        let parsed = Expression::parse(&sample.text).expect("an expression");
        let json = serde_json::to_string(&parsed).expect("json");
        prop_assert_eq!(&serde_json::from_str::<String>(&json).expect("a string"), &sample.text);
        prop_assert_eq!(serde_json::from_str::<Expression>(&json).expect("an expression"), parsed);
        let arg = format!("{}:{}", sample.text, super::scalar::TYPES[kind].0);
        let parsed = LaunchArg::parse(&arg).expect("an argument");
        let json = serde_json::to_string(&parsed).expect("json");
        prop_assert_eq!(serde_json::from_str::<LaunchArg>(&json).expect("an argument"), parsed);
    }
}
