//! Determines the tolerances of a comparison, from a table with a row for each tolerance profile and type.
//!
//! This file contains the figures, and the rules by which a plan overrides them. `scale` computes a tensor's scale S,
//! and `compare` applies the figures.

use opt_shared::capture::{DType, Kind};
use opt_shared::outcome::ToleranceUsed;
use opt_shared::settings::{ToleranceProfile, VerifySettings};

/// The share of fp8 elements that must pass. It is below 1 because neighbouring fp8 values are far apart, and a correct
/// kernel may round a sum to a neighbour of the recorded value.
const FP8_MATCHED_RATIO: f64 = 0.99;

/// The lower bound of S. Without this bound, the absolute tolerance would be 0 for a tensor of zeros.
pub(super) const MIN_SCALE: f64 = 1e-3;

/// The largest share of a small change that a kernel may leave undone, as a relative L2 error. Outputs for new inputs
/// are compared with twice the tolerance, which is the error of a kernel that leaves out 4 % of its work.
const LARGEST_SHARE_UNDONE: f64 = 0.1;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub used: ToleranceUsed,
    /// The share of elements that must pass. The other elements may have larger finite errors, but a NaN or an infinity
    /// in the wrong place always fails.
    pub required_matched_ratio: f64,
    /// The limit on the relative L2 error of each part (chunk) of the output. If it is `None`, the limit for the whole
    /// output applies to each part.
    pub part_l2: Option<f64>,
    /// The minimum share of a change that a timed call must make. It is `None` if the norms limit what a call can leave
    /// undone, or if the change is smaller than the rounding error.
    pub least_share: Option<f64>,
}

#[derive(Clone, Copy)]
struct Row {
    rtol: f64,
    atol: f64,
    /// True if `atol` is a multiple of S.
    scaled: bool,
    rel_l2: f64,
}

impl Row {
    const fn fixed(rtol: f64, atol: f64, rel_l2: f64) -> Self {
        Self { rtol, atol, scaled: false, rel_l2 }
    }

    const fn scaled(rtol: f64, atol: f64, rel_l2: f64) -> Self {
        Self { rtol, atol, scaled: true, rel_l2 }
    }

    /// Values must be equal, and norms are not limited.
    const EXACT: Self = Self::fixed(0.0, 0.0, f64::INFINITY);
}

impl Tolerance {
    /// Returns the tolerance for a tensor of `dtype`. The tensor's `scale` matters only if [`Tolerance::needs_scale`]
    /// returns true.
    ///
    /// `[verify.dtype.NAME]` replaces individual figures. An `atol` given there is absolute and never multiplied by S.
    /// The ratio is the plan's `required_matched_ratio`, with one exception: fp8 under `standard` and `gpu` requires
    /// 0.99 unless the plan overrides it. The settings do not show whether a ratio of 1.0 was written in the plan or is
    /// the default. A plan that overrides the 0.99 must therefore contain either a ratio other than 1, or a
    /// `[verify.dtype.NAME]` table for that type.
    pub fn for_dtype(settings: &VerifySettings, dtype: DType, scale: f64) -> Self {
        let row = row(settings.tolerance, dtype);
        let over = settings.dtype.get(&dtype).copied();
        let given = over.unwrap_or_default();
        // If the scale is NaN, `max` returns the other operand, so the tolerance does not become NaN.
        let table_atol = if row.scaled { row.atol * scale.max(MIN_SCALE) } else { row.atol };
        let used = ToleranceUsed {
            rtol: given.rtol.unwrap_or(row.rtol),
            atol: given.atol.unwrap_or(table_atol),
            rel_l2: given.rel_l2.unwrap_or(row.rel_l2),
        };
        let coarse = is_fp8(dtype)
            && matches!(settings.tolerance, ToleranceProfile::Standard | ToleranceProfile::Gpu)
            && over.is_none()
            && settings.required_matched_ratio == 1.0;
        let required_matched_ratio = if coarse { FP8_MATCHED_RATIO } else { settings.required_matched_ratio };
        Self { used, required_matched_ratio, part_l2: None, least_share: None }
    }

