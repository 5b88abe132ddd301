//! Property tests of the streaming comparison. For random shapes, types, layouts, chunk sizes and injected errors, its
//! results must agree with those of a naive comparison that keeps both tensors in memory.

use opt_shared::capture::extent_elements;
use opt_shared::units::{Bytes, to_index};
use proptest::prelude::*;

use super::*;

struct Naive {
    /// The row-major positions of the elements that fail.
    failed: Vec<usize>,
    not_finite: bool,
    absolute: f64,
    relative: f64,
    relative_l2: f64,
}

/// Compares the tensors of a case element by element, directly by the definitions of the figures.
fn naive(case: &Case) -> Naive {
    let used = case.rules.tolerance.used;
    let mut found =
        Naive { failed: vec![], not_finite: false, absolute: 0.0, relative: 0.0, relative_l2: 0.0 };
    let (mut difference_squares, mut expected_squares) = (0.0, 0.0);
    for (position, (_, expected, actual, _)) in case.pairs().into_iter().enumerate() {
        let mut fails = false;
        // An f64 cannot represent every integer above 2^53, so integers are subtracted as integers.
        let whole = match (expected, actual) {
            (Number::Integer(expected), Number::Integer(actual)) => Some(actual - expected),
            _ => None,
        };
        for (expected, actual) in expected.parts().zip(actual.parts()) {
            if expected.is_finite() && actual.is_finite() {
                #[expect(clippy::cast_precision_loss, reason = "as the comparison rounds a difference")]
                let difference = whole.map_or(actual - expected, |whole| whole as f64).abs();
                fails |= difference > used.atol + used.rtol * expected.abs();
                found.absolute = found.absolute.max(difference);
                if expected != 0.0 {
                    found.relative = found.relative.max(difference / expected.abs());
                }
                difference_squares += difference * difference;
                expected_squares += expected * expected;
            } else if expected.to_bits() != actual.to_bits() && !(expected.is_nan() && actual.is_nan()) {
                fails = true;
                found.not_finite = true;
            }
        }
        if fails {
            found.failed.push(position);
        }
    }
    found.relative_l2 =
        if difference_squares == 0.0 { 0.0 } else { (difference_squares / expected_squares).sqrt() };
    found
}

fn is_nan(number: &Number) -> bool {
    number.parts().any(f64::is_nan)
}

/// A complex element that has both a NaN and an infinity counts as NaN, not as infinite.
fn is_infinite(number: &Number) -> bool {
    !is_nan(number) && number.parts().any(f64::is_infinite)
}

/// Returns the stride of each axis. `order` lists the axes, the fastest first. The strides are those of a tensor
/// without gaps in this order, multiplied by `stretch`. One axis may be expanded (stride 0).
fn strides(shape: &[u64], order: &[usize], stretch: u64, expanded: Option<usize>) -> Vec<u64> {
    let mut stride = vec![0; shape.len()];
    let mut next = stretch;
    for &axis in order {
        stride[axis] = next;
        next *= shape[axis].max(1);
    }
    if let Some(axis) = expanded
        && let Some(stride) = stride.get_mut(axis)
    {
        *stride = 0;
    }
    stride
}

prop_compose! {
    fn layout(rank: usize)(
        order in Just((0..rank).collect::<Vec<_>>()).prop_shuffle(),
        stretch in prop_oneof![4 => Just(1_u64), 1 => 2_u64..5, 1 => Just(700)],
        expanded in prop::option::weighted(0.2, 0..rank.max(1)),
    ) -> (Vec<usize>, u64, Option<usize>) {
        (order, stretch, expanded)
    }
}

prop_compose! {
    fn shapes()(
        rank in 0_usize..5,
    )(
        shape in prop::collection::vec(prop_oneof![8 => 1_u64..7, 2 => 7_u64..20, 1 => Just(0)], rank),
        expected in layout(rank),
        actual in prop::option::weighted(0.3, layout(rank)),
    ) -> (Vec<u64>, Vec<u64>, Vec<u64>) {
        let of = |layout: &(Vec<usize>, u64, Option<usize>)| strides(&shape, &layout.0, layout.1, layout.2);
        let expected_stride = of(&expected);
        let actual_stride = actual.map_or_else(|| expected_stride.clone(), |layout| of(&layout));
        (shape, expected_stride, actual_stride)
    }
}

/// Generates values that occur in real outputs, and special values that are hard to compare.
fn value() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => -100.0_f64..100.0,
        2 => Just(0.0),
        1 => Just(-0.0),
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
        1 => Just(f64::NEG_INFINITY),
        1 => 1e-9_f64..1e-6,
    ]
}

