//! Compares single elements of tensors and reads their values.

use opt_shared::capture::DType;
use opt_shared::settings::Nonfinite;

use super::compare::{COMPARE_CHUNK, Rules, judge_parts, judge_whole};
use super::decode::Number;
use super::tolerance::Tolerance;

/// Returns true if an element differs from the expected one by more than the tolerance. Both elements are passed as
/// bytes.
pub(crate) fn differs(dtype: DType, expected: &[u8], actual: &[u8], tolerance: Tolerance) -> bool {
    let rules = Rules { tolerance, nonfinite: Nonfinite::Match, poison: None, chunk: COMPARE_CHUNK };
    let (expected, actual) = (Number::read(dtype, expected), Number::read(dtype, actual));
    match (expected.whole(), actual.whole()) {
        (Some(expected), Some(actual)) => judge_whole(expected, actual, &rules, |_, _| {}).fails,
        _ => {
            let parts = |number: Number| number.parts().collect::<Vec<f64>>();
            judge_parts(&parts(expected), &parts(actual), &rules, |_, _| {}).fails
        }
    }
}

/// Returns the element's value. For a complex number, this is the real part.
pub(crate) fn value(dtype: DType, element: &[u8]) -> f64 {
    Number::read(dtype, element).parts().next().unwrap_or(f64::NAN)
}

pub(crate) fn is_not_finite(dtype: DType, element: &[u8]) -> bool {
    Number::read(dtype, element).parts().any(|part| !part.is_finite())
}

#[cfg(test)]
mod tests {
    use opt_shared::outcome::ToleranceUsed;

    use super::*;

    #[test]
    fn elements_differ_beyond_their_tolerance() {
        let used = ToleranceUsed { rtol: 0.0, atol: 0.5, rel_l2: f64::INFINITY };
        let tolerance = Tolerance { used, required_matched_ratio: 1.0, part_l2: None, least_share: None };
        let float = |value: f32| value.to_le_bytes();
        for (expected, actual, different) in
            [(1.0, 1.4, false), (1.0, 1.6, true), (f32::NAN, f32::NAN, false), (1.0, f32::NAN, true)]
        {
            let found = differs(DType::Float32, &float(expected), &float(actual), tolerance);
            assert_eq!(found, different, "{expected} {actual}");
        }
        assert!(differs(DType::Int64, &7i64.to_le_bytes(), &8i64.to_le_bytes(), tolerance));
        let complex = |re: f32, im: f32| [float(re), float(im)].concat();
        assert!(differs(DType::Complex64, &complex(1.0, 1.0), &complex(1.0, 3.0), tolerance));
        assert!(!differs(DType::Complex64, &complex(1.0, 1.0), &complex(1.1, 1.1), tolerance));
        assert!(is_not_finite(DType::Complex64, &complex(1.0, f32::INFINITY)));
        assert!(!is_not_finite(DType::Int64, &7i64.to_le_bytes()));
        assert_eq!(value(DType::Float32, &float(2.5)), 2.5);
    }
}
