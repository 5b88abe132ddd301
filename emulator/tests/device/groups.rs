//! Tests operations among the lanes of a warp whose lanes have different masks of members.

use opt_emulator::{Fault, FaultKind};

use crate::kit::{Bench, REGISTERS, kernel, line_of};

/// Runs one warp whose lanes have their own mask in `%r2`, and their lane in `%r1`. `body` computes `%r3`. Returns its
/// value in each lane.
fn run(mask: &str, body: &str) -> Result<Vec<u32>, Fault> {
    let text = kernel(
        1,
        REGISTERS,
        &format!(
            "mov.u32 %r1, %laneid;\n{mask}\n{body}\nmul.wide.u32 %rd1, %r1, 4;\nadd.u64 %rd1, %a, %rd1;\n\
             st.global.u32 [%rd1], %r3;"
        ),
    );
    let mut bench = Bench::new(&text);
    let buffer = bench.buffer(&[0xff; 128]);
    bench.run(1, 32, &[buffer])?;
    let bytes = bench.bytes(buffer, 128);
    Ok(bytes.chunks_exact(4).map(|it| u32::from_le_bytes([it[0], it[1], it[2], it[3]])).collect())
}

/// Each half of the warp has its own mask.
const HALVES: &str = "and.b32 %r4, %r1, 16;\nmov.u32 %r5, 0xffff;\nshl.b32 %r2, %r5, %r4;";

#[test]
fn lanes_with_the_same_mask_form_a_group() {
    for (body, low, high) in [
        ("setp.ge.u32 %p1, %r1, 4;\nvote.sync.ballot.b32 %r3, %p1, %r2;", 0xfff0, 0xffff_0000),
        ("setp.ge.u32 %p1, %r1, 16;\nvote.sync.any.pred %p2, %p1, %r2;\nselp.u32 %r3, 1, 0, %p2;", 0, 1),
        ("setp.ge.u32 %p1, %r1, 16;\nvote.sync.all.pred %p2, %p1, %r2;\nselp.u32 %r3, 1, 0, %p2;", 0, 1),
        ("mov.u32 %r6, 7;\nmatch.any.sync.b32 %r3, %r6, %r2;", 0xffff, 0xffff_0000),
        ("mov.u32 %r6, 7;\nmatch.all.sync.b32 %r3|%p1, %r6, %r2;", 0xffff, 0xffff_0000),
        ("redux.sync.add.u32 %r3, %r1, %r2;", 120, 376),
        ("redux.sync.max.u32 %r3, %r1, %r2;", 15, 31),
    ] {
        let found = run(HALVES, body).expect("a launch");
        assert!(found[..16].iter().all(|&it| it == low), "{body}: {found:x?}");
        assert!(found[16..].iter().all(|&it| it == high), "{body}: {found:x?}");
    }
    // The lanes of a remainder modulo 3 take part together, and the parts reach the instruction one after the other.
    let mask = "rem.u32 %r4, %r1, 3;\nmov.u32 %r5, 0x49249249;\nshl.b32 %r2, %r5, %r4;";
    let body = "setp.eq.u32 %p1, %r4, 1;\n@%p1 bra LATER;\nadd.u32 %r6, %r4, 1;\nbra MEET;\nLATER:\nmov.u32 %r6, 9;\n\
                MEET:\nredux.sync.add.u32 %r3, %r6, %r2;";
    let found = run(mask, body).expect("a launch");
    for (lane, sum) in found.iter().enumerate() {
        assert_eq!(*sum, [11, 99, 30][lane % 3], "lane {lane}");
    }
}

#[test]
fn lane_outside_its_own_mask_is_reported() {
    for body in
        ["bar.warp.sync %r2;", "shfl.sync.idx.b32 %r3, %r1, 0, 31, %r2;", "redux.sync.add.u32 %r3, %r1, %r2;"]
    {
        let fault = run("mov.u32 %r2, 0xfffffffd;", body).expect_err("lane 1 is not in its mask");
        assert!(
            matches!(&fault.kind, FaultKind::InvalidValue(what) if what.contains("0xfffffffd")),
            "{fault}"
        );
        assert_eq!(fault.site.expect("a site").lane, 1);
    }
}

#[test]
fn value_of_a_lane_that_does_not_take_part_is_undefined() {
    let body = "mov.u32 %r3, 5;\nsetp.lt.u32 %p1, %r1, 16;\n@%p1 shfl.sync.idx.b32 %r3, %r1, 20, 31, %r2;";
    let found = run("mov.u32 %r2, 0xffff;", body).expect("a launch");
    assert!(found[..16].iter().all(|&it| f32::from_bits(it).is_nan()), "{found:x?}");
    assert!(found[16..].iter().all(|&it| it == 5), "{found:x?}");
}

#[test]
fn group_whose_member_waits_with_another_mask_never_completes() {
    // Lane 7 goes on to the barrier. If it ended, it would no longer be missing.
    let fault = run(
        "setp.eq.u32 %p1, %r1, 7;\nselp.b32 %r2, 0x80, 0xffffffff, %p1;",
        "redux.sync.add.u32 %r3, %r1, %r2;\nbar.sync 0;",
    )
    .expect_err("lane 7 is missing");
    assert_eq!(fault.kind, FaultKind::WarpDivergence);
}

#[test]
fn dot_begins_a_new_word_in_a_directive() {
    let text =
        kernel(1, "{.reg.b16 hl, hu;.reg.pred p;\nmov.u16 hl, 3;}", "").replace(".reg .b64", ".reg.b64");
    let mut bench = Bench::new(&text);
    let buffer = bench.buffer(&[0; 4]);
    bench.run(1, 1, &[buffer]).expect("a launch");
    assert_eq!(line_of(&text, ".reg.b64 %a"), 6);
}
