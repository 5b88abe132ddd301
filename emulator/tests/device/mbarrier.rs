//! Tests of barriers in shared memory (`mbarrier`).

use opt_emulator::{Fault, FaultKind, Launch, Limit};

use crate::kit::{Bench, REGISTERS, kernel, line_of, load_error};

/// The declarations of the tests: a barrier, and a word for each thread of two warps.
fn declarations() -> String {
    format!("{REGISTERS} .shared .align 8 .b64 bar[2]; .shared .align 16 .b8 words[256];")
}

/// Two warps write a word each, and read that of the thread with the opposite number. `before` comes before the
/// barrier's use, `wait` between write and read.
fn exchange(before: &str, write: &str, wait: &str) -> String {
    let body = format!(
        "mov.u32 %r0, %tid.x; mov.u32 %r1, words; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2;\n\
         mov.u32 %r4, bar; setp.eq.u32 %p0, %r0, 0; mul.wide.u32 %rd0, %r0, 4; add.u64 %rd1, %a, %rd0;\n\
         {before}\n{write}\n{wait}\n\
         sub.u32 %r5, %r1, %r2; ld.shared.b32 %r6, [%r5+252]; add.u64 %rd2, %b, %rd0; st.global.b32 [%rd2], %r6;"
    );
    kernel(2, &declarations(), &body)
}

const INIT: &str = "@%p0 mbarrier.init.shared.b64 [%r4], 64; bar.sync 0;";
const WRITE: &str = "ld.global.b32 %r7, [%rd1]; st.shared.b32 [%r3], %r7;";
const WAIT: &str = "mbarrier.arrive.shared.b64 %rd3, [%r4];\n\
                    again: mbarrier.test_wait.shared.b64 %p1, [%r4], %rd3; @!%p1 bra again;";

/// Runs a kernel of two warps on the numbers from 0 to 63. Returns its output.
fn run(text: &str) -> Result<Vec<u32>, Fault> {
    let mut bench = Bench::new(text);
    let input: Vec<u8> = (0..64_u32).flat_map(u32::to_le_bytes).collect();
    let (a, b) = (bench.buffer(&input), bench.buffer(&[0xee; 256]));
    bench.run(1, 64, &[a, b])?;
    let words = bench.bytes(b, 256);
    Ok(words.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect())
}

#[test]
fn threads_see_what_others_wrote_before_the_phase() {
    let wanted: Vec<u32> = (0..64).rev().collect();
    for (what, write, wait) in [
        ("the state of an arrival", WRITE, WAIT),
        (
            "the parity of the first phase",
            WRITE,
            "mbarrier.arrive.shared::cta.b64 _, [%r4];\n\
             again: mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r4], 0; @!%p1 bra again;",
        ),
        (
            "a generic address",
            WRITE,
            "cvta.shared.u64 %rd4, 0; cvt.u64.u32 %rd5, %r4; add.u64 %rd4, %rd4, %rd5;\n\
             mbarrier.arrive.b64 %rd3, [%rd4];\n\
             again: mbarrier.test_wait.b64 %p1, [%rd4], %rd3; @!%p1 bra again;",
        ),
        (
            "the order that is the default",
            WRITE,
            "mbarrier.arrive.release.cta.shared.b64 %rd3, [%r4];\n\
             again: mbarrier.test_wait.acquire.cta.shared.b64 %p1, [%r4], %rd3; @!%p1 bra again;",
        ),
        (
            "copies whose arrivals are expected",
            "cp.async.ca.shared.global [%r3], [%rd1], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%r4];",
            "again: mbarrier.test_wait.parity.shared.b64 %p1, [%r4], 0; @!%p1 bra again;",
        ),
        (
            "copies whose arrivals are additional",
            "cp.async.ca.shared.global [%r3], [%rd1], 4; cp.async.mbarrier.arrive.shared.b64 [%r4];",
            WAIT,
        ),
    ] {
        let text = exchange(INIT, write, wait);
        let found = run(&text).unwrap_or_else(|fault| panic!("{what}: {fault}"));
        assert_eq!(found, wanted, "{what}");
    }
}

