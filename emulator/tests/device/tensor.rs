//! Tests of asynchronous copies, and of matrices that are loaded from shared memory.

use opt_emulator::{AccessKind, Config, Fault, FaultKind, Memory};

use crate::kit::{Bench, REGISTERS, kernel, line_of, load_error};

#[test]
fn matrices_are_loaded_in_the_layout_of_fragments() {
    // Element `i` of row `r` of matrix `m` is m·64 + r·8 + i. Rows lie in the opposite order, 32 bytes apart.
    for (count, transposed) in [(1, false), (2, false), (4, false), (1, true), (2, true), (4, true)] {
        let registers: Vec<String> = (0..count).map(|i| format!("%x{i}")).collect();
        let trans = if transposed { ".trans" } else { "" };
        let mut body = format!(
            "mov.u32 %r0, %tid.x; sub.u32 %r1, 31, %r0; shl.b32 %r1, %r1, 5; mov.u32 %r2, rows; add.u32 %r1, %r1, %r2;\n\
             shl.b32 %r3, %r0, 3; add.u32 %r4, %r3, 1; shl.b32 %r4, %r4, 16; or.b32 %r4, %r4, %r3;\n\
             st.shared.b32 [%r1], %r4; add.u32 %r4, %r4, 0x20002; st.shared.b32 [%r1+4], %r4;\n\
             add.u32 %r4, %r4, 0x20002; st.shared.b32 [%r1+8], %r4; add.u32 %r4, %r4, 0x20002;\n\
             st.shared.b32 [%r1+12], %r4; bar.warp.sync 0xffffffff;\n\
             ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{}}}, [%r1];\n\
             mul.wide.u32 %rd0, %r0, {}; add.s64 %rd0, %rd0, %a;\n",
            registers.join(", "),
            4 * count
        );
        for i in 0..count {
            body.push_str(&format!("st.global.b32 [%rd0+{}], %x{i};\n", 4 * i));
        }
        let declarations = format!("{REGISTERS} .reg .b32 %x<4>; .shared .align 16 .b8 rows[1024];");
        let mut bench = Bench::new(&kernel(1, &declarations, &body));
        let output = bench.buffer(&[0xee; 512]);
        bench.run(1, 32, &[output]).expect("a launch");
        let found = bench.bytes(output, 128 * count);
        for (at, word) in found.chunks_exact(4).enumerate() {
            let (lane, matrix) = (at / count, at % count);
            let element = |part: usize| {
                let (row, column) = (lane / 4, 2 * (lane % 4) + part);
                let (row, column) = if transposed { (column, row) } else { (row, column) };
                u16::try_from(64 * matrix + 8 * row + column).expect("a small number").to_le_bytes()
            };
            assert_eq!(
                word,
                [element(0), element(1)].concat(),
                "x{count}{trans}, lane {lane}, matrix {matrix}"
            );
        }
    }
}

#[test]
fn matrix_of_bytes_that_were_never_written_is_reported() {
    let declarations = format!("{REGISTERS} .shared .align 16 .b8 rows[512];");
    let body = "mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 4; mov.u32 %r2, rows; add.u32 %r1, %r1, %r2;\n\
                mov.u32 %r3, 0; st.shared.v2.b32 [%r1], {%r3, %r3}; st.shared.b32 [%r1+8], %r3;\n\
                setp.ne.u32 %p0, %r0, 5; @%p0 st.shared.b32 [%r1+12], %r3; bar.warp.sync 0xffffffff;\n\
                ldmatrix.sync.aligned.m8n8.x1.shared.b16 %r4, [%r1];";
    let text = kernel(0, &declarations, body);
    let fault = Bench::new(&text).run(1, 32, &[]).expect_err("bytes that were never written");
    let FaultKind::Uninitialised(access) = &fault.kind else { panic!("{fault}") };
    assert_eq!((access.memory, access.address, access.bytes), (Memory::Shared, 5 * 16 + 12, 2));
    let site = fault.site.expect("a thread");
    assert_eq!((site.lane, site.line), (5, line_of(&text, "ldmatrix")));
}

