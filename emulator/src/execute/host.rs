//! Finds out which optional instructions the host's CPU supports.

#[derive(Clone, Copy, Debug)]
pub struct Host {
    wide_vectors: bool,
}

impl Host {
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        let wide_vectors = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("bmi1")
            && std::arch::is_x86_feature_detected!("bmi2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("lzcnt")
            && std::arch::is_x86_feature_detected!("popcnt");
        #[cfg(not(target_arch = "x86_64"))]
        let wide_vectors = cfg!(target_arch = "aarch64");
        Self { wide_vectors }
    }

    /// Whether the CPU supports AVX2, FMA, BMI1, BMI2, LZCNT and POPCNT, or is an aarch64 CPU. Every aarch64 CPU has
    /// similar instructions, and Rust uses them by default.
    #[inline(always)]
    pub fn has_wide_vectors(self) -> bool {
        self.wide_vectors
    }
}