#[test]
fn missing_waits_and_unordered_initialisations_are_races() {
    let late = "@%p0 mbarrier.init.shared.b64 [%r4], 64;";
    for (before, wait, words) in [
        (INIT, "", ["ld.shared", "st.shared"]),
        (INIT, "mbarrier.arrive.shared.b64 %rd3, [%r4];", ["ld.shared", "st.shared"]),
        (late, WAIT, ["mbarrier.init", "mbarrier.arrive"]),
        // The phase before the first one counts as complete, but orders nothing.
        (
            INIT,
            "mbarrier.arrive.shared.b64 _, [%r4];\n\
             again: mbarrier.test_wait.parity.shared.b64 %p1, [%r4], 1; @!%p1 bra again;",
            ["ld.shared", "st.shared"],
        ),
        // Arrivals at a barrier do not order what threads do that wait for another one.
        (
            "@%p0 mbarrier.init.shared.b64 [%r4], 64; @%p0 mbarrier.init.shared.b64 [%r4+8], 1; bar.sync 0;",
            "mbarrier.arrive.shared.b64 _, [%r4]; @%p0 mbarrier.arrive.shared.b64 _, [%r4+8];\n\
             again: mbarrier.test_wait.parity.shared.b64 %p1, [%r4+8], 0; @!%p1 bra again;",
            ["ld.shared", "st.shared"],
        ),
        (
            INIT,
            "mbarrier.arrive.shared.b64 _, [%r4]; @%p0 mbarrier.inval.shared.b64 [%r4];",
            ["mbarrier.inval", "mbarrier.arrive"],
        ),
    ] {
        let text = exchange(before, WRITE, wait);
        let fault = run(&text).expect_err("a race");
        let FaultKind::Race { other, .. } = &fault.kind else { panic!("{fault}") };
        let mut lines = [fault.site.as_ref().expect("a thread").line, other.site.line];
        lines.sort_unstable_by_key(|line| {
            text.lines().nth(*line as usize - 1).map(|text| !text.contains(words[0]))
        });
        for (line, word) in lines.into_iter().zip(words) {
            assert!(
                text.lines().nth(line as usize - 1).is_some_and(|text| text.contains(word)),
                "{word}: {fault}"
            );
        }
    }
}

/// Runs instructions in one thread, with the barrier's address in `%r4`. Returns the word in `%r9`.
fn single(instructions: &str) -> Result<u32, Fault> {
    let body = format!("mov.u32 %r4, bar;\n{instructions}\nst.global.b32 [%a], %r9;");
    let mut bench = Bench::new(&kernel(1, &declarations(), &body));
    let output = bench.buffer(&[0; 8]);
    bench.run(1, 1, &[output])?;
    Ok(u32::from_le_bytes(bench.bytes(output, 4).try_into().expect("four bytes")))
}

#[test]
fn phases_count_their_arrivals() {
    // A wait sets %p1, from which %r9 gets 1 or 0.
    let flag = "selp.u32 %r9, 1, 0, %p1;";
    for (instructions, wanted) in [
        // An arrival returns the state before it.
        ("mbarrier.arrive.shared.b64 %rd1, [%r4]; mbarrier.pending_count.b64 %r9, %rd1;", 3),
        (
            "mbarrier.arrive.shared.b64 _, [%r4]; mbarrier.arrive.shared.b64 %rd1, [%r4]; mbarrier.pending_count.b64 %r9, %rd1;",
            2,
        ),
        (
            "mbarrier.arrive.noComplete.shared.b64 _, [%r4], 2; mbarrier.arrive.shared.b64 _, [%r4];\n\
             mbarrier.arrive.shared.b64 %rd1, [%r4]; mbarrier.pending_count.b64 %r9, %rd1;",
            3,
        ),
        (
            "mbarrier.arrive.noComplete.shared.b64 %rd1, [%r4], 2; mbarrier.test_wait.shared.b64 %p1, [%r4], %rd1;",
            0,
        ),
        (
            "mbarrier.arrive.noComplete.shared.b64 %rd1, [%r4], 2; mbarrier.arrive.shared.b64 _, [%r4];\n\
             mbarrier.test_wait.shared.b64 %p1, [%r4], %rd1;",
            1,
        ),
        ("mbarrier.test_wait.parity.shared.b64 %p1, [%r4], 0;", 0),
        ("mbarrier.test_wait.parity.shared.b64 %p1, [%r4], 1;", 1),
        (
            "mbarrier.arrive.noComplete.shared.b64 _, [%r4], 2; mbarrier.arrive.shared.b64 _, [%r4];\n\
             mbarrier.test_wait.parity.shared.b64 %p1, [%r4], 0;",
            1,
        ),
        // Later phases expect two arrivals.
        (
            "mbarrier.arrive_drop.shared.b64 _, [%r4]; mbarrier.arrive.noComplete.shared.b64 _, [%r4], 1;\n\
             mbarrier.arrive.shared.b64 _, [%r4]; mbarrier.arrive.shared.b64 _, [%r4];\n\
             mbarrier.arrive.shared.b64 %rd1, [%r4]; mbarrier.test_wait.shared.b64 %p1, [%r4], %rd1;",
            1,
        ),
        // The same bytes can become another barrier.
        (
            "mbarrier.inval.shared.b64 [%r4]; mbarrier.init.shared.b64 [%r4], 1;\n\
             mbarrier.arrive.shared.b64 %rd1, [%r4]; mbarrier.test_wait.shared.b64 %p1, [%r4], %rd1;",
            1,
        ),
    ] {
        let result = if instructions.contains("pending_count") { "" } else { flag };
        let found = single(&format!("mbarrier.init.shared.b64 [%r4], 3;\n{instructions}\n{result}"));
        assert_eq!(found.unwrap_or_else(|fault| panic!("{instructions}: {fault}")), wanted, "{instructions}");
    }
}

