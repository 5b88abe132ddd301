//! The streaming comparison against a naive one that holds everything and knows one loop: over random shapes,
//! types, layouts, chunk sizes and injected errors both must say the same.

use opt_shared::capture::{DType, Kind, contiguous_strides, extent_elements};
use opt_shared::outcome::{Pattern, ToleranceUsed};
use opt_shared::settings::{Nonfinite, ToleranceProfile, VerifySettings};
use opt_shared::units::Bytes;
use proptest::prelude::*;

use super::decode::{Number, Signs};
use super::tolerance::tests::settings;
use super::*;

/// Two tensors in memory, and how to compare them.
#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    shape: Vec<u64>,
    expected_stride: Vec<u64>,
    actual_stride: Vec<u64>,
    expected: Vec<u8>,
    actual: Vec<u8>,
    signs: Signs,
    rules: Rules,
}

impl Case {
    /// Dense on both sides, all elements made by `make` from their row-major position, on both sides alike.
    fn filled(dtype: DType, shape: &[u64], mut make: impl FnMut(usize) -> f64) -> Self {
        let stride = contiguous_strides(shape);
        let count: u64 = shape.iter().product();
        let expected: Vec<u8> = (0..count as usize).flat_map(|at| encode(dtype, make(at))).collect();
        Self {
            dtype,
            shape: shape.to_vec(),
            expected_stride: stride.clone(),
            actual_stride: stride,
            actual: expected.clone(),
            expected,
            signs: Signs::default(),
            rules: rules(Tolerance::for_dtype(&standard(), dtype, 1.0)),
        }
    }

    fn set_actual(&mut self, at: usize, value: f64) {
        let size = self.dtype.size() as usize;
        self.actual[at * size..(at + 1) * size].copy_from_slice(&encode(self.dtype, value));
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            output: "output",
            dtype: self.dtype,
            shape: &self.shape,
            expected_stride: &self.expected_stride,
            actual_stride: &self.actual_stride,
            expected_conjugate: self.signs.conjugate,
            expected_negative: self.signs.negative,
        }
    }

    fn run(&self) -> Comparison {
        let (mut expected, mut actual) = (self.expected.as_slice(), self.actual.as_slice());
        compare(&mut expected, &mut actual, &self.subject(), &self.rules).expect("memory can be read")
    }

    /// Every element in row-major order.
    fn pairs(&self) -> Vec<(Vec<u64>, Number, Number, Vec<u8>)> {
        let count: u64 = self.shape.iter().product();
        (0..count)
            .map(|position| {
                let mut index = vec![0; self.shape.len()];
                let mut rest = position;
                for axis in (0..index.len()).rev() {
                    index[axis] = rest % self.shape[axis];
                    rest /= self.shape[axis];
                }
                let bytes = |memory: &[u8], stride: &[u64]| {
                    let at: u64 = index.iter().zip(stride).map(|(&at, &step)| at * step).sum();
                    let size = self.dtype.size();
                    memory[(at * size) as usize..((at + 1) * size) as usize].to_vec()
                };
                let expected = Number::read(self.dtype, &bytes(&self.expected, &self.expected_stride));
                let actual = bytes(&self.actual, &self.actual_stride);
                let number = Number::read(self.dtype, &actual);
                (index, expected.signed(self.signs, self.dtype), number, actual)
            })
            .collect()
    }
}

fn standard() -> VerifySettings {
    settings(ToleranceProfile::Standard)
}

fn rules(tolerance: Tolerance) -> Rules {
    Rules { tolerance, nonfinite: Nonfinite::Match, poison: Some(Poison::byte(0x5a)), chunk: DEFAULT_CHUNK }
}

fn floats() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|dtype| matches!(dtype.kind(), Kind::Float | Kind::Complex))
}