/// Runs a copy to 16 bytes of shared memory that were set to 0xaa, waits for it, and returns these bytes.
fn copied(instruction: &str) -> Result<Vec<u8>, Fault> {
    let declarations = format!("{REGISTERS} .shared .align 16 .b8 to[16];");
    let body = format!(
        "mov.u32 %r0, 0xaaaaaaaa; st.shared.v4.b32 [to], {{%r0, %r0, %r0, %r0}}; mov.u32 %r1, to; mov.u32 %r2, 5;\n\
         setp.eq.u32 %p0, %r2, 5; setp.ne.u32 %p1, %r2, 5; mov.u64 %rd0, 8;\n\
         {instruction};\n\
         cp.async.wait_all; ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [to];\n\
         st.global.v4.b32 [%b], {{%r4, %r5, %r6, %r7}};"
    );
    let config = Config { memory: 1 << 20, check_uninitialised: true, ..Config::default() };
    let mut bench = Bench::with(config, &kernel(2, &declarations, &body));
    let source: Vec<u8> = (1..=16).collect();
    let from = bench.buffer(&source);
    let output = bench.buffer(&[0; 16]);
    bench.run(1, 1, &[from, output])?;
    Ok(bench.bytes(output, 16))
}

#[test]
fn copies_write_the_bytes_of_their_source_and_zeros() {
    // The instruction, the number of copied bytes, and the number of written bytes.
    for (instruction, read, written) in [
        ("cp.async.ca.shared.global [%r1], [%a], 4", 4, 4),
        ("cp.async.ca.shared::cta.global.L2::128B [%r1], [%a], 8", 8, 8),
        ("cp.async.ca.shared.global [to], [%a], 16", 16, 16),
        ("cp.async.cg.shared.global [%r1], [%a], 16", 16, 16),
        ("cp.async.cg.shared.global.L2::cache_hint [%r1], [%a], 16, %rd0", 16, 16),
        ("cp.async.cg.shared.global.L2::cache_hint [%r1], [%a], 16, 8, %rd0", 8, 16),
        ("cp.async.cg.shared.global [%r1], [%a], 16, 12", 12, 16),
        ("cp.async.ca.shared.global [%r1], [%a], 8, %r2", 5, 8),
        ("cp.async.ca.shared.global [%r1], [%a], 4, 0", 0, 4),
        ("cp.async.ca.shared.global [%r1], [%a], 8, %p0", 0, 8),
        ("cp.async.ca.shared.global [%r1], [%a], 8, %p1", 8, 8),
        ("cp.async.ca.shared.global [%r1], [%a], 8, !%p0", 8, 8),
        // Without a read, the address of the source is not used.
        ("cp.async.cg.shared.global [%r1], [8], 16, 0", 0, 16),
        ("@%p1 cp.async.ca.shared.global [%r1], [8], 4", 0, 0),
    ] {
        let found = copied(instruction).unwrap_or_else(|fault| panic!("{instruction}: {fault}"));
        let wanted: Vec<u8> = (0..16_u8)
            .map(|at| match at {
                _ if at < read => at + 1,
                _ if at < written => 0,
                _ => 0xaa,
            })
            .collect();
        assert_eq!(found, wanted, "{instruction}");
    }
}

#[test]
fn wrong_copies_are_reported() {
    let kind = |instruction: &str| copied(instruction).expect_err(instruction).kind;
    let details = |kind: FaultKind| match kind {
        FaultKind::IllegalAddress(access) => ("illegal", access.kind, access.memory, access.bytes),
        FaultKind::Misaligned(access) => ("misaligned", access.kind, access.memory, access.bytes),
        FaultKind::Uninitialised(access) => ("uninitialised", access.kind, access.memory, access.bytes),
        other => panic!("{other}"),
    };
    use AccessKind::{Read, Write};
    for (instruction, wanted) in [
        ("cp.async.cg.shared.global [%r1], [%a+4], 16", ("misaligned", Read, Memory::Global, 16)),
        ("cp.async.cg.shared.global [%r1], [%a+16], 16", ("illegal", Read, Memory::Global, 16)),
        ("cp.async.ca.shared.global [%r1], [%a+16], 8, 1", ("illegal", Read, Memory::Global, 1)),
        ("cp.async.ca.shared.global [%r1+4], [%a], 8", ("misaligned", Write, Memory::Shared, 8)),
        ("cp.async.ca.shared.global [%r1+16], [%a], 4", ("illegal", Write, Memory::Shared, 4)),
    ] {
        assert_eq!(details(kind(instruction)), wanted, "{instruction}");
    }
    let excessive = kind("cp.async.ca.shared.global [%r1], [%a], 4, %r2");
    assert!(matches!(&excessive, FaultKind::InvalidValue(what) if what.contains("5 bytes")), "{excessive}");
}

