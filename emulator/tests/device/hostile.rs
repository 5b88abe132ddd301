//! Texts that are not PTX and kernels that exceed limits: they are refused without a panic, in bounded time and memory.

use std::time::Duration;

use opt_emulator::{Config, Device, FaultKind, Launch, Limit, LoadError};
use proptest::prelude::*;

use crate::kit::{Bench, REGISTERS, kernel, load_error};

const COMPILED: [&str; 4] = [
    include_str!("../data/kernels/algorithms.ptx"),
    include_str!("../data/kernels/mistakes.ptx"),
    include_str!("../data/kernels/matrices.ptx"),
    include_str!("../data/kernels/tensor.ptx"),
];

/// Loads a text and launches all of its kernels. Ignores the results, because the tests check only for panics and
/// hangs.
fn load_and_launch_all(text: &str) {
    let mut device = Device::new(Config { memory: 1 << 20, threads: 1, ..Config::default() });
    let Ok(module) = device.load(text) else { return };
    let names: Vec<String> = module.functions().map(str::to_owned).collect();
    for name in names {
        let function = module.function(&name).expect("a kernel that was named");
        let sizes = function.param_sizes();
        let params = sizes.iter().map(|bytes| vec![1; usize::try_from(*bytes).expect("small")]);
        let limit = Limit { steps: 2_000, time: Duration::from_secs(10) };
        let launch =
            Launch { grid: [2, 1, 1], block: [40, 1, 1], shared_bytes: 64, params: params.collect(), limit };
        // A fault is as valid a result as success.
        drop(device.launch(&function, &launch));
    }
}

/// Returns the text with some of its lines changed.
fn mutated(text: &str, changes: &[(usize, u8, usize)]) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (at, kind, other) in changes {
        let (at, other) = (at % lines.len(), other % lines.len());
        match kind % 7 {
            0 => drop(lines.remove(at)),
            1 => lines.swap(at, other),
            2 => lines[at] = lines[other].clone(),
            3 => {
                let words: Vec<&str> = lines[at].split_inclusive([' ', ',', '.']).collect();
                let donor: Vec<&str> = lines[other].split_inclusive([' ', ',', '.']).collect();
                let (from, to) = (other % words.len().max(1), at % donor.len().max(1));
                let mixed: String = words
                    .iter()
                    .enumerate()
                    .map(|(i, word)| if i == from { donor.get(to).unwrap_or(word) } else { word })
                    .copied()
                    .collect();
                lines[at] = mixed;
            }
            4 => lines[at] = lines[at].chars().take(other % 20).collect(),
            5 => lines[at].push_str("{[(%r1+0x7fffffffffffffff)]}"),
            _ => lines[at] = lines[at].replace(|c: char| c.is_ascii_digit(), "9"),
        }
        if lines.is_empty() {
            lines.push(String::new());
        }
    }
    lines.join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_text_is_loaded_or_refused(
        which in 0..COMPILED.len(),
        changes in prop::collection::vec((any::<usize>(), any::<u8>(), any::<usize>()), 1..6),
    ) {
        load_and_launch_all(&mutated(COMPILED[which], &changes));
    }

    #[test]
    fn any_characters_are_loaded_or_refused(text in "\\PC{0,200}", words in "[.%a-z0-9 ,;:{}()<>\\[\\]@!|_+-]{0,300}") {
        load_and_launch_all(&text);
        load_and_launch_all(&words);
        load_and_launch_all(&kernel(0, REGISTERS, &words));
    }
}

/// A text with the directives of a module, followed by `rest`.
fn module(rest: &str) -> String {
    format!(".version 8.0\n.target sm_80\n.address_size 64\n{rest}")
}

#[test]
fn long_names_are_shortened_in_messages() {
    let name = "n".repeat(10_000);
    let module = |text: String| format!(".version 8.0\n.target sm_80\n.address_size 64\n{text}\n");
    for text in [
        module(format!(".extern .global .b32 {name};")),
        module(format!(".global .b64 x = {name};")),
        module(format!(".global .b8 {name}[4]; .global .b8 {name}[4];")),
        kernel(0, &format!(".shared .b8 {name}[60000];"), ""),
        kernel(0, REGISTERS, &format!("ld.global.b32 %r1, [{name}];")),
        kernel(0, REGISTERS, &format!("brx.idx %r1, {name};")),
    ] {
        let message = load_error(&text).to_string();
        assert!(message.len() < 300, "{} bytes: {}", message.len(), &message[..300]);
    }
}

