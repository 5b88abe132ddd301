//! Runs kernels with planted mistakes. Each mistake must be reported with its source line.

use std::time::Duration;

use opt_emulator::{AccessKind, Config, Device, Fault, FaultKind, Launch, Limit, Memory};

const TEXT: &str = include_str!("../data/kernels/mistakes.ptx");
const SOURCE: &str = include_str!("../data/kernels/mistakes.cu");

/// A device with two buffers of 256 bytes. `x` contains small integers, and `y` contains zeros.
struct Fixture {
    device: Device,
    x: u64,
    y: u64,
}

impl Fixture {
    fn new(threads: usize) -> Self {
        let mut device = Device::new(Config { memory: 1 << 20, threads, ..Config::default() });
        let (x, y) = (device.alloc(256).expect("memory"), device.alloc(256).expect("memory"));
        let numbers: Vec<u8> = (0..64_u32).flat_map(|i| (i % 13).to_le_bytes()).collect();
        device.write(x, &numbers).expect("a live buffer");
        device.fill(y, 0, 256).expect("a live buffer");
        Self { device, x, y }
    }

    fn run(&mut self, name: &str, grid: u32, block: u32, params: Vec<Vec<u8>>) -> Fault {
        let module = self.device.load(TEXT).unwrap_or_else(|error| panic!("{error}"));
        let function = module.function(name).unwrap_or_else(|| panic!("there is no kernel `{name}`"));
        let shared_bytes = if name == "too_little_dynamic_shared" { 64 } else { 0 };
        let limit = Limit { steps: 100_000, time: Duration::from_secs(60) };
        let launch = Launch { grid: [grid, 1, 1], block: [block, 1, 1], shared_bytes, params, limit };
        let fault = self.device.launch(&function, &launch).expect_err(name);
        let line = SOURCE.lines().position(|line| line.ends_with(&format!("mistake: {name}")));
        let site = fault.site.as_ref().unwrap_or_else(|| panic!("{name}: {fault}"));
        let source = site.source.as_ref().unwrap_or_else(|| panic!("{name}: {fault}"));
        assert_eq!(Some(source.line as usize), line.map(|index| index + 1), "{fault}");
        assert_eq!(source.file, "mistakes.cu");
        fault
    }
}

