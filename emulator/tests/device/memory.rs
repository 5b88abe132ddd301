//! Tests of device memory: allocation, freeing, and refused accesses.

use std::time::Duration;

use opt_emulator::{Call, Config, Device, FaultKind, Launch, Limit, Memory};

use crate::kit::{Bench, REGISTERS, kernel, line_of, load_error};

/// PTX of a kernel in which every thread stores its index.
fn store_numbers(offset: i64) -> String {
    let body = format!(
        "mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd1, %r1, 4;\nadd.u64 %rd2, %a, %rd1;\nst.global.u32 [%rd2+{offset}], %r1;"
    );
    kernel(1, REGISTERS, &body)
}

#[test]
fn host_reads_what_the_kernel_wrote() {
    let mut bench = Bench::new(&store_numbers(0));
    let buffer = bench.buffer(&[0; 400]);
    let summary = bench.run(1, 100, &[buffer]).expect("a launch");
    assert_eq!(summary.blocks, 1);
    let bytes = bench.bytes(buffer, 400);
    let numbers: Vec<u32> =
        bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().expect("four bytes"))).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<u32>>());
}

#[test]
fn store_past_the_end_names_thread_line_and_buffer() {
    let text = store_numbers(4);
    let mut bench = Bench::new(&text);
    let buffer = bench.buffer(&[0; 400]);
    let fault = bench.run(1, 100, &[buffer]).expect_err("out of bounds");
    let FaultKind::IllegalAddress(access) = &fault.kind else { panic!("{fault}") };
    assert_eq!((access.address, access.bytes), (buffer + 400, 4));
    let nearest = access.nearest.expect("a buffer is near");
    assert_eq!((nearest.start, nearest.bytes, nearest.distance), (buffer, 400, Some(0)));
    let site = fault.site.as_ref().expect("a thread caused it");
    assert_eq!((site.thread, site.lane, site.line), ([99, 0, 0], 3, line_of(&text, "st.global")));
    assert_eq!(fault.code(), 700);
    // As on a card, every later call fails.
    let after = bench.device.alloc(4).expect_err("the fault is sticky");
    assert_eq!(after, fault);
}

#[test]
fn memory_limit_is_exact_to_the_byte() {
    let mut device = Device::new(Config { memory: 1000, ..Config::default() });
    let first = device.alloc(600).expect("there is room");
    assert_eq!(first % 256, 0);
    let fault = device.alloc(401).expect_err("one byte too many");
    assert_eq!(fault.code(), 2);
    assert_eq!(fault.kind, FaultKind::OutOfMemory { wanted: 401, free: 400 });
    let second = device.alloc(400).expect("out of memory is not sticky");
    assert_eq!((device.used(), device.peak()), (1000, 1000));
    device.free(first).expect("a live allocation");
    assert_eq!(device.free(first).expect_err("freed twice").code(), 1);
    let third = device.alloc(600).expect("room again");
    assert!(third != first && second < third, "addresses are not used again at once");
}

#[test]
fn injected_faults_occur_at_the_nth_call() {
    let mut device = Device::new(Config::default());
    device.fail_call(Call::Alloc, 2, 2);
    device.fail_call(Call::Write, 1, 700);
    let buffer = device.alloc(16).expect("the first call");
    assert_eq!(device.alloc(16).expect_err("the second call").code(), 2);
    device.alloc(16).expect("the third call");
    assert_eq!(device.write(buffer, &[0; 4]).expect_err("injected").code(), 700);
    assert_eq!(device.read(buffer, &mut [0; 4]).expect_err("700 is sticky").code(), 700);
}

#[test]
fn unsupported_instruction_is_refused_by_name_and_line() {
    let body = "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, %rd1;";
    let text = kernel(0, REGISTERS, body);
    let error = load_error(&text);
    assert_eq!(error.line(), Some(line_of(&text, "tex.2d")));
    assert_eq!(error.code(), 801);
    assert!(error.to_string().contains("does not support `tex.2d.v4"), "{error}");
}