#[test]
fn copies_complete_when_their_group_is_awaited() {
    let declarations = format!("{REGISTERS} .shared .align 16 .b8 to[16];");
    let start = "mov.u32 %r1, to;\n\
                 cp.async.ca.shared.global [%r1], [%a], 4; cp.async.commit_group;\n\
                 cp.async.ca.shared.global [%r1+4], [%a+4], 4; cp.async.commit_group;\n\
                 cp.async.commit_group;\n\
                 cp.async.ca.shared.global [%r1+8], [%a+8], 4;\n";
    // The wait, and which of the three words can then be read. The third copy belongs to no group yet.
    for (wait, readable) in [
        ("", [false, false, false]),
        ("cp.async.wait_group 3;", [false, false, false]),
        ("cp.async.wait_group 2;", [true, false, false]),
        ("cp.async.wait_group 1;", [true, true, false]),
        ("cp.async.wait_group 0;", [true, true, false]),
        ("cp.async.commit_group; cp.async.wait_group 1;", [true, true, false]),
        ("cp.async.commit_group; cp.async.wait_group 0;", [true, true, true]),
        ("cp.async.wait_all;", [true, true, true]),
    ] {
        for (word, is_readable) in readable.iter().enumerate() {
            let body =
                format!("{start}{wait}\nld.shared.b32 %r2, [to+{}]; st.global.b32 [%a+12], %r2;", 4 * word);
            let text = kernel(1, &declarations, &body);
            let mut bench = Bench::new(&text);
            let buffer = bench.buffer(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 9, 9, 9, 9]);
            let outcome = bench.run(1, 1, &[buffer]);
            if *is_readable {
                outcome.unwrap_or_else(|fault| panic!("{wait} word {word}: {fault}"));
                assert_eq!(usize::from(bench.bytes(buffer, 16)[12]), word + 1, "{wait} word {word}");
            } else {
                let fault = outcome.expect_err("a copy is pending");
                assert!(matches!(fault.kind, FaultKind::Pending(_)), "{wait} word {word}: {fault}");
                assert_eq!(fault.site.expect("a thread").line, line_of(&text, "ld.shared"));
            }
        }
    }
}

#[test]
fn wait_of_one_thread_does_not_cover_the_copies_of_another() {
    let declarations = format!("{REGISTERS} .shared .align 16 .b8 to[8];");
    let body = "mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, to; add.u32 %r2, %r1, %r2;\n\
                cp.async.ca.shared.global [%r2], [%a], 4; setp.eq.u32 %p0, %r0, 0;\n\
                @%p0 cp.async.wait_all; bar.sync 0;\n\
                ld.shared.b32 %r3, [%r2];";
    let mut bench = Bench::new(&kernel(1, &declarations, body));
    let buffer = bench.buffer(&[0; 4]);
    let fault = bench.run(1, 2, &[buffer]).expect_err("the second thread has not waited");
    assert!(matches!(fault.kind, FaultKind::Pending(_)), "{fault}");
    assert_eq!(fault.site.expect("a thread").lane, 1);
}

#[test]
fn copies_that_are_never_awaited_end_in_a_fault_instead_of_filling_memory() {
    let declarations = format!("{REGISTERS} .shared .align 16 .b8 to[64];");
    let body = "mov.u32 %r1, to;\nagain: cp.async.ca.shared.global [%r1], [%a], 4; cp.async.commit_group; bra again;";
    let mut bench = Bench::new(&kernel(1, &declarations, body));
    let buffer = bench.buffer(&[0; 4]);
    let fault = bench.run(1, 32, &[buffer]).expect_err("too many copies");
    assert!(matches!(fault.kind, FaultKind::Unsupported(_)), "{fault}");
}

#[test]
fn copy_of_global_memory_that_was_never_written_is_reported() {
    let declarations = format!("{REGISTERS} .shared .align 16 .b8 to[16];");
    let body = "cp.async.cg.shared.global [to], [%a], 16;";
    let config = Config { check_uninitialised_global: true, ..Config::default() };
    let mut bench = Bench::with(config, &kernel(1, &declarations, body));
    let buffer = bench.device.alloc(16).expect("memory");
    bench.device.write(buffer, &[1; 8]).expect("a live buffer");
    let fault = bench.run(1, 1, &[buffer]).expect_err("bytes that were never written");
    let FaultKind::Uninitialised(access) = &fault.kind else { panic!("{fault}") };
    assert_eq!((access.memory, access.address, access.bytes), (Memory::Global, buffer + 8, 4));
}

