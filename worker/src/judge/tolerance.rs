//! The tolerances of a comparison: a table with a row for each tolerance profile and type.
//!
//! Owns the figures, and the rules by which a plan overrides them. `scale` computes a tensor's scale S, and `compare`
//! applies the figures.

use opt_shared::capture::{DType, Kind};
use opt_shared::outcome::ToleranceUsed;
use opt_shared::settings::{ToleranceProfile, VerifySettings};

/// Share of fp8 elements that must pass. Neighbouring fp8 values are far apart, and a correct kernel may round a sum to
/// the neighbour of the recorded value.
const FP8_MATCHED_RATIO: f64 = 0.99;

/// The lower bound of S. Without it, the absolute tolerance would be 0 for a tensor of zeros.
pub(super) const MIN_SCALE: f64 = 1e-3;

/// The largest share of a small change that a kernel may leave undone, as a relative L2 error. Outputs for new inputs
/// are compared with twice the tolerance, which is the error of a kernel that leaves out 4 % of its work.
const LARGEST_SHARE_UNDONE: f64 = 0.1;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub used: ToleranceUsed,
    /// Share of elements that must pass. It tolerates finite errors only: a NaN or an infinity in the wrong place
    /// always fails.
    pub required_matched_ratio: f64,
    /// The largest relative L2 error of each part of the output; `None` if the limit for the whole output applies to
    /// each part.
    pub part_l2: Option<f64>,
    /// The least share of a change that a timed call must make; `None` if the norms bound what is left undone, or if
    /// the change is smaller than the error of rounding.
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

    /// Values must be equal, and no norm is bounded.
    const EXACT: Self = Self::fixed(0.0, 0.0, f64::INFINITY);
}

impl Tolerance {
    /// The tolerance for a tensor of `dtype`. Its `scale` matters only if [`Tolerance::needs_scale`] returns true.
    ///
    /// `[verify.dtype.NAME]` replaces individual figures. An `atol` given there is absolute and never multiplied by S.
    /// The ratio is the plan's `required_matched_ratio`, with one exception: fp8 under `standard` and `gpu` requires
    /// 0.99 unless the plan overrides it. The settings do not distinguish a default of 1.0 from an explicit one, so a
    /// plan overrides it either with a ratio other than 1, or with a `[verify.dtype.NAME]` table for that type.
    pub fn for_dtype(settings: &VerifySettings, dtype: DType, scale: f64) -> Self {
        let row = row(settings.tolerance, dtype);
        let over = settings.dtype.get(&dtype).copied();
        let given = over.unwrap_or_default();
        // A NaN scale must not become a NaN tolerance: `max` returns the other operand.
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

    /// The tolerance of an argument that the call changes. `unchanged` is the relative L2 error of a kernel that leaves
    /// the argument as it was. If `rel_l2` exceeds a tenth of that error, it is lowered to this tenth, but not below
    /// the rounding error. The bound of each part stays the same, because changes may be smaller in some parts.
    /// Profiles that bound no norm are not changed.
    ///
    /// Let u be `unchanged` and r the rounding error. If u/10 is smaller than r, twice `rel_l2` hardly bounds what a
    /// timed call leaves undone. Such a call must therefore make at least 1 − r/u of the change. Correct kernels that
    /// round differently, for example once instead of twice, made at least 0.58 of changes with u = 1.5 r, 0.69 with 2
    /// r and 0.9 with 8 r.
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

    /// The largest relative L2 error of each part of the output.
    pub(super) fn of_each_part(&self) -> f64 {
        self.part_l2.unwrap_or(self.used.rel_l2)
    }

    /// The tolerance between two computed outputs, each of which may differ from the right result by the single
    /// tolerance.
    pub(crate) fn doubled(self) -> Self {
        let ToleranceUsed { rtol, atol, rel_l2 } = self.used;
        let used = ToleranceUsed { rtol: 2.0 * rtol, atol: 2.0 * atol, rel_l2: 2.0 * rel_l2 };
        Self { used, part_l2: self.part_l2.map(|it| 2.0 * it), ..self }
    }

    /// Returns true if [`Tolerance::for_dtype`] uses the scale. If not, the tensor need not be sampled.
    pub fn needs_scale(settings: &VerifySettings, dtype: DType) -> bool {
        row(settings.tolerance, dtype).scaled
            && settings.dtype.get(&dtype).is_none_or(|given| given.atol.is_none())
    }
}

fn is_fp8(dtype: DType) -> bool {
    dtype.kind() == Kind::Float && dtype.size() == 1
}

/// The largest relative error of rounding to a type. The relative L2 error of a tensor whose elements were rounded
/// twice instead of once is smaller.
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

/// The type of a complex number's parts, which are compared one by one; other types are returned unchanged.
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
        // TF32 and split-K affect only these three types. The others keep their `standard` row.
        ToleranceProfile::Gpu => match dtype {
            DType::Float32 => Row::scaled(1e-3, 2e-3, 1e-3),
            DType::Float16 => Row::scaled(1e-2, 5e-3, 2e-3),
            DType::BFloat16 => Row::scaled(2e-2, 4e-2, 1e-2),
            other => standard(other),
        },
        // torch.testing.assert_close: bounds no norm, and compares fp8 for equality.
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
/// and 2^-2) and `atol` the smallest subnormal; together they allow one step anywhere.
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
        // Nothing changes, or the norm is not known.
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