/// The nearest value of the type; for complex both parts, the second one halved.
fn encode(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::Float64 => value.to_le_bytes().to_vec(),
        DType::Float32 => (value as f32).to_le_bytes().to_vec(),
        DType::Float16 => half::f16::from_f64(value).to_le_bytes().to_vec(),
        DType::BFloat16 => half::bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::Complex32 => [encode(DType::Float16, value), encode(DType::Float16, value / 2.0)].concat(),
        DType::Complex64 => [encode(DType::Float32, value), encode(DType::Float32, value / 2.0)].concat(),
        DType::Complex128 => [encode(DType::Float64, value), encode(DType::Float64, value / 2.0)].concat(),
        DType::Bool => vec![u8::from(value != 0.0)],
        _ if dtype.kind() == Kind::Integer => {
            let whole = value as i64;
            whole.to_le_bytes()[..dtype.size() as usize].to_vec()
        }
        _ => {
            let distance = |code: u8| match Number::read(dtype, &[code]).parts().next() {
                Some(found) if found.is_finite() => (found - value).abs(),
                _ => f64::INFINITY,
            };
            let nearest = (0..=u8::MAX).min_by(|&left, &right| distance(left).total_cmp(&distance(right)));
            vec![nearest.unwrap_or_default()]
        }
    }
}

struct Naive {
    failed: Vec<usize>,
    not_finite: bool,
    absolute: f64,
    relative: f64,
    relative_l2: f64,
}