fn address(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn number(value: i32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

/// Checks the details of a refused access: error code, kind, memory, bytes, and the distance from the nearest buffer.
#[track_caller]
fn access(fault: &Fault, code: u32, kind: AccessKind, memory: Memory, bytes: u64, distance: Option<i64>) {
    let (FaultKind::IllegalAddress(access)
    | FaultKind::UseAfterFree(access)
    | FaultKind::Misaligned(access)
    | FaultKind::Uninitialised(access)
    | FaultKind::Pending(access)) = &fault.kind
    else {
        panic!("{fault}");
    };
    assert_eq!(
        (fault.code(), access.kind, access.memory, access.bytes),
        (code, kind, memory, bytes),
        "{fault}"
    );
    assert_eq!(access.nearest.and_then(|nearest| nearest.distance), distance, "{fault}");
}

#[test]
fn accesses_outside_of_buffers_are_reported() {
    use AccessKind::{Atomic, Read, Write};
    for threads in [1, 2] {
        let xy = |fixture: &Fixture| vec![address(fixture.x), address(fixture.y)];
        let xyn = |fixture: &Fixture, n| vec![address(fixture.x), address(fixture.y), number(n)];
        let mut fixture = Fixture::new(threads);
        let y = address(fixture.y);
        let fault = fixture.run("one_past_the_end", 1, 96, vec![y, number(64)]);
        access(&fault, 700, Write, Memory::Global, 4, Some(0));
        assert_eq!(fault.site.expect("a thread").thread, [64, 0, 0]);

        let mut fixture = Fixture::new(threads);
        let params = xyn(&fixture, 64);
        let fault = fixture.run("missing_guard", 3, 32, params);
        access(&fault, 700, Read, Memory::Global, 4, Some(0));
        assert_eq!(fault.site.expect("a thread").block, [2, 0, 0]);

        let mut fixture = Fixture::new(threads);
        let params = xyn(&fixture, 64);
        access(&fixture.run("before_the_start", 1, 64, params), 700, Read, Memory::Global, 4, Some(-4));
        let mut fixture = Fixture::new(threads);
        let params = xyn(&fixture, 64);
        access(&fixture.run("wrong_stride", 1, 64, params), 700, Read, Memory::Global, 4, Some(0));
        let mut fixture = Fixture::new(threads);
        let params = vec![address(fixture.x), address(fixture.y), number(8), number(4)];
        access(&fixture.run("swapped_axes", 8, 4, params), 700, Read, Memory::Global, 4, Some(0));
        let mut fixture = Fixture::new(threads);
        let params = xyn(&fixture, 64);
        access(&fixture.run("vector_past_the_end", 1, 20, params), 700, Read, Memory::Global, 16, Some(0));
        let mut fixture = Fixture::new(threads);
        let params = vec![address(0), address(fixture.y)];
        let fault = fixture.run("null_pointer", 1, 32, params);
        assert!(fault.to_string().contains("at 0x0 in global memory"), "{fault}");
        let mut fixture = Fixture::new(threads);
        let fault = fixture.run("host_pointer", 1, 32, vec![address(0x7fff_1234_5600)]);
        assert_eq!(fault.code(), 700);
        let mut fixture = Fixture::new(threads);
        let index = fixture.device.alloc(256).expect("memory");
        fixture.device.fill(index, 0, 256).expect("a live buffer");
        fixture.device.write(index + 40, &64_i64.to_le_bytes()).expect("a live buffer");
        let params = vec![address(index), address(fixture.x), address(fixture.y)];
        let fault = fixture.run("index_from_data", 1, 32, params);
        access(&fault, 700, Read, Memory::Global, 4, Some(0));
        assert_eq!(fault.site.expect("a thread").lane, 5);
        let mut fixture = Fixture::new(threads);
        let params = xyn(&fixture, 40_000);
        assert_eq!(fixture.run("index_overflows", 1, 32, params).code(), 700);
        let mut fixture = Fixture::new(threads);
        let small = fixture.device.alloc(48).expect("memory");
        fixture.device.fill(small, 0, 48).expect("a live buffer");
        let params = vec![address(small), address(fixture.x)];
        access(&fixture.run("atomic_past_the_end", 1, 64, params), 700, Atomic, Memory::Global, 4, Some(0));
        let mut fixture = Fixture::new(threads);
        let params = xy(&fixture);
        fixture.device.free(fixture.x).expect("a live buffer");
        let fault = fixture.run("used_after_free", 1, 32, params);
        assert!(matches!(fault.kind, FaultKind::UseAfterFree(_)), "{fault}");
        let mut fixture = Fixture::new(threads);
        let y = address(fixture.y);
        access(&fixture.run("constant_past_the_end", 1, 8, vec![y]), 700, Read, Memory::Global, 4, Some(0));
    }
}

#[test]
fn misaligned_accesses_are_reported() {
    let mut fixture = Fixture::new(2);
    let params = vec![address(fixture.x), address(fixture.y), number(1)];
    access(&fixture.run("misaligned_vector", 1, 8, params), 716, AccessKind::Read, Memory::Global, 16, None);
    let mut fixture = Fixture::new(2);
    let y = address(fixture.y);
    let fault = fixture.run("misaligned_store", 1, 8, vec![y]);
    access(&fault, 716, AccessKind::Write, Memory::Global, 4, None);
    assert_eq!(fault.site.expect("a thread").lane, 1);
}

#[test]
fn mistakes_in_shared_and_local_memory_are_reported() {
    use AccessKind::{Read, Write};
    let run = |name: &str, block| {
        let mut fixture = Fixture::new(2);
        let y = fixture.device.alloc(1024).expect("memory");
        fixture.run(name, 1, block, vec![address(y)])
    };
    let fault = run("uninitialised_shared", 64);
    access(&fault, 719, Read, Memory::Shared, 4, None);
    assert_eq!(fault.site.expect("a thread").thread, [32, 0, 0]);
    let fault = run("missing_barrier", 128);
    let FaultKind::Race { other, .. } = &fault.kind else { panic!("{fault}") };
    assert_eq!((other.site.thread, other.kind), ([63, 0, 0], Read), "{fault}");
    let fault = run("shared_past_the_end", 64);
    access(&fault, 700, Write, Memory::Shared, 4, None);
    assert_eq!(fault.site.expect("a thread").thread, [63, 0, 0]);
    let fault = run("too_little_dynamic_shared", 32);
    access(&fault, 700, Write, Memory::Shared, 4, None);
    let mut fixture = Fixture::new(2);
    let params = vec![address(fixture.x), address(fixture.y)];
    access(&fixture.run("local_past_the_end", 1, 32, params), 700, Write, Memory::Local, 4, None);
}

#[test]
fn threads_that_do_not_reach_the_same_barrier_are_reported() {
    let run = |name: &str, block| {
        let mut fixture = Fixture::new(1);
        let y = address(fixture.y);
        fixture.run(name, 1, block, vec![y])
    };
    assert_eq!(run("divergent_barriers", 64).kind, FaultKind::BarrierDivergence);
    let fault = run("barrier_that_nobody_reaches", 64);
    assert_eq!((&fault.kind, fault.code()), (&FaultKind::Deadlock, 702));
    assert_eq!(run("shuffle_of_the_missing", 32).kind, FaultKind::WarpDivergence);
}

#[test]
fn reads_that_do_not_wait_for_a_copy_are_reported() {
    for name in ["copy_not_awaited", "copy_awaited_too_loosely"] {
        let mut fixture = Fixture::new(2);
        let params = vec![address(fixture.x), address(fixture.y)];
        let fault = fixture.run(name, 1, 32, params);
        assert!(matches!(fault.kind, FaultKind::Pending(_)), "{fault}");
        access(&fault, 719, AccessKind::Read, Memory::Shared, 4, None);
    }
}

#[test]
fn mistakes_of_copies_and_fragments_are_reported() {
    let mut fixture = Fixture::new(2);
    let params = vec![address(fixture.x), address(fixture.y)];
    let fault = fixture.run("copy_from_past_the_end", 1, 96, params);
    access(&fault, 700, AccessKind::Read, Memory::Global, 4, Some(0));
    assert_eq!(fault.site.expect("a thread").thread, [64, 0, 0]);
    let mut fixture = Fixture::new(2);
    let params = vec![address(fixture.y)];
    let fault = fixture.run("misaligned_fragment", 1, 32, params);
    assert!(matches!(fault.kind, FaultKind::Misaligned(_)), "{fault}");
    access(&fault, 716, AccessKind::Read, Memory::Shared, 16, None);
    assert_eq!(fault.site.expect("a thread").lane, 1);
    let mut fixture = Fixture::new(2);
    let params = vec![address(fixture.y)];
    assert_eq!(fixture.run("product_of_half_a_warp", 1, 32, params).kind, FaultKind::WarpDivergence);
}

#[test]
fn traps_assertions_and_endless_loops_are_reported() {
    let mut fixture = Fixture::new(2);
    let y = address(fixture.y);
    let fault = fixture.run("endless", 2, 32, vec![y]);
    assert!(matches!(fault.kind, FaultKind::Timeout(_)), "{fault}");
    assert_eq!(fault.code(), 702);
    let mut fixture = Fixture::new(2);
    let x = address(fixture.x);
    let fault = fixture.run("traps", 1, 32, vec![x]);
    assert_eq!((&fault.kind, fault.code()), (&FaultKind::Trap, 719));
    assert_eq!(fault.site.expect("a thread").lane, 6);
    let mut fixture = Fixture::new(2);
    let x = address(fixture.x);
    let fault = fixture.run("asserts", 1, 32, vec![x]);
    assert_eq!(fault.kind, FaultKind::Assert("mistakes.cu:99: asserts: `x[i] == 1`".to_owned()));
    assert_eq!(fault.code(), 710);
}
