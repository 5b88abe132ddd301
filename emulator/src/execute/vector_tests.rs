//! Compares vectorised operations with those on single lanes.

use proptest::prelude::*;

use super::vector;
use super::warp::Registers;
use crate::code::Narrow2;
use crate::lane::{FloatFunction, FloatOp, Type};

fn row() -> impl Strategy<Value = [u32; 32]> {
    let bits = prop_oneof![
        any::<u32>(),
        0x3f00_0000_u32..0x4100_0000,
        0_u32..0x0200_0000,
        // These values have few significant bits, so their sums are often half-way between two numbers.
        (0_u32..256).prop_map(|bits| 0x3f80_0000 | bits << 15),
        (0_u32..256, 100_u32..150).prop_map(|(bits, exponent)| exponent << 23 | bits),
        Just(0x7f80_0000),
        Just(0xffc0_0000),
        Just(0x8000_0000),
    ];
    prop::array::uniform32(bits)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn vectorised_floats_equal_those_of_single_lanes(a in row(), b in row(), c in row(), mask in any::<u32>()) {
        let cases = [
            (Narrow2::AddF32, FloatOp::Add, false),
            (Narrow2::SubF32Ftz, FloatOp::Sub, true),
            (Narrow2::MulF32, FloatOp::Mul, false),
            (Narrow2::MulF32Ftz, FloatOp::Mul, true),
            (Narrow2::MinF32, FloatOp::Min, false),
            (Narrow2::MaxF32, FloatOp::Max, false),
        ];
        let mut registers = Registers { flags: Vec::new(), narrow: vec![a, b, c, [7; 32]], wide: Vec::new() };
        let mut check = |op, flush, run: &dyn Fn(&mut Registers)| -> Result<(), TestCaseError> {
            registers.narrow[3] = [7; 32];
            run(&mut registers);
            let function = FloatFunction { flush, ..FloatFunction::new(op, Type::F32) };
            for lane in 0..32 {
                let truth = function.apply([a[lane], b[lane], c[lane], 0].map(u64::from)) as u32;
                let wanted = if mask >> lane & 1 == 1 { truth } else { 7 };
                let [a, b, c] = [a[lane], b[lane], c[lane]];
                prop_assert_eq!(registers.narrow[3][lane], wanted, "{:?} of {:x} {:x} {:x}", op, a, b, c);
            }
            Ok(())
        };
        for (fast, op, flush) in cases {
            check(op, flush, &|registers| vector::run_narrow(fast, registers, mask, 3, 0, 1))?;
        }
        for flush in [false, true] {
            let rows = [3, 0, 1, 2];
            check(FloatOp::Fma, flush, &|registers| vector::fma_f32::<false>(flush, registers, mask, rows))?;
            check(FloatOp::Fma, flush, &|registers| vector::fma_f32::<true>(flush, registers, mask, rows))?;
        }
    }
}