    /// Returns the tolerance for an argument that the call changes. `unchanged` is the relative L2 error of a kernel
    /// that leaves the argument as it was. If `rel_l2` exceeds a tenth of that error, it is lowered to this tenth, but
    /// not below the rounding error. The limit for each part stays the same, because changes may be smaller in some
    /// parts. The tolerance stays the same for profiles that do not limit norms.
    ///
    /// Let u be `unchanged` and r the rounding error. If u/10 is smaller than r, a limit of twice `rel_l2` allows a
    /// timed call to leave out much of the change. A timed call must therefore make at least a share of 1 − r/u of the
    /// change. Correct kernels that round differently, for example once instead of twice, made at least 0.58 of changes
    /// with u = 1.5 r, 0.69 with 2 r and 0.9 with 8 r.
    pub(super) fn for_change(self, settings: &VerifySettings, dtype: DType, unchanged: f64) -> Self {
        let bounds_norm = matches!(settings.tolerance, ToleranceProfile::Standard | ToleranceProfile::Gpu)
            && matches!(part(dtype).kind(), Kind::Float);
        if !bounds_norm || unchanged == 0.0 || !unchanged.is_finite() {
            return self;
        }
        let (undone, rounding) = (unchanged * LARGEST_SHARE_UNDONE, rounding(dtype));
        let rel_l2 = undone.max(rounding).min(self.used.rel_l2);
        let least_share = (undone < rounding && rounding < unchanged).then(|| 1.0 - rounding / unchanged);
        let used = ToleranceUsed { rel_l2, ..self.used };
        Self { used, part_l2: Some(self.used.rel_l2), least_share, ..self }
    }

    /// Returns the limit on the relative L2 error of each part of the output.
    pub(super) fn of_each_part(&self) -> f64 {
        self.part_l2.unwrap_or(self.used.rel_l2)
    }

    /// Returns the tolerance for comparing two computed outputs, each of which may differ from the right result by the
    /// single tolerance.
    pub(crate) fn doubled(self) -> Self {
        let ToleranceUsed { rtol, atol, rel_l2 } = self.used;
        let used = ToleranceUsed { rtol: 2.0 * rtol, atol: 2.0 * atol, rel_l2: 2.0 * rel_l2 };
        Self { used, part_l2: self.part_l2.map(|it| 2.0 * it), ..self }
    }

    /// Returns true if [`Tolerance::for_dtype`] uses the scale. Otherwise, the scale need not be computed.
    pub fn needs_scale(settings: &VerifySettings, dtype: DType) -> bool {
        row(settings.tolerance, dtype).scaled
            && settings.dtype.get(&dtype).is_none_or(|given| given.atol.is_none())
    }
}

fn is_fp8(dtype: DType) -> bool {
    dtype.kind() == Kind::Float && dtype.size() == 1
}

/// Returns the largest relative error that rounding to this type can cause. If the elements of a tensor were rounded
/// twice instead of once, the tensor's relative L2 error is smaller than this.
fn rounding(dtype: DType) -> f64 {
    let bits_of_precision = match part(dtype) {
        DType::Float64 => 53,
        DType::Float32 => 24,
        DType::Float16 => 11,
        DType::BFloat16 => 8,
        DType::Float8E4M3Fn | DType::Float8E4M3FnUz => 4,
        _ => 3,
    };
    0.5_f64.powi(bits_of_precision)
}

/// Returns the type of a complex number's parts, which are compared one by one. Other types are returned unchanged.
fn part(dtype: DType) -> DType {
    match dtype {
        DType::Complex32 => DType::Float16,
        DType::Complex64 => DType::Float32,
        DType::Complex128 => DType::Float64,
        real => real,
    }
}