#[test]
fn products_and_loads_need_all_lanes_of_a_warp() {
    let declarations = format!("{REGISTERS} .shared .align 16 .b8 rows[512];");
    for instruction in [
        "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%f0, %f1, %f2, %f3}, {%r1, %r1}, {%r1}, {%f0, %f1, %f2, %f3}",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [rows]",
        "wmma.load.a.sync.aligned.row.m8n32k16.shared.s8 {%r1}, [rows]",
        "wmma.store.d.sync.aligned.row.m16n16k16.shared.f16 [rows], {%r1, %r1, %r1, %r1}",
        "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u8.s32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, {%r1, %r1}, {%r1, %r1}, {%r1, %r1, %r1, %r1, %r1, %r1, %r1, %r1}",
    ] {
        let body = format!("mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 16;\n@%p0 {instruction};");
        for (body, threads) in [(body, 32), (format!("{instruction};"), 20)] {
            let text = kernel(0, &declarations, &body);
            let fault = Bench::new(&text).run(1, threads, &[]).expect_err("lanes are missing");
            assert_eq!(fault.kind, FaultKind::WarpDivergence, "{instruction} with {threads} threads");
        }
    }
}

#[test]
fn newer_and_rarer_instructions_are_refused_by_name_and_line() {
    for (instruction, what) in [
        ("wgmma.fence.sync.aligned", "matrix products of a warp group"),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd2, 1, 1, 1, 0, 0",
            "a warp group",
        ),
        ("mbarrier.try_wait.parity.shared::cta.b64 %p1, [%rd1], 0", "forms of newer GPUs"),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [%r2]",
            "bulk copies",
        ),
        ("cp.async.bulk.commit_group", "bulk copies"),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4]",
            "tensor maps",
        ),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r1], 16", "bulk copies"),
        (
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [%rd2], 128",
            "TMA",
        ),
        ("mapa.shared::cluster.u32 %r1, %r2, 0", "clusters"),
        ("barrier.cluster.arrive.aligned", "clusters"),
        ("barrier.cluster.wait.aligned", "clusters"),
        (
            "wmma.mma.sync.aligned.row.col.m8n8k4.f64.f64.f64.f64 {%fd1, %fd2}, {%fd1}, {%fd1}, {%fd1, %fd2}",
            "other forms",
        ),
        (
            "wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {%r1, %r2}, {%r1}, {%r1}, {%r1, %r2}",
            "other",
        ),
        ("wmma.load.a.sync.aligned.row.m16n16k8.f16 {%r1, %r2, %r3, %r4}, [%rd1]", "other forms"),
        ("wmma.load.c.sync.aligned.row.m16n16k16.bf16 {%r1, %r2, %r3, %r4}, [%rd1]", "other forms"),
        ("wmma.store.a.sync.aligned.row.m16n16k16.f32 [%rd1], {%f1}", "other forms"),
        (
            "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd1, %fd2}, {%fd1}, {%fd1}, {%fd1, %fd2}",
            "m8n8k4",
        ),
        (
            "mma.sp.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r1, %r2}, {%r1, %r2}, {%r1, %r2}, {%r1, %r2}, %r3, 0",
            "mma.sp",
        ),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f16 {%f1, %f2, %f3, %f4}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%r1, %r1}",
            "m16n8k16",
        ),
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1, %r2}, [%r3]", "m16n16"),
        ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r2}", "stmatrix"),
    ] {
        let text = kernel(0, REGISTERS, &format!("{instruction};"));
        let error = load_error(&text);
        let name = instruction.split(' ').next().expect("a name");
        assert_eq!((error.code(), error.line()), (801, Some(line_of(&text, name))), "{instruction}: {error}");
        let message = error.to_string();
        let shown = &name[..name.len().min(30)];
        assert!(
            message.contains(&format!("does not support `{shown}")) && message.contains(what),
            "{message}"
        );
    }
}

#[test]
fn wrong_operands_of_matrix_instructions_are_refused() {
    for instruction in [
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1}, {%r1, %r2}, {%r1}, {%f1, %f2, %f3, %f4}",
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3}, {%r1}, {%f1, %f2, %f3, %f4}",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2}, [%r3]",
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1}, {%r1}, {%r1}, {%f1}",
        "wmma.load.a.sync.aligned.row.m8n32k16.s8 {%r1, %r2}, [%rd1]",
        "wmma.load.a.sync.aligned.row.m8n32k16.s8 {%r1}, [%rd1], 16, 16",
        "wmma.store.d.sync.aligned.row.m16n16k16.s32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd1]",
        "cp.async.cg.shared.global [%r1], [%rd1], 8",
        "cp.async.ca.shared.global [%r1], [%rd1], 12",
        "cp.async.wait_group %r1",
    ] {
        let error = load_error(&kernel(0, REGISTERS, &format!("{instruction};")));
        assert_eq!(error.code(), 218, "{instruction}: {error}");
        assert!(error.to_string().contains("does not take these operands"), "{error}");
    }
}