#[test]
fn load_errors_name_the_exceeded_limit() {
    let limit = |text: &str, what: &str| {
        let error = load_error(text);
        assert!(matches!(error, LoadError::Limit { .. }) && error.to_string().contains(what), "{error}");
    };
    limit(&kernel(0, ".reg .b32 %x<2000000000>;", ""), "too many registers");
    limit(&kernel(0, "", &"{".repeat(100)), "nested too deeply");
    limit(&kernel(0, ".shared .b8 s[60000];", ""), "shared memory");
    limit(&kernel(0, ".shared .b8 s[100000000000];", ""), "too large");
    limit(&kernel(0, ".local .b8 s[600000];", ""), "local memory");
    // Each function calls the previous one twice, so each doubles the size of the code.
    let mut text =
        ".version 8.0\n.target sm_80\n.address_size 64\n.func f0 () { nanosleep.u32 1; ret; }\n".to_owned();
    for index in 1..30 {
        let previous = index - 1;
        text.push_str(&format!(".func f{index} () {{ call f{previous}, (); call f{previous}, (); ret; }}\n"));
    }
    text.push_str(".visible .entry k() { call f29, (); ret; }\n");
    limit(&text, "too many instructions");
    limit(&module(".global .b8 g[4294967296];"), "variables of the module");
    limit(&module(".global .b8 g[33554432];\n.const .b8 h[33554433];"), "variables of the module");
    // Each kernel is within its own limits, but there are too many of them.
    let mut text = module(".func leaf () { ");
    text.push_str(&"membar.gl; ".repeat(1000));
    text.push_str("ret; }\n.func all () { ");
    text.push_str(&"call leaf, (); ".repeat(1000));
    text.push_str("ret; }\n");
    for index in 0..20 {
        text.push_str(&format!(".visible .entry k{index}() {{ call all, (); ret; }}\n"));
    }
    limit(&text, "the kernels are too large");
    // The function has only one instruction, but all its items are decoded again for each call.
    let mut text = module(".func leaf () { ");
    text.push_str(&".loc 1 1 1\n".repeat(100_000));
    text.push_str("ret; }\n.visible .entry k() { ");
    text.push_str(&"call leaf, (); ".repeat(100_000));
    text.push_str("ret; }\n");
    limit(&text, "the kernels are too large");
    let targets = vec!["END"; 100_000].join(", ");
    let mut text = module(".func leaf () { .reg .b32 %i; ");
    text.push_str(&format!(
        "LIST: .branchtargets {targets}; brx.idx %i, LIST; END: ret; }}\n.visible .entry k() {{ "
    ));
    text.push_str(&"call leaf, (); ".repeat(10_000));
    text.push_str("ret; }\n");
    limit(&text, "the kernels are too large");
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.func f () { call f, (); ret; }\n\
                .visible .entry k() { call f, (); ret; }\n";
    assert!(load_error(text).to_string().contains("recursion"), "{}", load_error(text));
}

#[test]
fn unsupported_targets_and_instructions_are_refused() {
    let text = kernel(0, "", "").replace("sm_80", "sm_90");
    assert!(load_error(&text).to_string().contains("`sm_90`, because the device's architecture is sm_80"));
    for instruction in [
        "wmma.mma.sync.aligned.row.col.m8n8k4.f64.f64.f64.f64 {%fd1, %fd2}, {%fd1}, {%fd1}, {%fd1, %fd2};",
        "barrier.cluster.arrive;",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%rd1], 64;",
        "tex.2d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1, %r2}];",
        "add.s8 %r1, %r1, %r1;",
        "mov.u32 %r1, %clusterid.x;",
    ] {
        let text = kernel(0, REGISTERS, instruction);
        let error = load_error(&text);
        assert!(matches!(error, LoadError::Unsupported { .. }), "{error}");
        assert_eq!(error.line(), Some(crate::kit::line_of(&text, &instruction[..8])), "{error}");
    }
}

#[test]
fn launches_beyond_the_limits_are_refused() {
    let mut bench = Bench::new(&kernel(0, "", ""));
    let code = |bench: &mut Bench, grid, block, shared| {
        let fault = bench.launch("k", grid, block, shared, &[]).expect_err("too much");
        fault.code()
    };
    assert_eq!(code(&mut bench, [1, 1, 1], [1025, 1, 1], 0), 1);
    assert_eq!(code(&mut bench, [1, 1, 1], [64, 32, 1], 0), 1);
    assert_eq!(code(&mut bench, [1, 70000, 1], [1, 1, 1], 0), 1);
    assert_eq!(code(&mut bench, [0, 1, 1], [1, 1, 1], 0), 1);
    assert_eq!(code(&mut bench, [1, 1, 1], [1, 1, 1], 1 << 20), 701);
    let fault = bench.launch("k", [1; 3], [1; 3], 0, &[vec![0; 4]]).expect_err("one parameter too many");
    assert!(matches!(fault.kind, FaultKind::InvalidValue(_)), "{fault}");
    // None of these faults is sticky.
    bench.launch("k", [1, 1, 1], [1024, 1, 1], 160 << 10, &[]).expect("a launch");
}

#[test]
fn huge_grid_of_empty_blocks_stops_at_its_limit() {
    let mut bench = Bench::new(&kernel(0, "", ""));
    let function = bench.module.function("k").expect("the kernel");
    let limit = Limit { steps: 10_000, ..Limit::default() };
    let grid = [0x7fff_ffff, 0xffff, 0xffff];
    let launch = Launch { grid, block: [1; 3], shared_bytes: 0, params: Vec::new(), limit };
    let fault = bench.device.launch(&function, &launch).expect_err("a limit");
    assert!(matches!(fault.kind, FaultKind::Timeout(_)), "{fault}");
}