prop_compose! {
    fn cases()(
        (shape, expected_stride, actual_stride) in shapes(),
    )(
        dtype in prop::sample::select(DType::ALL.to_vec()),
        values in prop::collection::vec(value(), 1..80),
        errors in prop::collection::vec((any::<prop::sample::Index>(), value()), 0..6),
        drift in prop_oneof![3 => Just(1.0), 1 => 0.5_f64..1.5, 1 => 0.99999_f64..1.00001],
        (conjugate, negative) in (any::<bool>(), any::<bool>()),
        chunk in prop_oneof![0_u64..600, Just(64 << 10)],
        ratio in prop_oneof![4 => Just(1.0), 1 => 0.5_f64..1.0],
        shape in Just(shape), expected_stride in Just(expected_stride), actual_stride in Just(actual_stride),
    ) -> Case {
        let memory = |stride: &[u64]| vec![0xc3; to_index(extent_elements(&shape, stride)) * dtype.element_len()];
        let mut tolerance = Tolerance::for_dtype(&standard(), dtype, 1.0);
        tolerance.required_matched_ratio = ratio;
        let complex = dtype.kind() == Kind::Complex;
        let real = matches!(dtype.kind(), Kind::Float);
        let mut case = Case {
            dtype,
            expected: memory(&expected_stride),
            actual: memory(&actual_stride),
            shape: shape.clone(),
            expected_stride: expected_stride.clone(),
            actual_stride: actual_stride.clone(),
            // torch sets the negative flag only on floats and complex numbers, and the conjugate flag only on complex
            // numbers.
            signs: Signs { conjugate: conjugate && complex, negative: negative && (complex || real) },
            rules: Rules { chunk: Bytes::new(chunk), ..rules(tolerance) },
        };
        let count: u64 = shape.iter().product();
        let size = dtype.element_len();
        for position in 0..count {
            let mut rest = position;
            let (mut from, mut to) = (0, 0);
            for axis in (0..shape.len()).rev() {
                let at = rest % shape[axis];
                rest /= shape[axis];
                from += to_index(at * expected_stride[axis]) * size;
                to += to_index(at * actual_stride[axis]) * size;
            }
            let value = values[to_index(position) % values.len()];
            case.expected[from..from + size].copy_from_slice(&encode(dtype, value));
            let mut actual = encode(dtype, value * drift);
            for (index, error) in &errors {
                if index.index(to_index(count)) as u64 == position {
                    actual = encode(dtype, *error);
                }
            }
            case.actual[to..to + size].copy_from_slice(&actual);
        }
        case
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn streaming_comparison_agrees_with_naive_comparison(case in cases()) {
        let pairs = case.pairs();
        let reference = naive(&case);
        let found = case.run();
        prop_assert_eq!(to_index(found.elements), pairs.len());
        prop_assert_eq!(to_index(found.failed), reference.failed.len());
        prop_assert!(alike(found.max_absolute_error, reference.absolute), "{:?} {}", found, reference.absolute);
        prop_assert!(alike(found.max_relative_error, reference.relative), "{:?} {}", found, reference.relative);
        let exact = matches!(case.dtype.kind(), Kind::Integer | Kind::Bool);
        prop_assert!(alike(found.relative_l2, reference.relative_l2), "{:?} {}", found, reference.relative_l2);
        // No case has more than one chunk of 64 Ki elements.
        prop_assert!(alike(found.worst_chunk_l2, reference.relative_l2));

        let count = |elements: usize| f64::from(u32::try_from(elements).expect("few"));
        let matched = count(pairs.len() - reference.failed.len());
        let passed = matched >= case.rules.tolerance.required_matched_ratio * count(pairs.len())
            && !reference.not_finite
            && (exact || reference.relative_l2 <= case.rules.tolerance.used.rel_l2);
        // If the norm equals its bound, the verdict may depend on the order of summation.
        if exact || !alike(reference.relative_l2, case.rules.tolerance.used.rel_l2) {
            prop_assert_eq!(found.passed, passed);
        }
        prop_assert_eq!(found.mismatch.is_none(), found.passed);
        prop_assert_eq!(found.detail().is_none(), found.passed);
        let Some(mismatch) = found.mismatch else { return Ok(()) };

        let index_of = |position: usize| pairs[position].0.clone();
        let bad: Vec<Vec<u64>> = reference.failed.iter().take(8).map(|&position| index_of(position)).collect();
        prop_assert_eq!(&mismatch.bad_indices, &bad);
        if let Some(first) = bad.first() {
            prop_assert_eq!(&mismatch.index, first);
        }
        let shown = pairs.iter().find(|pair| pair.0 == mismatch.index).expect("an index of the tensor");
        prop_assert_eq!(&mismatch.expected, &shown.1.to_string());
        prop_assert_eq!(&mismatch.actual, &shown.2.to_string());
        let count = |test: &dyn Fn(&Number) -> bool, actual: bool| {
            pairs.iter().filter(|pair| test(if actual { &pair.2 } else { &pair.1 })).count() as u64
        };
        prop_assert_eq!(mismatch.actual_nan, count(&is_nan, true));
        prop_assert_eq!(mismatch.expected_nan, count(&is_nan, false));
        prop_assert_eq!(mismatch.actual_inf, count(&is_infinite, true));
        prop_assert_eq!(mismatch.expected_inf, count(&is_infinite, false));
        let min = pairs.iter().flat_map(|pair| pair.2.parts()).filter(|part| part.is_finite()).reduce(f64::min);
        prop_assert_eq!(mismatch.actual_range.is_some(), min.is_some());
        if let (Some([shown, _]), Some(min), false) = (&mismatch.actual_range, min, case.dtype == DType::Bool) {
            prop_assert!((shown.parse::<f64>().expect("a number") - min).abs() <= 1e-6 * min.abs());
        }
    }

    #[test]
    fn comparison_of_a_tensor_with_itself_is_exact(mut case in cases()) {
        case.actual = case.expected.clone();
        case.actual_stride = case.expected_stride.clone();
        case.signs = Signs::default();
        let found = case.run();
        prop_assert!(found.passed);
        prop_assert_eq!((found.failed, found.max_absolute_error, found.max_relative_error), (0, 0.0, 0.0));
        prop_assert_eq!((found.relative_l2, found.worst_chunk_l2), (0.0, 0.0));
    }

    #[test]
    fn chunk_size_does_not_change_the_result(case in cases(), other in 0_u64..5000) {
        let mut again = case.clone();
        again.rules.chunk = Bytes::new(other);
        let (first, second) = (case.run(), again.run());
        prop_assert_eq!(first.passed, second.passed);
        prop_assert_eq!(first.failed, second.failed);
        prop_assert_eq!(first.mismatch.map(|m| (m.bad_indices, m.pattern)), second.mismatch.map(|m| (m.bad_indices, m.pattern)));
    }
}
