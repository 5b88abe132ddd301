//! Tests of `wmma`: loads and stores of fragments in every layout, and their faults. `products.rs` and the kernels in
//! `tests/kernels/wmma.rs` test the products.

use opt_emulator::{AccessKind, Fault, FaultKind, Memory};

use crate::kit::{Bench, REGISTERS, kernel, line_of};

/// The registers that `wmma` uses for a matrix.
fn list(prefix: &str, count: usize) -> String {
    let names: Vec<String> = (0..count).map(|i| format!("%{prefix}{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// The number of elements between two lines, longer than any line.
const STRIDE: usize = 48;

/// Fragments of results: shape, rows, columns, type, bytes of an element, and registers.
const SUMS: [(&str, usize, usize, &str, usize, usize); 7] = [
    ("m16n16k16", 16, 16, "f16", 2, 4),
    ("m32n8k16", 32, 8, "f16", 2, 4),
    ("m16n16k16", 16, 16, "f32", 4, 8),
    ("m8n32k16", 8, 32, "f32", 4, 8),
    ("m32n8k16", 32, 8, "s32", 4, 8),
    ("m8n32k16", 8, 32, "s32", 4, 8),
    ("m16n16k8", 16, 16, "f32", 4, 8),
];

#[test]
fn result_is_stored_as_it_was_loaded_in_every_layout_and_memory() {
    for (shape, rows, columns, ty, bytes, count) in SUMS {
        let prefix = if ty == "f32" { "f" } else { "r" };
        let registers = list(prefix, count);
        for [from, to] in [["row", "row"], ["row", "col"], ["col", "row"], ["col", "col"]] {
            // The result may pass through shared memory.
            for through in ["", ".shared"] {
                let detour = if through.is_empty() {
                    String::new()
                } else {
                    format!(
                        "wmma.store.d.sync.aligned.{from}.{shape}.shared.{ty} [tile], {registers}, 40;\n\
                         bar.warp.sync 0xffffffff;\n\
                         wmma.load.c.sync.aligned.{from}.{shape}.{ty} {registers}, [%rd1], 40;\n"
                    )
                };
                let body = format!(
                    "mov.u64 %rd1, tile; cvta.shared.u64 %rd1, %rd1; mov.u32 %r30, {STRIDE};\n\
                     wmma.load.c.sync.aligned.{from}.{shape}.global.{ty} {registers}, [%a], %r30;\n{detour}\
                     wmma.store.d.sync.aligned.{to}.{shape}.global.{ty} [%b], {registers}, {STRIDE};"
                );
                let text = kernel(2, &format!("{REGISTERS} .shared .align 32 .b8 tile[8192];"), &body);
                let mut bench = Bench::new(&text);
                let size = 32 * STRIDE * bytes;
                let input: Vec<u8> =
                    (0..size).map(|at| u8::try_from(at * 7 % 251).expect("a byte")).collect();
                let (a, b) = (bench.buffer(&input), bench.buffer(&vec![0xee; size]));
                bench.run(1, 32, &[a, b]).unwrap_or_else(|fault| panic!("{text}\n{fault}"));
                let mut wanted = vec![0xee; size];
                for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                    let place = |layout: &str| {
                        let (line, at) = if layout == "row" { (row, column) } else { (column, row) };
                        (line * STRIDE + at) * bytes
                    };
                    wanted[place(to)..][..bytes].copy_from_slice(&input[place(from)..][..bytes]);
                }
                assert!(bench.bytes(b, size) == wanted, "{shape} {ty} from {from} to {to}{through}");
            }
        }
    }
}

#[test]
fn lines_adjoin_without_a_stride() {
    for (layout, shape, length) in
        [("row", "m8n32k16", 32_u64), ("col", "m8n32k16", 8), ("row", "m32n8k16", 8), ("col", "m32n8k16", 32)]
    {
        let registers = list("f", 8);
        let body = format!(
            "wmma.load.c.sync.aligned.{layout}.{shape}.global.f32 {registers}, [%a];\n\
             wmma.store.d.sync.aligned.{layout}.{shape}.global.f32 [%b], {registers}, {length};"
        );
        let mut bench = Bench::new(&kernel(2, REGISTERS, &body));
        let input: Vec<u8> = (0..1024_usize).map(|at| u8::try_from(at % 253).expect("a byte")).collect();
        let (a, b) = (bench.buffer(&input), bench.buffer(&[0; 1024]));
        bench.run(1, 32, &[a, b]).expect("a launch");
        assert!(bench.bytes(b, 1024) == input, "{layout} {shape}");
    }
}

/// A kernel in which every lane loads a matrix of 16 × 16 halves from `at`, with the registers `%r30` (its number) and
/// `%r31` (a stride) set before.
fn load(prelude: &str, at: &str, stride: &str) -> String {
    let body = format!(
        "mov.u32 %r30, %tid.x; mov.u32 %r31, 16; setp.eq.u32 %p0, %r30, 9;\n{prelude}\n\
         wmma.load.a.sync.aligned.row.m16n16k16.f16 {}, [{at}], {stride};",
        list("r", 8)
    );
    kernel(1, REGISTERS, &body)
}

fn fault_of(text: &str) -> Fault {
    let mut bench = Bench::new(text);
    let buffer = bench.buffer(&[0; 512]);
    bench.run(1, 32, &[buffer]).expect_err("a fault")
}

#[test]
fn wrong_addresses_of_matrices_are_reported() {
    for (prelude, at, stride, wanted) in [
        ("", "%a+16", "24", ("misaligned", 16, 32)),
        ("", "%a", "20", ("misaligned", 40, 32)),
        // The last row begins inside the buffer and ends outside, or is entirely outside.
        ("", "%a+32", "16", ("illegal", 512, 32)),
        ("", "%a+480", "24", ("illegal", 528, 32)),
        ("", "%a", "24", ("illegal", 528, 32)),
        ("mov.u32 %r31, 32;", "%a", "%r31", ("illegal", 512, 32)),
    ] {
        let text = load(prelude, at, stride);
        let mut bench = Bench::new(&text);
        let buffer = bench.buffer(&[0; 512]);
        let fault = bench.run(1, 32, &[buffer]).expect_err("a fault");
        let (kind, access) = match &fault.kind {
            FaultKind::Misaligned(access) => ("misaligned", access),
            FaultKind::IllegalAddress(access) => ("illegal", access),
            other => panic!("{other}"),
        };
        assert_eq!((access.kind, access.memory), (AccessKind::Read, Memory::Global), "{fault}");
        assert_eq!((kind, access.address - buffer, access.bytes), wanted, "{at} {stride}: {fault}");
        assert_eq!(fault.site.expect("a thread").line, line_of(&text, "wmma"));
    }
    // Rows of sixteen halves with a stride of a multiple of sixteen bytes are correct.
    let mut bench = Bench::new(&load("", "%a+32", "24"));
    let buffer = bench.buffer(&[0; 1024]);
    bench.run(1, 32, &[buffer]).expect("a launch");
}

#[test]
fn lanes_with_different_addresses_or_strides_are_reported() {
    for (prelude, stride) in [("@%p0 add.u64 %a, %a, 32;", "16"), ("@%p0 mov.u32 %r31, 8;", "%r31")] {
        let fault = fault_of(&load(prelude, "%a", stride));
        assert!(
            matches!(&fault.kind, FaultKind::InvalidValue(what) if what.contains("different addresses or strides")),
            "{fault}"
        );
        assert_eq!(fault.site.expect("a thread").lane, 9);
    }
}

#[test]
fn stride_below_the_length_of_a_line_is_reported() {
    for (prelude, stride) in [("", "8"), ("mov.u32 %r31, 0;", "%r31")] {
        let fault = fault_of(&load(prelude, "%a", stride));
        assert!(
            matches!(&fault.kind, FaultKind::InvalidValue(what) if what.contains("the lines of its matrix have 16")),
            "{fault}"
        );
    }
}

#[test]
fn matrix_in_local_memory_is_reported() {
    let declarations = format!("{REGISTERS} .local .align 32 .b8 tile[512];");
    let body = format!(
        "mov.u64 %rd1, tile; cvta.local.u64 %rd1, %rd1;\n\
         wmma.load.a.sync.aligned.row.m16n16k16.f16 {}, [%rd1], 16;",
        list("r", 8)
    );
    let fault = Bench::new(&kernel(0, &declarations, &body)).run(1, 32, &[]).expect_err("a fault");
    assert!(
        matches!(&fault.kind, FaultKind::InvalidValue(what) if what.contains("neither global nor shared")),
        "{fault}"
    );
}

#[test]
fn element_that_was_never_written_is_reported_for_the_lane_that_would_hold_it() {
    let declarations = format!("{REGISTERS} .shared .align 32 .b8 tile[512];");
    // All lanes but the sixth write their sixteen bytes.
    let body = format!(
        "mov.u32 %r30, %tid.x; shl.b32 %r31, %r30, 4; mov.u32 %r29, tile; add.u32 %r31, %r31, %r29; mov.u32 %r28, 0;\n\
         setp.ne.u32 %p0, %r30, 5; @%p0 st.shared.v4.b32 [%r31], {{%r28, %r28, %r28, %r28}};\n\
         bar.warp.sync 0xffffffff;\n\
         wmma.load.b.sync.aligned.col.m16n16k16.shared.f16 {}, [tile], 16;",
        list("r", 8)
    );
    let text = kernel(0, &declarations, &body);
    let fault = Bench::new(&text).run(1, 32, &[]).expect_err("bytes that were never written");
    let FaultKind::Uninitialised(access) = &fault.kind else { panic!("{fault}") };
    // The second half of column 2: lane 8 holds its rows 0, 1, 8 and 9.
    assert_eq!((access.memory, access.address, access.bytes), (Memory::Shared, 80, 2), "{fault}");
    assert_eq!(fault.site.expect("a thread").lane, 8);
}