fn row(profile: ToleranceProfile, dtype: DType) -> Row {
    let dtype = part(dtype);
    if !matches!(dtype.kind(), Kind::Float) {
        return Row::EXACT;
    }
    match profile {
        ToleranceProfile::Standard => standard(dtype),
        // TF32 and split-K affect only these three types. The other types have the same row as in `standard`.
        ToleranceProfile::Gpu => match dtype {
            DType::Float32 => Row::scaled(1e-3, 2e-3, 1e-3),
            DType::Float16 => Row::scaled(1e-2, 5e-3, 2e-3),
            DType::BFloat16 => Row::scaled(2e-2, 4e-2, 1e-2),
            other => standard(other),
        },
        // These are the figures of torch.testing.assert_close, which does not limit norms and compares fp8 for
        // equality.
        ToleranceProfile::Torch => match dtype {
            DType::Float64 => Row::fixed(1e-7, 1e-7, f64::INFINITY),
            DType::Float32 => Row::fixed(1.3e-6, 1e-5, f64::INFINITY),
            DType::Float16 => Row::fixed(1e-3, 1e-5, f64::INFINITY),
            DType::BFloat16 => Row::fixed(1.6e-2, 1e-5, f64::INFINITY),
            _ => Row::EXACT,
        },
        ToleranceProfile::Kernelforge => Row::fixed(1e-1, 1e-2, f64::INFINITY),
    }
}