#[test]
fn cache_policies_do_not_change_results() {
    for policy in [
        "createpolicy.fractional.L2::evict_first.b64 %rd9, 1.0",
        "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %rd9, 0.5",
        "createpolicy.fractional.L2::evict_normal.b64 %rd9",
        "createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %rd9, [%a], 64, 128",
        "createpolicy.range.L2::evict_unchanged.b64 %rd9, [%a], %r1, %r1",
        "createpolicy.cvt.L2.b64 %rd9, %a",
    ] {
        let body = format!(
            "mov.u32 %r1, 7;\n{policy};\napplypriority.global.L2::evict_normal [%a], 128;\n\
             ld.global.L2::cache_hint.u32 %r2, [%a], %rd9;\n\
             st.global.L1::evict_last.L2::cache_hint.u32 [%a+4], %r2, %rd9;\n\
             red.global.add.L2::cache_hint.u32 [%a+8], %r1, %rd9;"
        );
        let mut bench = Bench::new(&kernel(1, REGISTERS, &body));
        let buffer = bench.buffer(&[5, 0, 0, 0, 9, 9, 9, 9, 1, 0, 0, 0]);
        bench.run(1, 1, &[buffer]).unwrap_or_else(|fault| panic!("{policy}: {fault}"));
        assert_eq!(bench.bytes(buffer, 12), [5, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0], "{policy}");
    }
}

#[test]
fn cache_policies_of_unknown_forms_are_refused() {
    for instruction in [
        "createpolicy.fractional.L1::evict_last.b64 %rd9, 1.0",
        "createpolicy.fractional.global.L2::evict_last.b64 %rd9, 1.0",
        "createpolicy.fractional.L2::evict_last.b32 %r9, 1.0",
        "createpolicy.fractional.b64 %rd9, 1.0",
        "createpolicy.range.shared.L2::evict_last.b64 %rd9, [%a], 64, 128",
        "createpolicy.range.L2::evict_last.b64 %rd9, [%a], 64",
        "createpolicy.cvt.L2.b64 %rd9, %r1",
        "createpolicy.L2.b64 %rd9, %a",
        "applypriority.global.L2::evict_last [%a], 128",
        "applypriority.global.L2::evict_normal [%a], 64",
    ] {
        let text = kernel(1, REGISTERS, &format!("{instruction};"));
        assert_eq!(load_error(&text).line(), Some(line_of(&text, instruction)), "{instruction}");
    }
}

#[test]
fn read_of_forgotten_bytes_is_reported_until_they_are_written() {
    let load = "ld.global.u32 %r2, [%a+4];";
    let add = "mov.u32 %r1, 1;\nred.global.add.u32 [%a+4], %r1;";
    let exchange = "mov.u32 %r1, 1;\natom.global.exch.b32 %r2, [%a+4], %r1;";
    let store_and_load = "mov.u32 %r1, 1;\nst.global.u32 [%a+4], %r1;\nld.global.u32 %r2, [%a+4];";
    // The code, the forgotten bytes, and whether its access is reported.
    for (body, from, bytes, reported) in [
        (load, 0, 12, true),
        (load, 4, 4, true),
        (load, 0, 4, false),
        (load, 8, 4, false),
        (load, 0, 0, false),
        // An element of which one byte was written is not reported, because its other bytes may be padding.
        (load, 4, 3, false),
        (add, 0, 12, true),
        (exchange, 0, 12, false),
        (store_and_load, 0, 12, false),
    ] {
        let mut bench = Bench::new(&kernel(1, REGISTERS, body));
        let buffer = bench.buffer(&[7; 12]);
        bench.device.forget(buffer + from, bytes).expect("a live buffer");
        assert_eq!(bench.bytes(buffer, 12), [7; 12], "the host may read it");
        let found = bench.run(1, 32, &[buffer]);
        let is_reported = found.as_ref().is_err_and(|fault| {
            matches!(&fault.kind, FaultKind::Uninitialised(access)
                if (access.memory, access.address) == (Memory::Global, buffer + 4))
        });
        assert_eq!(is_reported, reported, "{body} after forgetting {bytes} bytes at {from}: {found:?}");
        assert!(reported || found.is_ok(), "{body}: {found:?}");
    }
}