#[test]
fn wrong_uses_are_reported() {
    let kind = |instructions: &str| single(instructions).expect_err(instructions).kind;
    for (instructions, part) in [
        ("mbarrier.init.shared.b64 [%r4], 0;", "for 0 arrivals"),
        ("mbarrier.init.shared.b64 [%r4], 1048576;", "for 1048576 arrivals"),
        ("mbarrier.init.shared.b64 [%r4], 1; mbarrier.arrive.noComplete.shared.b64 _, [%r4], 2;", "counts 2"),
        ("mbarrier.init.shared.b64 [%r4], 1; mbarrier.arrive.noComplete.shared.b64 _, [%r4], 0;", "counts 0"),
        ("mov.b64 %rd1, 5; mbarrier.pending_count.b64 %r9, %rd1;", "no arrival returned"),
        (
            "mbarrier.init.shared.b64 [%r4], 1; mbarrier.arrive.shared.b64 %rd1, [%r4];\n\
             mbarrier.arrive.shared.b64 _, [%r4]; mbarrier.test_wait.shared.b64 %p1, [%r4], %rd1;",
            "before its last phase",
        ),
        (
            "mbarrier.init.shared.b64 [%r4], 1; mbarrier.arrive.noComplete.shared.b64 %rd1, [%r4], 1;",
            "completes the phase",
        ),
        (
            "mbarrier.init.shared.b64 [%r4], 1; mbarrier.inval.shared.b64 [%r4]; mbarrier.arrive.shared.b64 _, [%r4];",
            "without an `mbarrier`",
        ),
        (
            "mbarrier.init.shared.b64 [%r4], 1; mov.b64 %rd1, 5; mbarrier.test_wait.shared.b64 %p1, [%r4], %rd1;",
            "no arrival returned",
        ),
        ("mbarrier.init.b64 [%a], 1;", "not shared"),
    ] {
        let kind = kind(instructions);
        assert!(
            matches!(&kind, FaultKind::InvalidValue(what) if what.contains(part)),
            "{instructions}: {kind}"
        );
    }
    assert!(matches!(kind("mbarrier.arrive.shared.b64 _, [%r4];"), FaultKind::Uninitialised(_)));
    assert!(matches!(kind("mbarrier.init.shared.b64 [%r4+4], 1;"), FaultKind::Misaligned(_)));
    assert!(matches!(kind("mbarrier.init.shared.b64 [%r4+4096], 1;"), FaultKind::IllegalAddress(_)));
}

#[test]
fn initialisation_races_even_if_nothing_else_is_in_shared_memory() {
    let text =
        kernel(0, &format!("{REGISTERS} .shared .align 8 .b64 bar;"), "mbarrier.init.shared.b64 [bar], 64;");
    let fault = Bench::new(&text).run(1, 64, &[]).expect_err("a race");
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
}

#[test]
fn thread_that_waits_for_a_phase_that_never_completes_exceeds_the_limit() {
    let text =
        exchange(INIT, "", "again: mbarrier.test_wait.parity.shared.b64 %p1, [%r4], 0; @!%p1 bra again;");
    let mut bench = Bench::new(&text);
    let buffer = bench.buffer(&[0; 256]);
    let function = bench.module.function("k").expect("the kernel");
    let limit = Limit { steps: 100_000, ..Limit::default() };
    let params = vec![buffer.to_le_bytes().to_vec(); 2];
    let launch = Launch { grid: [1; 3], block: [64, 1, 1], shared_bytes: 0, params, limit };
    let fault = bench.device.launch(&function, &launch).expect_err("a limit");
    assert!(matches!(fault.kind, FaultKind::Timeout(_)), "{fault}");
}

#[test]
fn forms_of_newer_gpus_are_refused() {
    for instruction in [
        "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r4], 0",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 16",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4]",
        "mbarrier.arrive.shared.b64 _, [%r4], 2",
        "mbarrier.test_wait.acquire.cluster.shared.b64 %p1, [%r4], %rd1",
        "mbarrier.pending_count.shared.b64 %r1, %rd1",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r4], 16",
    ] {
        let text = kernel(0, &declarations(), &format!("{instruction};"));
        let error = load_error(&text);
        assert_eq!((error.code(), error.line()), (801, Some(line_of(&text, "mbarrier"))), "{error}");
        assert!(error.to_string().contains("newer GPUs"), "{error}");
    }
    for instruction in
        ["mbarrier.arrive.noComplete.shared.b64 %rd1, [%r4]", "mbarrier.inval.shared.b64 [%r4], 1"]
    {
        let error = load_error(&kernel(0, &declarations(), &format!("{instruction};")));
        assert!(error.to_string().contains("does not take these operands"), "{error}");
    }
}