/// The rows of the `standard` profile. For fp8, `rtol` is the largest relative step between neighbouring values (2^-3
/// and 2^-2) and `atol` is the smallest subnormal. The two together allow a difference of one step anywhere.
fn standard(dtype: DType) -> Row {
    match dtype {
        DType::Float64 => Row::fixed(1e-7, 1e-7, 1e-10),
        DType::Float32 => Row::scaled(1e-4, 1e-5, 1e-4),
        DType::Float16 => Row::fixed(1e-2, 1e-3, 2e-3),
        DType::BFloat16 => Row::fixed(2e-2, 1e-3, 1e-2),
        DType::Float8E4M3Fn => Row::fixed(0.125, 1.0 / 512.0, 5e-2),
        DType::Float8E4M3FnUz => Row::fixed(0.125, 1.0 / 1024.0, 5e-2),
        DType::Float8E5M2 => Row::fixed(0.25, 1.0 / 65_536.0, 1e-1),
        DType::Float8E5M2FnUz => Row::fixed(0.25, 1.0 / 131_072.0, 1e-1),
        _ => Row::EXACT,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use opt_shared::settings::{Nonfinite, ToleranceOverride};

    use super::*;

    pub(in crate::judge) fn settings(tolerance: ToleranceProfile) -> VerifySettings {
        VerifySettings {
            tolerance,
            dtype: BTreeMap::new(),
            required_matched_ratio: 1.0,
            nonfinite: Nonfinite::Match,
            repeats: 2,
            stop_after: 3,
            call_timeout: Duration::from_secs(60),
            seed: 0,
        }
    }

    #[test]
    fn figures_equal_the_documented_table() {
        use ToleranceProfile::{Gpu, Kernelforge, Standard, Torch};
        let none = f64::INFINITY;
        for (profile, dtype, scale, rtol, atol, rel_l2) in [
            (Standard, DType::Float64, 5.0, 1e-7, 1e-7, 1e-10),
            (Standard, DType::Float32, 5.0, 1e-4, 5e-5, 1e-4),
            (Standard, DType::Float32, 0.0, 1e-4, 1e-8, 1e-4),
            (Standard, DType::Complex64, 2.0, 1e-4, 2e-5, 1e-4),
            (Standard, DType::Complex128, 2.0, 1e-7, 1e-7, 1e-10),
            (Standard, DType::Complex32, 2.0, 1e-2, 1e-3, 2e-3),
            (Standard, DType::Float16, 5.0, 1e-2, 1e-3, 2e-3),
            (Standard, DType::BFloat16, 5.0, 2e-2, 1e-3, 1e-2),
            (Standard, DType::Int32, 5.0, 0.0, 0.0, none),
            (Gpu, DType::Float32, 2.0, 1e-3, 4e-3, 1e-3),
            (Gpu, DType::Float16, 2.0, 1e-2, 1e-2, 2e-3),
            (Gpu, DType::BFloat16, 2.0, 2e-2, 8e-2, 1e-2),
            (Gpu, DType::Float64, 2.0, 1e-7, 1e-7, 1e-10),
            (Torch, DType::Float32, 2.0, 1.3e-6, 1e-5, none),
            (Torch, DType::Complex32, 2.0, 1e-3, 1e-5, none),
            (Torch, DType::Float8E5M2, 2.0, 0.0, 0.0, none),
            (Kernelforge, DType::Float64, 2.0, 1e-1, 1e-2, none),
            (Kernelforge, DType::Bool, 2.0, 0.0, 0.0, none),
        ] {
            let used = Tolerance::for_dtype(&settings(profile), dtype, scale).used;
            assert_eq!((used.rtol, used.atol, used.rel_l2), (rtol, atol, rel_l2), "{profile:?} {dtype}");
        }
    }

    #[test]
    fn plan_overrides_single_figures_and_the_ratio_of_fp8() {
        let mut settings = settings(ToleranceProfile::Standard);
        let fp8 = DType::Float8E4M3Fn;
        let ratio = |settings: &VerifySettings, dtype| {
            Tolerance::for_dtype(settings, dtype, 1.0).required_matched_ratio
        };
        assert_eq!(ratio(&settings, fp8), 0.99);
        assert_eq!(ratio(&settings, DType::Float32), 1.0);

        settings.required_matched_ratio = 0.95;
        assert_eq!(ratio(&settings, fp8), 0.95);
        assert_eq!(ratio(&settings, DType::Int8), 0.95);

        settings.required_matched_ratio = 1.0;
        settings.dtype.insert(fp8, ToleranceOverride { rtol: Some(0.5), ..Default::default() });
        assert_eq!(ratio(&settings, fp8), 1.0);
        let used = Tolerance::for_dtype(&settings, fp8, 1.0).used;
        assert_eq!((used.rtol, used.atol, used.rel_l2), (0.5, 1.0 / 512.0, 5e-2));
        assert_eq!(ratio(&settings, DType::Float8E5M2), 0.99);
    }

    #[test]
    fn small_change_must_be_made_to_nine_tenths_unless_it_is_smaller_than_rounding() {
        let with = |profile, dtype, unchanged| {
            let settings = settings(profile);
            Tolerance::for_dtype(&settings, dtype, 1.0).for_change(&settings, dtype, unchanged).used.rel_l2
        };
        let of = |dtype, unchanged| with(ToleranceProfile::Standard, dtype, unchanged);
        assert_eq!(of(DType::Float32, 3e-5), 3e-5 * LARGEST_SHARE_UNDONE);
        let standard = settings(ToleranceProfile::Standard);
        let lowered =
            Tolerance::for_dtype(&standard, DType::Float32, 1.0).for_change(&standard, DType::Float32, 3e-5);
        assert_eq!((lowered.of_each_part(), lowered.doubled().of_each_part()), (1e-4, 2e-4));
        assert_eq!(of(DType::Float32, 0.5), 1e-4, "the table's figure is smaller");
        assert_eq!(of(DType::Float32, 1e-9), 0.5_f64.powi(24));
        assert_eq!(of(DType::BFloat16, 4.5e-3), 0.5_f64.powi(8));
        assert_eq!(of(DType::BFloat16, 8e-2), 8e-2 * LARGEST_SHARE_UNDONE);
        assert_eq!(of(DType::Int32, 0.5), f64::INFINITY, "integers are compared exactly");
        // Either nothing changes, or the norm is unknown.
        assert_eq!(of(DType::Float32, 0.0), 1e-4);
        assert_eq!(of(DType::Float32, f64::NAN), 1e-4);
        assert_eq!(with(ToleranceProfile::Kernelforge, DType::Float32, 3e-5), f64::INFINITY);
        assert_eq!(with(ToleranceProfile::Torch, DType::Float32, 3e-5), f64::INFINITY);
    }

    #[test]
    fn explicit_atol_is_not_scaled() {
        let mut settings = settings(ToleranceProfile::Standard);
        assert!(Tolerance::needs_scale(&settings, DType::Complex64));
        assert!(!Tolerance::needs_scale(&settings, DType::Float16));
        settings.dtype.insert(DType::Float32, ToleranceOverride { atol: Some(0.25), ..Default::default() });
        assert!(!Tolerance::needs_scale(&settings, DType::Float32));
        assert_eq!(Tolerance::for_dtype(&settings, DType::Float32, 1e6).used.atol, 0.25);
    }

    #[test]
    fn nan_scale_gives_a_finite_tolerance() {
        let used = Tolerance::for_dtype(&settings(ToleranceProfile::Standard), DType::Float32, f64::NAN).used;
        assert_eq!(used.atol, 1e-5 * MIN_SCALE);
    }
}