#[test]
fn forgotten_bytes_count_as_written_once_the_host_writes_them() {
    let mut bench = Bench::new(&kernel(1, REGISTERS, "ld.global.u64 %rd2, [%a];"));
    let buffer = bench.buffer(&[7; 8]);
    for write in [
        |bench: &mut Bench, at| bench.device.write(at, &[1; 8]),
        |bench: &mut Bench, at| bench.device.fill(at, 1, 8),
    ] {
        bench.device.forget(buffer, 8).expect("a live buffer");
        write(&mut bench, buffer).expect("a live buffer");
        bench.run(1, 1, &[buffer]).expect("written bytes");
    }
    assert_eq!(bench.device.forget(buffer, 9).expect_err("too many bytes").code(), 1);
}

#[test]
fn copy_on_the_device_keeps_bytes_that_were_never_written_and_allows_overlaps() {
    let mut bench = Bench::new(&kernel(1, REGISTERS, "ld.global.u64 %rd2, [%a];"));
    let (from, to) = (bench.buffer(&[7; 16]), bench.buffer(&[0; 16]));
    bench.device.forget(from, 8).expect("a live buffer");
    bench.device.copy(to, from, 16).expect("live buffers");
    let fault = bench.run(1, 1, &[to]).expect_err("the first half was never written");
    assert!(matches!(fault.kind, FaultKind::Uninitialised(_)), "{fault}");
    bench.device.forget_fault();
    bench.run(1, 1, &[to + 8]).expect("the second half was written");

    // More than one piece is copied, in either direction.
    let bytes: Vec<u8> = (0..=250).cycle().take(20_000).collect();
    for (to, from) in [(300_u16, 0_u16), (0, 300)] {
        let buffer = bench.buffer(&bytes);
        bench.device.copy(buffer + u64::from(to), buffer + u64::from(from), 19_700).expect("a live buffer");
        let mut expected = bytes.clone();
        expected.copy_within(usize::from(from)..usize::from(from) + 19_700, to.into());
        assert!(bench.bytes(buffer, 20_000) == expected, "from {from} to {to}");
    }
    for (to, bytes) in [(to, 17), (to + 1, 16), (from - 1, 4), (to, u64::MAX)] {
        assert_eq!(bench.device.copy(to, from, bytes).expect_err("outside").code(), 1);
    }
}

/// Strings are long and many, so a single print takes much longer than other instructions.
#[test]
fn endless_prints_exceed_the_time_limit() {
    let text = "x".repeat(4000);
    let declarations = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);\n\
                        .global .align 1 .b8 format[3001];\n.global .align 1 .b8 text[4096];\n";
    let body = "mov.u64 %rd1, format;\nmov.u64 %rd2, text;\nmov.u32 %r1, 0;\nmov.u64 %rd4, list;\nFILL:\nst.local.u64 [%rd4], %rd2;\nadd.u64 %rd4, %rd4, 8;\n\
                add.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 1500;\n@%p1 bra FILL;\nmov.u64 %rd3, list;\n\
                cvta.local.u64 %rd3, %rd3;\nAGAIN:\n{\n.param .b64 p0;\nst.param.b64 [p0], %rd1;\n.param .b64 p1;\n\
                st.param.b64 [p1], %rd3;\n.param .b32 q;\ncall.uni (q), vprintf, (p0, p1);\n}\nbra AGAIN;";
    let registers = format!("{REGISTERS}\n.local .align 8 .b8 list[12000];");
    let ptx = kernel(0, &registers, body).replace(".visible", &format!("{declarations}.visible"));
    let mut bench = Bench::new(&ptx);
    for (name, value) in [("text", text), ("format", "%s".repeat(1500))] {
        let (address, _) = bench.module.global(name).expect("a variable");
        bench.device.write(address, value.as_bytes()).expect("a live buffer");
    }
    let function = bench.module.function("k").expect("the kernel");
    let limit = Limit { time: Duration::from_millis(50), ..Limit::default() };
    let launch = Launch { grid: [1; 3], block: [32, 1, 1], shared_bytes: 0, params: Vec::new(), limit };
    let fault = bench.device.launch(&function, &launch).expect_err("an endless loop");
    assert!(matches!(fault.kind, FaultKind::Timeout(_)), "{fault}");
}