fn naive(case: &Case) -> Naive {
    let used = case.rules.tolerance.used;
    let mut found =
        Naive { failed: vec![], not_finite: false, absolute: 0.0, relative: 0.0, relative_l2: 0.0 };
    let (mut difference_squares, mut expected_squares) = (0.0, 0.0);
    for (position, (_, expected, actual, _)) in case.pairs().into_iter().enumerate() {
        let mut fails = false;
        // Above 2^53 only whole numbers tell neighbours apart.
        let whole = match (expected, actual) {
            (Number::Integer(expected), Number::Integer(actual)) => Some(actual - expected),
            _ => None,
        };
        for (expected, actual) in expected.parts().zip(actual.parts()) {
            if expected.is_finite() && actual.is_finite() {
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

fn alike(left: f64, right: f64) -> bool {
    left == right || (left - right).abs() <= 1e-9 * left.abs().max(right.abs())
}

/// A stride per axis: the dense ones of some order of the axes, stretched, and perhaps one axis expanded.
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

/// Values that real outputs hold, and those that break comparisons.
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
        let memory = |stride: &[u64]| vec![0xc3; extent_elements(&shape, stride) as usize * dtype.size() as usize];
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
            // torch has these flags on floats only, the conjugate one on complex only.
            signs: Signs { conjugate: conjugate && complex, negative: negative && (complex || real) },
            rules: Rules { chunk: Bytes::new(chunk), ..rules(tolerance) },
        };
        let count: u64 = shape.iter().product();
        let size = dtype.size() as usize;
        for position in 0..count {
            let mut rest = position;
            let (mut from, mut to) = (0, 0);
            for axis in (0..shape.len()).rev() {
                let at = rest % shape[axis];
                rest /= shape[axis];
                from += (at * expected_stride[axis]) as usize * size;
                to += (at * actual_stride[axis]) as usize * size;
            }
            let value = values[position as usize % values.len()];
            case.expected[from..from + size].copy_from_slice(&encode(dtype, value));
            let mut actual = encode(dtype, value * drift);
            for (place, error) in &errors {
                if place.index(count as usize) as u64 == position {
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
    fn streaming_says_what_the_naive_loop_says(case in cases()) {
        let pairs = case.pairs();
        let reference = naive(&case);
        let found = case.run();
        prop_assert_eq!(found.elements as usize, pairs.len());
        prop_assert_eq!(found.failed as usize, reference.failed.len());
        prop_assert!(alike(found.max_absolute_error, reference.absolute), "{:?} {}", found, reference.absolute);
        prop_assert!(alike(found.max_relative_error, reference.relative), "{:?} {}", found, reference.relative);
        let exact = matches!(case.dtype.kind(), Kind::Integer | Kind::Bool);
        prop_assert!(alike(found.relative_l2, reference.relative_l2), "{:?} {}", found, reference.relative_l2);
        // Nothing here is longer than one chunk of 64 Ki elements.
        prop_assert!(alike(found.worst_chunk_l2, reference.relative_l2));

        let matched = (pairs.len() - reference.failed.len()) as f64;
        let passed = matched >= case.rules.tolerance.required_matched_ratio * pairs.len() as f64
            && !reference.not_finite
            && (exact || reference.relative_l2 <= case.rules.tolerance.used.rel_l2);
        // At the very bound the order of summation may decide.
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
        prop_assert_eq!(mismatch.actual_nan, count(&|number| number.is_nan(), true));
        prop_assert_eq!(mismatch.expected_nan, count(&|number| number.is_nan(), false));
        prop_assert_eq!(mismatch.actual_inf, count(&|number| number.is_infinite(), true));
        prop_assert_eq!(mismatch.expected_inf, count(&|number| number.is_infinite(), false));
        let least = pairs.iter().flat_map(|pair| pair.2.parts()).filter(|part| part.is_finite()).reduce(f64::min);
        prop_assert_eq!(mismatch.actual_range.is_some(), least.is_some());
        if let (Some([shown, _]), Some(least), false) = (&mismatch.actual_range, least, case.dtype == DType::Bool) {
            prop_assert!((shown.parse::<f64>().expect("a number") - least).abs() <= 1e-6 * least.abs());
        }
    }

    #[test]
    fn a_tensor_beside_itself_is_exact(mut case in cases()) {
        case.actual = case.expected.clone();
        case.actual_stride = case.expected_stride.clone();
        case.signs = Signs::default();
        let found = case.run();
        prop_assert!(found.passed);
        prop_assert_eq!((found.failed, found.max_absolute_error, found.max_relative_error), (0, 0.0, 0.0));
        prop_assert_eq!((found.relative_l2, found.worst_chunk_l2), (0.0, 0.0));
    }

    #[test]
    fn the_chunk_changes_nothing(case in cases(), other in 0_u64..5000) {
        let mut again = case.clone();
        again.rules.chunk = Bytes::new(other);
        let (first, second) = (case.run(), again.run());
        prop_assert_eq!(first.passed, second.passed);
        prop_assert_eq!(first.failed, second.failed);
        prop_assert_eq!(first.mismatch.map(|m| (m.bad_indices, m.pattern)), second.mismatch.map(|m| (m.bad_indices, m.pattern)));
    }
}

/// Values with all kinds of mantissas, none near a type's edges.
fn spread(at: usize) -> f64 {
    let magnitude = 0.5 + ((at * 37) % 101) as f64 / 50.0;
    if at.is_multiple_of(3) { -magnitude } else { magnitude }
}

#[test]
fn an_error_of_nine_percent_fails_standard_in_every_float_type() {
    for dtype in floats() {
        let mut case = Case::filled(dtype, &[40, 50], spread);
        assert!(case.run().passed, "{dtype}");
        for at in 0..2000 {
            case.set_actual(at, spread(at) * 1.09);
        }
        let found = case.run();
        assert!(!found.passed, "{dtype}: {found:?}");
    }
}

#[test]
fn zeros_for_a_tiny_truth_fail_by_their_norm() {
    for dtype in [DType::Float64, DType::Float32, DType::Float16, DType::BFloat16, DType::Complex64] {
        // Inside the absolute tolerance of every one of them.
        let tiny = match dtype {
            DType::Float64 => 1e-9,
            DType::Float32 | DType::Complex64 => 1e-6,
            _ => 1e-4,
        };
        let mut case = Case::filled(dtype, &[100], |_| tiny);
        for at in 0..100 {
            case.set_actual(at, 0.0);
        }
        let found = case.run();
        assert_eq!((found.passed, found.failed), (false, 0), "{dtype}");
        assert!(alike(found.relative_l2, 1.0), "{dtype}: {}", found.relative_l2);
        assert!(found.detail().is_some_and(|detail| detail.contains("relative L2 error over the tensor")));
    }
}

#[test]
fn where_nothing_is_expected_something_fails() {
    let mut case = Case::filled(DType::Float32, &[100], |_| 0.0);
    assert!(case.run().passed);
    case.set_actual(7, 1e-9);
    let found = case.run();
    assert_eq!((found.passed, found.failed, found.relative_l2), (false, 0, f64::INFINITY));
    assert_eq!(found.mismatch.map(|mismatch| mismatch.index), Some(vec![7]));
    case.rules.tolerance.used.rel_l2 = f64::INFINITY;
    assert!(case.run().passed);
    // A zero is a zero, whatever its sign.
    case.set_actual(7, -0.0);
    case.rules.tolerance.used = ToleranceUsed { rtol: 0.0, atol: 0.0, rel_l2: 0.0 };
    assert!(case.run().passed);
}

#[test]
fn a_wrong_corner_of_a_large_output_is_not_averaged_away() {
    let elements = 4 * L2_CHUNK_ELEMENTS + 5;
    let mut case = Case::filled(DType::Float32, &[elements], |at| if at < 100 { 1e-3 } else { 100.0 });
    // The elements after the last full chunk count with it: alone, five that nearly cancel would fail here.
    for at in 0..5 {
        let place = elements as usize - 1 - at;
        case.expected[place * 4..place * 4 + 4].copy_from_slice(&1e-6_f32.to_le_bytes());
        case.set_actual(place, 2e-6);
    }
    assert!(case.run().passed);
    for at in 0..64 << 10 {
        let value = if at < 100 { 1e-3 } else { 100.0 };
        case.set_actual(at, value * 1.000_08);
    }
    case.rules.tolerance.used.rel_l2 = 5e-5;
    let found = case.run();
    assert_eq!((found.passed, found.failed), (false, 0));
    assert!(found.relative_l2 < 5e-5 && found.worst_chunk_l2 > 7e-5, "{found:?}");
    assert!(found.detail().is_some_and(|detail| detail.contains("one chunk")));
}

#[test]
fn patterns_name_what_bad_elements_have_in_common() {
    let shape = [8, 5];
    let bad = |places: &[usize]| {
        let mut case = Case::filled(DType::Float32, &shape, spread);
        for &at in places {
            case.set_actual(at, 9.0);
        }
        case.run().mismatch.map(|mismatch| mismatch.pattern)
    };
    let all: Vec<usize> = (0..40).collect();
    assert_eq!(bad(&[]), None);
    assert_eq!(bad(&all), Some(Pattern::All));
    assert_eq!(bad(&all[15..]), Some(Pattern::FromRow { row: 3 }));
    assert_eq!(bad(&all[17..]), Some(Pattern::Tail { from: 17 }));
    assert_eq!(bad(&all[39..]), Some(Pattern::Tail { from: 39 }));
    assert_eq!(bad(&[3, 9]), Some(Pattern::Scattered));

    let mut case = Case::filled(DType::Float32, &shape, spread);
    case.actual[12..28].fill(0x5a);
    let mismatch = case.run().mismatch.expect("poison is not the truth");
    assert_eq!(mismatch.pattern, Pattern::StillPoisoned);
    assert_eq!(mismatch.index, [0, 3]);
    case.rules.poison = None;
    assert_eq!(case.run().mismatch.map(|mismatch| mismatch.pattern), Some(Pattern::Scattered));
}

#[test]
fn what_is_not_finite_must_stand_where_it_stood() {
    let with = |expected: f64, actual: f64, nonfinite| {
        let mut case = Case::filled(DType::Float32, &[3], |at| if at == 1 { expected } else { 1.0 });
        case.set_actual(1, actual);
        case.rules.nonfinite = nonfinite;
        case.rules.tolerance.required_matched_ratio = 0.1;
        let (mut expected, mut actual) = (case.expected.as_slice(), case.actual.as_slice());
        compare(&mut expected, &mut actual, &case.subject(), &case.rules)
    };
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for (expected, actual, passes) in [
        (nan, nan, true),
        (inf, inf, true),
        (-inf, -inf, true),
        (inf, -inf, false),
        (nan, inf, false),
        (inf, 1.0, false),
        (1.0, inf, false),
        (1.0, nan, false),
        (nan, 1.0, false),
    ] {
        let found = with(expected, actual, Nonfinite::Match).expect("memory can be read");
        assert_eq!(found.passed, passes, "{expected} {actual}");
        if expected.is_finite() {
            let found = with(expected, actual, Nonfinite::Reject).expect("memory can be read");
            assert!(!found.passed);
        } else {
            let found = with(expected, actual, Nonfinite::Reject);
            assert!(
                matches!(&found, Err(CompareError::ExpectedNotFinite { index, .. }) if index == &[1]),
                "{found:?}"
            );
        }
    }
}

#[test]
fn integers_are_exact_to_the_last_bit() {
    let mut case = Case::filled(DType::Int64, &[3], |_| 0.0);
    let large = (1_i64 << 53) + 1;
    case.expected[8..16].copy_from_slice(&large.to_le_bytes());
    case.actual[8..16].copy_from_slice(&(large - 1).to_le_bytes());
    let found = case.run();
    assert_eq!((found.passed, found.failed, found.max_absolute_error), (false, 1, 1.0));
    let mismatch = found.mismatch.expect("one bit");
    assert_eq!(
        (mismatch.expected.as_str(), mismatch.actual.as_str()),
        ("9007199254740993", "9007199254740992")
    );
    // A plan may give a quantised type a step.
    case.rules.tolerance.used.atol = 1.0;
    assert!(case.run().passed);
}

#[test]
fn any_byte_but_zero_is_true() {
    let mut case = Case::filled(DType::Bool, &[4], |at| (at % 2) as f64);
    case.actual[1] = 0xff;
    assert!(case.run().passed);
    case.actual[0] = 2;
    assert_eq!(case.run().failed, 1);
}

#[test]
fn magnitudes_whose_squares_leave_f64_are_judged_all_the_same() {
    for magnitude in [1e-300, 1e300] {
        let mut case = Case::filled(DType::Float64, &[3000], |_| magnitude);
        case.rules.tolerance.used = ToleranceUsed { rtol: 1.0, atol: 0.0, rel_l2: 1e-3 };
        assert!(case.run().passed);
        for at in 0..3000 {
            case.set_actual(at, magnitude * 1.5);
        }
        let found = case.run();
        assert_eq!((found.passed, found.failed), (false, 0));
        assert!(alike(found.relative_l2, 0.5), "{}", found.relative_l2);
    }
}

#[test]
fn a_ratio_forgives_as_many_as_it_says() {
    let mut case = Case::filled(DType::Float8E4M3Fn, &[1000], |_| 1.0);
    case.rules.tolerance.used.rel_l2 = f64::INFINITY;
    for at in 0..10 {
        case.set_actual(at * 7, 8.0);
    }
    assert_eq!(case.rules.tolerance.required_matched_ratio, 0.99);
    assert!(case.run().passed);
    case.set_actual(999, 8.0);
    assert!(!case.run().passed);
}

#[test]
fn a_source_that_ends_early_is_an_error_that_names_the_side() {
    let case = Case::filled(DType::Float32, &[100], spread);
    let (mut expected, mut actual) = (case.expected.as_slice(), &case.actual[..396]);
    let found = compare(&mut expected, &mut actual, &case.subject(), &case.rules);
    let error = found.expect_err("one element is missing");
    assert!(matches!(error, CompareError::Read { side: Side::Actual, .. }));
    assert!(error.to_string().starts_with("cannot read 400 B at byte 0 of the actual output"), "{error}");
}

#[test]
fn geometry_that_overflows_is_refused() {
    let mut nothing: (&[u8], &[u8]) = (&[], &[]);
    let mut run = |shape: &[u64], stride: &[u64]| {
        let case = Case::filled(DType::Float64, &[0], spread);
        let subject = Subject { shape, expected_stride: stride, actual_stride: stride, ..case.subject() };
        compare(&mut nothing.0, &mut nothing.1, &subject, &case.rules)
    };
    assert!(matches!(
        run(&[1 << 40, 1 << 40], &[0, 0]),
        Err(CompareError::Layout(LayoutError::Overflow { .. }))
    ));
    assert!(matches!(run(&[3], &[u64::MAX / 2]), Err(CompareError::Layout(LayoutError::Overflow { .. }))));
    assert!(matches!(run(&[3], &[]), Err(CompareError::Layout(LayoutError::Rank { .. }))));
    assert!(run(&[0, u64::MAX], &[u64::MAX, 5]).is_ok_and(|found| found.passed && found.elements == 0));
}
