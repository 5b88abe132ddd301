//! Tests single instructions, and in particular their corner cases, against the PTX reference.

use crate::kit::{Bench, kernel};

/// An instruction, the types of its result and operands, the bits of the operands, and the bits of the result.
type Row = (&'static str, &'static str, &'static [u64], u64);

fn bits(ty: &str) -> u32 {
    match ty {
        "p" => 1,
        "h" => 16,
        "r" => 32,
        _ => 64,
    }
}

/// Runs all rows in one kernel. `$o` is the result, and `$a` to `$d` are operands in registers. The types are
/// `h` (16 bits), `r` (32 bits), `l` (64 bits) and `p` (predicates).
fn check(rows: &[Row]) {
    let mut declarations = String::new();
    let mut body = String::new();
    for (number, (instruction, types, operands, _)) in rows.iter().enumerate() {
        let mut types = types.chars();
        let result = types.next().expect("a type of the result");
        let mut text = (*instruction).to_owned();
        for ((name, ty), value) in ["$a", "$b", "$c", "$d"].iter().zip(types).zip(*operands) {
            let register = format!("%i{number}{}", &name[1..]);
            let size = bits(&ty.to_string());
            if ty == 'p' {
                declarations.push_str(&format!(".reg .pred {register};"));
                body.push_str(&format!("setp.ne.u32 {register}, {value}, 0;\n"));
            } else {
                declarations.push_str(&format!(".reg .b{size} {register};"));
                body.push_str(&format!("mov.b{size} {register}, {value:#x};\n"));
            }
            text = text.replace(name, &register);
        }
        let to = format!("%o{number}");
        declarations.push_str(&match result {
            'p' => format!(".reg .pred {to}; .reg .b64 {to}w;\n"),
            ty => format!(".reg .b{} {to}; .reg .b64 {to}w;\n", bits(&ty.to_string())),
        });
        body.push_str(&format!("{};\n", text.replace("$o", &to)));
        body.push_str(&match result {
            'p' => format!("selp.b64 {to}w, 1, 0, {to};\n"),
            'l' => format!("mov.b64 {to}w, {to};\n"),
            'h' => format!("cvt.u64.u16 {to}w, {to};\n"),
            _ => format!("cvt.u64.u32 {to}w, {to};\n"),
        });
        body.push_str(&format!("st.global.b64 [%a+{}], {to}w;\n", 8 * number));
    }
    let mut bench = Bench::new(&kernel(1, &declarations, &body));
    let buffer = bench.buffer(&vec![0xff; 8 * rows.len()]);
    bench.run(1, 1, &[buffer]).expect("a launch");
    let found = bench.bytes(buffer, 8 * rows.len());
    for ((instruction, _, operands, wanted), found) in rows.iter().zip(found.chunks_exact(8)) {
        let found = u64::from_le_bytes(found.try_into().expect("eight bytes"));
        assert_eq!(found, *wanted, "{instruction} of {operands:x?}: {found:#x}, not {wanted:#x}");
    }
}

const NAN: u64 = 0x7fff_ffff;
const INF: u64 = 0x7f80_0000;
const MINUS_ONE: u64 = 0xffff_ffff;
const ONE: u64 = 0x3f80_0000;
const LONG_MINUS_ONE: u64 = u64::MAX;

#[test]
fn integer_arithmetic_matches_the_ptx_reference() {
    check(&[
        ("add.s32 $o, $a, $b", "rrr", &[0x7fff_ffff, 1], 0x8000_0000),
        ("add.sat.s32 $o, $a, $b", "rrr", &[0x7fff_ffff, 1], 0x7fff_ffff),
        ("sub.sat.s32 $o, $a, $b", "rrr", &[0x8000_0000, 1], 0x8000_0000),
        ("add.u16 $o, $a, $b", "hhh", &[0xffff, 2], 1),
        ("sub.s16 $o, $a, $b", "hhh", &[0, 1], 0xffff),
        ("sub.s64 $o, $a, $b", "lll", &[0, 1], LONG_MINUS_ONE),
        ("mul.lo.s32 $o, $a, $b", "rrr", &[MINUS_ONE, 7], 0xffff_fff9),
        ("mul.hi.s32 $o, $a, $b", "rrr", &[MINUS_ONE, 7], MINUS_ONE),
        ("mul.hi.u32 $o, $a, $b", "rrr", &[MINUS_ONE, MINUS_ONE], 0xffff_fffe),
        ("mul.hi.u64 $o, $a, $b", "lll", &[LONG_MINUS_ONE, LONG_MINUS_ONE], u64::MAX - 1),
        ("mul.hi.s64 $o, $a, $b", "lll", &[LONG_MINUS_ONE, LONG_MINUS_ONE], 0),
        ("mul.wide.s32 $o, $a, $b", "lrr", &[MINUS_ONE, 7], u64::MAX - 6),
        ("mul.wide.u32 $o, $a, $b", "lrr", &[MINUS_ONE, MINUS_ONE], 0xffff_fffe_0000_0001),
        ("mul.wide.s16 $o, $a, $b", "rhh", &[0x8000, 0x8000], 0x4000_0000),
        ("mul.wide.u16 $o, $a, $b", "rhh", &[0xffff, 0xffff], 0xfffe_0001),
        ("mad.lo.s32 $o, $a, $b, $c", "rrrr", &[3, 4, 5], 17),
        ("mad.hi.s32 $o, $a, $b, $c", "rrrr", &[MINUS_ONE, 7, 5], 4),
        ("mad.hi.sat.s32 $o, $a, $b, $c", "rrrr", &[0x4000_0000, 4, 0x7fff_ffff], 0x7fff_ffff),
        ("mad.wide.s32 $o, $a, $b, $c", "lrrl", &[MINUS_ONE, 2, 1], LONG_MINUS_ONE),
        ("mad.wide.u16 $o, $a, $b, $c", "rhhr", &[0xffff, 2, 3], 0x2_0001),
        ("mul24.lo.s32 $o, $a, $b", "rrr", &[0xff_ffff, 5], 0xffff_fffb),
        ("mul24.hi.u32 $o, $a, $b", "rrr", &[0xff_ffff, 0xff_ffff], 0xffff_fe00),
        ("mad24.lo.u32 $o, $a, $b, $c", "rrrr", &[0x100_0003, 5, 1], 16),
        ("sad.s32 $o, $a, $b, $c", "rrrr", &[MINUS_ONE, 3, 10], 14),
        ("sad.u32 $o, $a, $b, $c", "rrrr", &[MINUS_ONE, 3, 10], 6),
        ("div.s32 $o, $a, $b", "rrr", &[0x8000_0000, MINUS_ONE], 0x8000_0000),
        ("div.s32 $o, $a, $b", "rrr", &[0xffff_fff9, 2], 0xffff_fffd),
        ("div.u32 $o, $a, $b", "rrr", &[7, 0], MINUS_ONE),
        ("rem.s32 $o, $a, $b", "rrr", &[0xffff_fff9, 4], 0xffff_fffd),
        ("rem.s64 $o, $a, $b", "lll", &[1 << 63, LONG_MINUS_ONE], 0),
        ("rem.u16 $o, $a, $b", "hhh", &[0xffff, 10], 5),
        ("abs.s32 $o, $a", "rr", &[0x8000_0000], 0x8000_0000),
        ("abs.s16 $o, $a", "hh", &[0xfffe], 2),
        ("neg.s64 $o, $a", "ll", &[1], LONG_MINUS_ONE),
        ("min.s32 $o, $a, $b", "rrr", &[MINUS_ONE, 1], MINUS_ONE),
        ("min.u32 $o, $a, $b", "rrr", &[MINUS_ONE, 1], 1),
        ("max.s16 $o, $a, $b", "hhh", &[0xffff, 1], 1),
        ("max.u64 $o, $a, $b", "lll", &[LONG_MINUS_ONE, 1], LONG_MINUS_ONE),
        ("dp4a.u32.s32 $o, $a, $b, $c", "rrrr", &[0xff01_0203, 0xff01_0203, 1], 0xffff_ff10),
        ("dp2a.lo.s32.s32 $o, $a, $b, $c", "rrrr", &[0xffff_0002, 0x0304_ff05, 7], 18),
        ("dp2a.hi.s32.s32 $o, $a, $b, $c", "rrrr", &[0xffff_0002, 0x0304_ff05, 7], 12),
    ]);
}

#[test]
fn bit_operations_and_shifts_match_the_ptx_reference() {
    check(&[
        ("shl.b32 $o, $a, $b", "rrr", &[1, 31], 0x8000_0000),
        ("shl.b32 $o, $a, $b", "rrr", &[1, 32], 0),
        ("shl.b32 $o, $a, $b", "rrr", &[1, MINUS_ONE], 0),
        ("shl.b16 $o, $a, $b", "hhr", &[0xffff, 15], 0x8000),
        ("shl.b64 $o, $a, $b", "llr", &[1, 63], 1 << 63),
        ("shl.b64 $o, $a, $b", "llr", &[1, 64], 0),
        ("shr.u32 $o, $a, $b", "rrr", &[MINUS_ONE, 33], 0),
        ("shr.s32 $o, $a, $b", "rrr", &[0x8000_0000, 33], MINUS_ONE),
        ("shr.b32 $o, $a, $b", "rrr", &[0x8000_0000, 31], 1),
        ("shr.s64 $o, $a, $b", "llr", &[1 << 63, 100], LONG_MINUS_ONE),
        ("shr.u64 $o, $a, $b", "llr", &[1 << 63, 64], 0),
        ("shr.s16 $o, $a, $b", "hhr", &[0x8000, 20], 0xffff),
        ("shr.u16 $o, $a, $b", "hhr", &[0x8000, 15], 1),
        ("shf.l.clamp.b32 $o, $a, $b, $c", "rrrr", &[0x8000_0001, 2, 33], 0x8000_0001),
        ("shf.l.wrap.b32 $o, $a, $b, $c", "rrrr", &[0x8000_0001, 2, 33], 5),
        ("shf.r.clamp.b32 $o, $a, $b, $c", "rrrr", &[0x8000_0001, 2, 40], 2),
        ("shf.r.wrap.b32 $o, $a, $b, $c", "rrrr", &[0x8000_0001, 3, 33], 0xc000_0000),
        ("lop3.b32 $o, $a, $b, $c, 0x96", "rrrr", &[0xff, 0x0f, 0x33], 0xc3),
        ("lop3.b32 $o, $a, $b, $c, 0xe8", "rrrr", &[0xff, 0x0f, 0x33], 0x3f),
        ("not.b16 $o, $a", "hh", &[0xf0f0], 0x0f0f),
        ("cnot.b32 $o, $a", "rr", &[0], 1),
        ("xor.b64 $o, $a, $b", "lll", &[LONG_MINUS_ONE, 1], LONG_MINUS_ONE - 1),
        ("popc.b64 $o, $a", "rl", &[LONG_MINUS_ONE], 64),
        ("clz.b32 $o, $a", "rr", &[0], 32),
        ("clz.b64 $o, $a", "rl", &[1], 63),
        ("brev.b32 $o, $a", "rr", &[1], 0x8000_0000),
        ("brev.b64 $o, $a", "ll", &[2], 1 << 62),
        ("bfind.u32 $o, $a", "rr", &[0x100], 8),
        ("bfind.s32 $o, $a", "rr", &[0xffff_feff], 8),
        ("bfind.s32 $o, $a", "rr", &[MINUS_ONE], MINUS_ONE),
        ("bfind.shiftamt.u64 $o, $a", "rl", &[0x100], 55),
        ("bfe.u32 $o, $a, $b, $c", "rrrr", &[0xabcd_1234, 8, 12], 0xd12),
        ("bfe.s32 $o, $a, $b, $c", "rrrr", &[0x0000_0f00, 8, 4], MINUS_ONE),
        ("bfe.s32 $o, $a, $b, $c", "rrrr", &[0x8000_0000, 28, 20], 0xffff_fff8),
        ("bfe.u32 $o, $a, $b, $c", "rrrr", &[MINUS_ONE, 32, 4], 0),
        ("bfe.s32 $o, $a, $b, $c", "rrrr", &[0x8000_0000, 40, 4], MINUS_ONE),
        ("bfe.u64 $o, $a, $b, $c", "llrr", &[LONG_MINUS_ONE, 60, 64], 15),
        ("bfe.s32 $o, $a, $b, $c", "rrrr", &[MINUS_ONE, 3, 0], 0),
        ("bfi.b32 $o, $a, $b, $c, $d", "rrrrr", &[0xff, 0, 4, 4], 0xf0),
        ("bfi.b32 $o, $a, $b, $c, $d", "rrrrr", &[0xff, 0x1234_5678, 32, 4], 0x1234_5678),
        ("bfi.b64 $o, $a, $b, $c, $d", "lllrr", &[LONG_MINUS_ONE, 0, 60, 20], 0xf << 60),
        ("prmt.b32 $o, $a, $b, $c", "rrrr", &[0x0302_0180, 0x0706_0504, 0x7620], 0x0706_0280),
        ("prmt.b32 $o, $a, $b, $c", "rrrr", &[0x0302_0180, 0x0706_0504, 0x9898], 0x00ff_00ff),
        ("prmt.b32.f4e $o, $a, $b, $c", "rrrr", &[0x0302_0100, 0x0706_0504, 2], 0x0504_0302),
        ("prmt.b32.b4e $o, $a, $b, $c", "rrrr", &[0x0302_0100, 0x0706_0504, 1], 0x0607_0001),
        ("prmt.b32.rc8 $o, $a, $b, $c", "rrrr", &[0x0302_0100, 0x0706_0504, 2], 0x0202_0202),
        ("prmt.b32.ecl $o, $a, $b, $c", "rrrr", &[0x0302_0100, 0x0706_0504, 2], 0x0302_0202),
        ("prmt.b32.ecr $o, $a, $b, $c", "rrrr", &[0x0302_0100, 0x0706_0504, 1], 0x0101_0100),
        ("prmt.b32.rc16 $o, $a, $b, $c", "rrrr", &[0x0302_0100, 0x0706_0504, 1], 0x0302_0302),
        ("bmsk.clamp.b32 $o, $a, $b", "rrr", &[4, 8], 0xff0),
        ("bmsk.wrap.b32 $o, $a, $b", "rrr", &[36, 40], 0xff0),
        ("bmsk.clamp.b32 $o, $a, $b", "rrr", &[0, 99], MINUS_ONE),
        ("szext.clamp.s32 $o, $a, $b", "rrr", &[0x8, 4], 0xffff_fff8),
        ("szext.clamp.u32 $o, $a, $b", "rrr", &[0xf8, 4], 8),
        ("szext.wrap.s32 $o, $a, $b", "rrr", &[0xf8, 36], 0xffff_fff8),
    ]);
}

#[test]
fn floats_of_32_and_64_bits_match_the_ptx_reference() {
    check(&[
        ("add.f32 $o, $a, $b", "rrr", &[INF, INF | 1 << 31], NAN),
        ("add.rn.f32 $o, $a, $b", "rrr", &[ONE, 0x3380_0000], ONE),
        ("add.rp.f32 $o, $a, $b", "rrr", &[ONE, 1], ONE + 1),
        ("add.rm.f32 $o, $a, $b", "rrr", &[ONE, 0x8000_0001], ONE - 1),
        ("add.rz.f32 $o, $a, $b", "rrr", &[ONE, 0x8000_0001], ONE - 1),
        ("add.rm.f32 $o, $a, $b", "rrr", &[ONE, ONE | 1 << 31], 1 << 31),
        ("add.ftz.f32 $o, $a, $b", "rrr", &[1, 1], 0),
        ("add.sat.f32 $o, $a, $b", "rrr", &[ONE, ONE], ONE),
        ("add.sat.f32 $o, $a, $b", "rrr", &[NAN, ONE], 0),
        ("mul.f32 $o, $a, $b", "rrr", &[1, 0x4000_0000], 2),
        ("mul.ftz.f32 $o, $a, $b", "rrr", &[0x8000_0001, 0x4000_0000], 1 << 31),
        ("mul.rp.f32 $o, $a, $b", "rrr", &[1, 1], 1),
        ("mul.rz.f32 $o, $a, $b", "rrr", &[0x7f7f_ffff, 0x4000_0000], 0x7f7f_ffff),
        ("fma.rn.f32 $o, $a, $b, $c", "rrrr", &[0x3f80_0001, 0x3f80_0001, 0xbf80_0002], 0x2880_0000),
        ("fma.rz.f32 $o, $a, $b, $c", "rrrr", &[ONE, ONE, 0xb380_0000], 0x3f7f_ffff),
        (
            "fma.rn.f64 $o, $a, $b, $c",
            "llll",
            &[0x3ff0_0000_0000_0001, 0x3ff0_0000_0000_0001, 0xbff0_0000_0000_0002],
            0x3970_0000_0000_0000,
        ),
        ("fma.rp.f64 $o, $a, $b, $c", "llll", &[1, 1, 0x3ff0_0000_0000_0000], 0x3ff0_0000_0000_0001),
        ("div.rn.f32 $o, $a, $b", "rrr", &[ONE, 0], INF),
        ("div.rz.f32 $o, $a, $b", "rrr", &[0x4000_0000, 0x4040_0000], 0x3f2a_aaaa),
        (
            "div.rp.f64 $o, $a, $b",
            "lll",
            &[0x3ff0_0000_0000_0000, 0x4008_0000_0000_0000],
            0x3fd5_5555_5555_5556,
        ),
        ("div.approx.f32 $o, $a, $b", "rrr", &[ONE, 0x7f00_0000], 0),
        ("div.approx.f32 $o, $a, $b", "rrr", &[0x7fc0_0000, 0x7f00_0000], 0x7fff_ffff),
        ("div.full.f32 $o, $a, $b", "rrr", &[ONE, 0x7f00_0000], 0x0040_0000),
        ("rcp.rn.f32 $o, $a", "rr", &[0x8000_0000], INF | 1 << 31),
        ("rcp.approx.ftz.f32 $o, $a", "rr", &[1], INF),
        ("sqrt.rn.f32 $o, $a", "rr", &[0x4000_0000], 0x3fb5_04f3),
        ("sqrt.rp.f32 $o, $a", "rr", &[0x4000_0000], 0x3fb5_04f4),
        ("sqrt.rn.f32 $o, $a", "rr", &[0xbf80_0000], NAN),
        ("sqrt.rm.f64 $o, $a", "ll", &[0x4000_0000_0000_0000], 0x3ff6_a09e_667f_3bcc),
        ("rsqrt.approx.f32 $o, $a", "rr", &[0x4080_0000], 0x3f00_0000),
        ("ex2.approx.f32 $o, $a", "rr", &[0x4040_0000], 0x4100_0000),
        ("ex2.approx.ftz.f32 $o, $a", "rr", &[0xc316_0000], 0),
        ("lg2.approx.f32 $o, $a", "rr", &[0], INF | 1 << 31),
        ("lg2.approx.f32 $o, $a", "rr", &[0xbf80_0000], NAN),
        ("sin.approx.f32 $o, $a", "rr", &[INF], NAN),
        ("cos.approx.f32 $o, $a", "rr", &[0], ONE),
        ("tanh.approx.f32 $o, $a", "rr", &[INF], ONE),
        ("neg.f32 $o, $a", "rr", &[0], 1 << 31),
        ("abs.ftz.f32 $o, $a", "rr", &[0x8000_0001], 0),
        ("abs.f64 $o, $a", "ll", &[1 << 63], 0),
        ("min.f32 $o, $a, $b", "rrr", &[0, 1 << 31], 1 << 31),
        ("max.f32 $o, $a, $b", "rrr", &[0, 1 << 31], 0),
        ("min.f32 $o, $a, $b", "rrr", &[NAN, ONE], ONE),
        ("max.f32 $o, $a, $b", "rrr", &[ONE, 0xffc0_0000], ONE),
        ("max.f32 $o, $a, $b", "rrr", &[0x7f80_0001, 0xffc0_0000], NAN),
        ("max.NaN.f32 $o, $a, $b", "rrr", &[ONE, 0xffc0_0000], NAN),
        ("min.xorsign.abs.f32 $o, $a, $b", "rrr", &[0xc000_0000, ONE], 0xbf80_0000),
        ("min.f64 $o, $a, $b", "lll", &[0x3ff0_0000_0000_0000, 0x7ff8_0000_0000_0000], 0x3ff0_0000_0000_0000),
        ("copysign.f32 $o, $a, $b", "rrr", &[0x8000_0000, ONE], 0xbf80_0000),
        ("testp.subnormal.f32 $o, $a", "pr", &[1], 1),
        ("testp.notanumber.f32 $o, $a", "pr", &[NAN], 1),
        ("testp.finite.f64 $o, $a", "pl", &[0x7ff0_0000_0000_0000], 0),
    ]);
}

#[test]
fn floats_of_16_bits_match_the_ptx_reference() {
    check(&[
        ("add.f16 $o, $a, $b", "hhh", &[0x3c00, 0x3c00], 0x4000),
        ("add.rn.f16 $o, $a, $b", "hhh", &[0x7bff, 0x7bff], 0x7c00),
        ("add.sat.f16 $o, $a, $b", "hhh", &[0x3c00, 0x3c00], 0x3c00),
        ("add.f16 $o, $a, $b", "hhh", &[0x7c00, 0xfc00], 0x7fff),
        ("sub.f16 $o, $a, $b", "hhh", &[0x0001, 0x0002], 0x8001),
        ("sub.ftz.f16 $o, $a, $b", "hhh", &[0x0001, 0x0002], 0),
        ("mul.f16 $o, $a, $b", "hhh", &[0x0400, 0x3800], 0x0200),
        ("mul.f16x2 $o, $a, $b", "rrr", &[0x4000_c000, 0x4200_4200], 0x4600_c600),
        ("add.f16x2 $o, $a, $b", "rrr", &[0x3c00_7c00, 0x3c00_fc00], 0x4000_7fff),
        // These are rounded only once, after the sum.
        ("fma.rn.f16 $o, $a, $b, $c", "hhhh", &[0x3c01, 0x3c01, 0x1000], 0x3c03),
        ("fma.rn.relu.f16 $o, $a, $b, $c", "hhhh", &[0xbc00, 0x3c00, 0x3800], 0),
        ("fma.rn.f16x2 $o, $a, $b, $c", "rrrr", &[0x4000_3c00, 0x4000_3c00, 0x3c00_bc00], 0x4500_0000),
        ("fma.rn.bf16 $o, $a, $b, $c", "hhhh", &[0x3f81, 0x3f81, 0xbf80], 0x3c80),
        ("fma.rn.bf16x2 $o, $a, $b, $c", "rrrr", &[0x4000_3f80, 0x4000_3f80, 0x3f80_bf80], 0x40a0_0000),
        ("neg.f16x2 $o, $a", "rr", &[0x3c00_8000], 0xbc00_0000),
        ("abs.bf16 $o, $a", "hh", &[0xbf80], 0x3f80),
        ("min.f16 $o, $a, $b", "hhh", &[0x8000, 0], 0x8000),
        ("max.NaN.f16x2 $o, $a, $b", "rrr", &[0x3c00_7e00, 0x4000_3c00], 0x4000_7fff),
        ("max.bf16x2 $o, $a, $b", "rrr", &[0x3f80_ffc0, 0x4000_3f80], 0x4000_3f80),
        ("ex2.approx.f16 $o, $a", "hh", &[0x4200], 0x4800),
        ("tanh.approx.f16x2 $o, $a", "rr", &[0x7c00_0000], 0x3c00_0000),
        ("setp.lt.f16 $o, $a, $b", "phh", &[0x8000, 0], 0),
        ("setp.gtu.f16 $o, $a, $b", "phh", &[0x7e00, 0], 1),
        ("set.eq.f16x2.f16x2 $o, $a, $b", "rrr", &[0x3c00_4000, 0x3c00_4100], 0x3c00_0000),
        ("set.lt.u32.f16 $o, $a, $b", "rhh", &[0xbc00, 0], MINUS_ONE),
    ]);
}

#[test]
fn conversions_match_the_ptx_reference() {
    check(&[
        ("cvt.u32.u16 $o, $a", "rh", &[0xffff], 0xffff),
        ("cvt.s32.s16 $o, $a", "rh", &[0xffff], MINUS_ONE),
        ("cvt.s64.s32 $o, $a", "lr", &[0x8000_0000], 0xffff_ffff_8000_0000),
        ("cvt.u64.u32 $o, $a", "lr", &[0x8000_0000], 0x8000_0000),
        ("cvt.u64.s32 $o, $a", "lr", &[MINUS_ONE], LONG_MINUS_ONE),
        ("cvt.u16.u32 $o, $a", "hr", &[0x12_3456], 0x3456),
        ("cvt.s8.s32 $o, $a", "rr", &[0x80], 0xffff_ff80),
        ("cvt.u8.s32 $o, $a", "rr", &[0x180], 0x80),
        ("cvt.sat.u8.s32 $o, $a", "rr", &[MINUS_ONE], 0),
        ("cvt.sat.s8.s32 $o, $a", "rr", &[200], 127),
        ("cvt.sat.u16.s32 $o, $a", "hr", &[70000], 0xffff),
        ("cvt.sat.s32.u64 $o, $a", "rl", &[LONG_MINUS_ONE], 0x7fff_ffff),
        ("cvt.rzi.s32.f32 $o, $a", "rr", &[0xbfc0_0000], MINUS_ONE),
        ("cvt.rni.s32.f32 $o, $a", "rr", &[0x4020_0000], 2),
        ("cvt.rmi.s32.f32 $o, $a", "rr", &[0xbe80_0000], MINUS_ONE),
        ("cvt.rpi.u32.f32 $o, $a", "rr", &[0x3e80_0000], 1),
        ("cvt.rzi.s32.f32 $o, $a", "rr", &[NAN], 0),
        ("cvt.rzi.s64.f32 $o, $a", "lr", &[NAN], 1 << 63),
        ("cvt.rzi.s32.f64 $o, $a", "rl", &[0x7ff8_0000_0000_0000], 0x8000_0000),
        ("cvt.rzi.s32.f32 $o, $a", "rr", &[INF], 0x7fff_ffff),
        ("cvt.rzi.u32.f32 $o, $a", "rr", &[0xbf80_0000], 0),
        ("cvt.rzi.u64.f64 $o, $a", "ll", &[0x43f0_0000_0000_0000], LONG_MINUS_ONE),
        ("cvt.rzi.s16.f32 $o, $a", "hr", &[0x4800_0000], 0x7fff),
        ("cvt.rzi.ftz.u32.f32 $o, $a", "rr", &[0x3f00_0000], 0),
        ("cvt.rpi.ftz.u32.f32 $o, $a", "rr", &[1], 0),
        ("cvt.rn.f32.s32 $o, $a", "rr", &[0x7fff_ffff], 0x4f00_0000),
        ("cvt.rz.f32.s32 $o, $a", "rr", &[0x7fff_ffff], 0x4eff_ffff),
        ("cvt.rn.f32.u64 $o, $a", "rl", &[LONG_MINUS_ONE], 0x5f80_0000),
        ("cvt.rn.f64.s64 $o, $a", "ll", &[LONG_MINUS_ONE], 0xbff0_0000_0000_0000),
        ("cvt.rn.f16.s32 $o, $a", "hr", &[70000], 0x7c00),
        ("cvt.rn.f32.f64 $o, $a", "rl", &[0x3ff0_0000_1000_0000], ONE),
        ("cvt.rp.f32.f64 $o, $a", "rl", &[0x3ff0_0000_1000_0000], ONE + 1),
        ("cvt.rn.f32.f64 $o, $a", "rl", &[0x47f0_0000_0000_0000], INF),
        ("cvt.rz.f32.f64 $o, $a", "rl", &[0x47f0_0000_0000_0000], 0x7f7f_ffff),
        ("cvt.f64.f32 $o, $a", "lr", &[1], 0x36a0_0000_0000_0000),
        ("cvt.ftz.f64.f32 $o, $a", "lr", &[1], 0),
        ("cvt.sat.f32.f32 $o, $a", "rr", &[0x4000_0000], ONE),
        ("cvt.sat.f32.f32 $o, $a", "rr", &[NAN], 0),
        ("cvt.rni.f32.f32 $o, $a", "rr", &[0x3fc0_0000], 0x4000_0000),
        ("cvt.rzi.f32.f32 $o, $a", "rr", &[0xbf00_0000], 1 << 31),
        ("cvt.f32.f16 $o, $a", "rh", &[1], 0x3380_0000),
        ("cvt.f32.bf16 $o, $a", "rh", &[0x3f80], ONE),
        ("cvt.rn.f16.f32 $o, $a", "hr", &[0x3380_0000], 1),
        ("cvt.rn.f16.f32 $o, $a", "hr", &[0x477f_f000], 0x7c00),
        ("cvt.rz.f16.f32 $o, $a", "hr", &[0x477f_f000], 0x7bff),
        ("cvt.rn.bf16.f32 $o, $a", "hr", &[0x3f80_8000], 0x3f80),
        ("cvt.rn.bf16.f32 $o, $a", "hr", &[0x3f81_8000], 0x3f82),
        ("cvt.rn.relu.bf16.f32 $o, $a", "hr", &[0xbf80_0000], 0),
        ("cvt.rn.f16x2.f32 $o, $a, $b", "rrr", &[ONE, 0xc000_0000], 0x3c00_c000),
        ("cvt.rz.bf16x2.f32 $o, $a, $b", "rrr", &[0x3f80_ffff, 0xbf80_ffff], 0x3f80_bf80),
        ("cvt.rni.s32.f16 $o, $a", "rh", &[0xc100], 0xffff_fffe),
        ("mov.b64 $o, {$a, $b}", "lrr", &[1, 2], 0x2_0000_0001),
        ("mov.b32 $o, {$a, $b}", "rhh", &[0x1234, 0xabcd], 0xabcd_1234),
        ("mov.b32 {_, $o}, $a", "hr", &[0xabcd_1234], 0xabcd),
    ]);
}

#[test]
fn comparisons_and_selections_match_the_ptx_reference() {
    check(&[
        ("setp.lt.s32 $o, $a, $b", "prr", &[MINUS_ONE, 0], 1),
        ("setp.lt.u32 $o, $a, $b", "prr", &[MINUS_ONE, 0], 0),
        ("setp.lo.u32 $o, $a, $b", "prr", &[0, MINUS_ONE], 1),
        ("setp.hs.u32 $o, $a, $b", "prr", &[5, 5], 1),
        ("setp.ge.s64 $o, $a, $b", "pll", &[LONG_MINUS_ONE, 0], 0),
        ("setp.lt.s16 $o, $a, $b", "phh", &[0xffff, 0], 1),
        ("setp.lt.u16 $o, $a, $b", "phh", &[0xffff, 0], 0),
        ("setp.eq.f32 $o, $a, $b", "prr", &[0, 1 << 31], 1),
        ("setp.ne.f32 $o, $a, $b", "prr", &[NAN, 0], 0),
        ("setp.neu.f32 $o, $a, $b", "prr", &[NAN, 0], 1),
        ("setp.ltu.f32 $o, $a, $b", "prr", &[NAN, 0], 1),
        ("setp.num.f32 $o, $a, $b", "prr", &[NAN, 0], 0),
        ("setp.nan.f64 $o, $a, $b", "pll", &[0x7ff8_0000_0000_0000, 0], 1),
        ("setp.eq.ftz.f32 $o, $a, $b", "prr", &[1, 0], 1),
        ("setp.eq.and.s32 $o, $a, $b, $c", "prrp", &[1, 1, 0], 0),
        ("setp.eq.or.s32 $o, $a, $b, !$c", "prrp", &[1, 2, 0], 1),
        ("setp.eq.xor.s32 $o, $a, $b, $c", "prrp", &[1, 1, 1], 0),
        ("setp.eq.s32 _|$o, $a, $b", "prr", &[1, 2], 1),
        ("set.lt.u32.s32 $o, $a, $b", "rrr", &[MINUS_ONE, 0], MINUS_ONE),
        ("set.lt.f32.s32 $o, $a, $b", "rrr", &[MINUS_ONE, 0], ONE),
        ("set.gt.and.s32.f32 $o, $a, $b, $c", "rrrp", &[ONE, 0, 1], MINUS_ONE),
        ("selp.b32 $o, $a, $b, $c", "rrrp", &[1, 2, 0], 2),
        ("selp.f64 $o, $a, $b, $c", "lllp", &[1, 2, 1], 1),
        ("selp.u16 $o, $a, $b, !$c", "hhhp", &[1, 2, 1], 2),
        ("slct.s32.s32 $o, $a, $b, $c", "rrrr", &[1, 2, MINUS_ONE], 2),
        ("slct.f32.f32 $o, $a, $b, $c", "rrrr", &[1, 2, 1 << 31], 1),
        ("slct.f32.f32 $o, $a, $b, $c", "rrrr", &[1, 2, NAN], 2),
        ("and.pred $o, $a, $b", "ppp", &[1, 0], 0),
        ("or.pred $o, $a, !$b", "ppp", &[0, 0], 1),
        ("xor.pred $o, $a, $b", "ppp", &[1, 1], 0),
        ("not.pred $o, $a", "pp", &[0], 1),
        ("mov.pred $o, !$a", "pp", &[0], 1),
    ]);
}

#[test]
fn carries_reach_the_next_instruction() {
    check(&[
        ("add.cc.u32 $o, $a, $b; addc.u32 $o, 5, 0", "rrr", &[MINUS_ONE, 1], 6),
        ("sub.cc.u32 $o, $a, $b; subc.u32 $o, 5, 0", "rrr", &[0, 1], 4),
        ("add.cc.u64 $o, $a, $b; addc.u64 $o, 0, 0", "lll", &[LONG_MINUS_ONE, 1], 1),
        ("mad.lo.cc.u32 $o, $a, $b, $a; madc.hi.u32 $o, $a, $b, 0", "rrr", &[MINUS_ONE, 2], 2),
        ("add.cc.u32 $o, $a, $b; addc.cc.u32 $o, $a, 0; addc.u32 $o, 0, 0", "rrr", &[MINUS_ONE, 1], 1),
    ]);
}

#[test]
fn barrier_reduction_covers_only_existing_threads() {
    // The second warp has 16 threads, but the barrier counts whole warps.
    for (name, predicate, wanted) in [("and", "and.pred", 1), ("or", "or.pred", 1), ("popc", "popc.u32", 48)]
    {
        let to = if name == "popc" { "%r2" } else { "%p2" };
        let declarations = ".reg .b32 %r<4>; .reg .b64 %rd<2>; .reg .pred %p<3>;";
        let body = format!(
            "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 48;\nbar.red.{predicate} {to}, 0, 64, %p1;\n{}\
             mul.wide.u32 %rd1, %r1, 4;\nadd.u64 %rd1, %a, %rd1;\nst.global.u32 [%rd1], %r2;",
            if name == "popc" { "" } else { "selp.u32 %r2, 1, 0, %p2;\n" }
        );
        let mut bench = Bench::new(&kernel(1, declarations, &body));
        let buffer = bench.buffer(&[0xff; 4 * 48]);
        bench.run(1, 48, &[buffer]).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        for found in bench.bytes(buffer, 4 * 48).chunks_exact(4) {
            assert_eq!(u32::from_le_bytes(found.try_into().expect("four bytes")), wanted, "{name}");
        }
    }
}
