//! Tests single cases of the comparison: outputs that must pass, outputs that must fail, and the report of each
//! failure.

use opt_shared::outcome::{Pattern, ToleranceUsed};
use opt_shared::units::to_index;

use super::*;

/// Returns values with varied mantissas. None of them is near the limits of a type.
fn spread(at: usize) -> f64 {
    let magnitude = 0.5 + f64::from(u32::try_from((at * 37) % 101).expect("small")) / 50.0;
    if at.is_multiple_of(3) { -magnitude } else { magnitude }
}

#[test]
fn nine_percent_error_fails_standard_in_every_float_type() {
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
fn zeros_for_tiny_expected_values_fail_by_their_norm() {
    for dtype in [DType::Float64, DType::Float32, DType::Float16, DType::BFloat16, DType::Complex64] {
        // Every element is within the absolute tolerance of its type.
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
fn nonzero_output_fails_where_zeros_are_expected() {
    let mut case = Case::filled(DType::Float32, &[100], |_| 0.0);
    assert!(case.run().passed);
    case.set_actual(7, 1e-9);
    let found = case.run();
    assert_eq!((found.passed, found.failed, found.relative_l2), (false, 0, f64::INFINITY));
    assert_eq!(found.mismatch.map(|mismatch| mismatch.index), Some(vec![7]));
    case.rules.tolerance.used.rel_l2 = f64::INFINITY;
    assert!(case.run().passed);
    // The sign of a zero does not matter.
    case.set_actual(7, -0.0);
    case.rules.tolerance.used = ToleranceUsed { rtol: 0.0, atol: 0.0, rel_l2: 0.0 };
    assert!(case.run().passed);
}

#[test]
fn wrong_corner_of_a_large_output_fails() {
    let elements = 4 * L2_CHUNK_ELEMENTS + 5;
    let mut case = Case::filled(DType::Float32, &[elements], |at| if at < 100 { 1e-3 } else { 100.0 });
    // The five elements after the last full chunk are counted as part of that chunk. As a separate chunk they would
    // fail, because their errors are as large as their values.
    for at in 0..5 {
        let index = to_index(elements) - 1 - at;
        case.expected[index * 4..index * 4 + 4].copy_from_slice(&1e-6_f32.to_le_bytes());
        case.set_actual(index, 2e-6);
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
fn pattern_names_what_bad_elements_have_in_common() {
    let shape = [8, 5];
    let bad = |bad_indices: &[usize]| {
        let mut case = Case::filled(DType::Float32, &shape, spread);
        for &at in bad_indices {
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
    let mismatch = case.run().mismatch.expect("poison differs from the expected values");
    assert_eq!(mismatch.pattern, Pattern::StillPoisoned);
    assert_eq!(mismatch.index, [0, 3]);
    case.rules.poison = None;
    assert_eq!(case.run().mismatch.map(|mismatch| mismatch.pattern), Some(Pattern::Scattered));
}

#[test]
fn nonfinite_values_must_be_where_they_were_recorded() {
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
fn integers_are_compared_exactly() {
    let mut case = Case::filled(DType::Int64, &[3], |_| 0.0);
    let large = (1_i64 << 53) + 1;
    case.expected[8..16].copy_from_slice(&large.to_le_bytes());
    case.actual[8..16].copy_from_slice(&(large - 1).to_le_bytes());
    let found = case.run();
    assert_eq!((found.passed, found.failed, found.max_absolute_error), (false, 1, 1.0));
    let mismatch = found.mismatch.expect("integers that differ by one are a mismatch");
    assert_eq!(
        (mismatch.expected.as_str(), mismatch.actual.as_str()),
        ("9007199254740993", "9007199254740992")
    );
    // A plan may set a tolerance for an integer type, for example if its values are quantised.
    case.rules.tolerance.used.atol = 1.0;
    assert!(case.run().passed);
}

#[test]
fn any_nonzero_byte_is_true() {
    let mut case = Case::filled(DType::Bool, &[4], |at| f64::from(u8::from(at % 2 == 1)));
    case.actual[1] = 0xff;
    assert!(case.run().passed);
    case.actual[0] = 2;
    assert_eq!(case.run().failed, 1);
}

#[test]
fn magnitudes_with_squares_beyond_f64_are_judged() {
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
fn matched_ratio_allows_exactly_its_share_of_failures() {
    let mut case = Case::filled(DType::Float8E4M3Fn, &[1000], |_| 1.0);
    case.rules.tolerance.used.rel_l2 = f64::INFINITY;
    for at in 0..10 {
        case.set_actual(at * 7, 8.0);
    }
    assert_eq!(case.rules.tolerance.required_matched_ratio, 0.99);
    assert!(case.run().passed);
    // Ten elements may differ, so only the norm fails.
    case.rules.tolerance.used.rel_l2 = 0.1;
    let detail = case.run().detail().expect("it did not pass");
    assert!(detail.contains("10 of 1000 elements differ"), "{detail}");
    assert!(detail.contains("so many may differ, but the relative L2 error over the tensor"), "{detail}");
    let value = case.actual.clone();
    case.set_actual(0, f64::NAN);
    let detail = case.run().detail().expect("it did not pass");
    assert!(detail.contains("10 of 1000") && !detail.contains("so many may differ"), "{detail}");
    case.actual = value;
    case.set_actual(999, 8.0);
    let detail = case.run().detail().expect("it did not pass");
    assert!(detail.contains("11 of 1000") && !detail.contains("so many may differ"), "{detail}");
}

#[test]
fn truncated_source_is_an_error_that_names_the_tensor() {
    let case = Case::filled(DType::Float32, &[100], spread);
    let (mut expected, mut actual) = (case.expected.as_slice(), &case.actual[..396]);
    let found = compare(&mut expected, &mut actual, &case.subject(), &case.rules);
    let error = found.expect_err("one element is missing");
    assert!(matches!(error, CompareError::Read { side: ByteSource::Actual, .. }));
    assert!(error.to_string().starts_with("cannot read 400 B at byte 0 of the actual output"), "{error}");
}

#[test]
fn overflowing_geometry_is_refused() {
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
