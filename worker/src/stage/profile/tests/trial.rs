//! Tests the trial that decides which inputs get new values.

use super::*;
use crate::session::scripted::{AskedInputs, Shown};

const EMBEDDING: &str = "torch_nn_functional_embedding";
pub(super) const LINEAR: &str = "torch_nn_functional_linear";
const ATTENTION: &str = "torch_nn_functional_scaled_dot_product_attention";

/// A candidate's function. It gets the inputs and writes the output.
pub(super) type Kernel = fn(&Shown<'_>, &mut [u8]) -> i32;

/// Returns a task with captured calls of an op, whose inputs may vary.
pub(super) fn varying(op: &str, numbers: &[u32]) -> ProfileTask {
    let (entries, signature) = entries_of(op, numbers);
    let mut task = ProfileTask {
        callee: callee("fast", signature.clone()),
        baseline: Some(callee("naive", signature)),
        entries,
        depth: Depth::Screen,
        ..task(&[0], true)
    };
    task.entries.iter_mut().for_each(|entry| entry.numbers.varied = Bytes::mib(9));
    task
}

/// Returns a candidate and a baseline that both compute this kernel.
fn computing(kernel: Kernel) -> ScriptedBackend {
    let script = Script { kernel, ..honest(120_000 * US) };
    with_baseline(script.clone(), script)
}

/// Returns a number that depends on every byte of the inputs.
fn mixed(shown: &Shown<'_>) -> f32 {
    let bytes = shown.inputs.iter().chain(shown.planned).flat_map(|(_, values)| values);
    let sum = bytes.fold(7_u32, |sum, &byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    1.0 + f32::from(u16::try_from(sum >> 20).expect("twelve bits"))
}

/// Adds a number to the recorded values of some elements.
pub(super) fn add(output: &mut [u8], number: f32, changes: fn(usize) -> bool) -> i32 {
    for (at, element) in output.chunks_exact_mut(4).enumerate().filter(|(at, _)| changes(*at)) {
        let value = f32::from_le_bytes(element.try_into().expect("four bytes"));
        element.copy_from_slice(&(value + number).to_le_bytes());
        assert!(at < 1 << 20, "small outputs only");
    }
    0
}

/// A kernel whose output elements each depend on every input.
pub(super) fn dense(shown: &Shown<'_>, output: &mut [u8]) -> i32 {
    add(output, mixed(shown), |_| true)
}

fn asked_inputs(backend: &ScriptedBackend) -> Vec<AskedInputs> {
    let asked = backend.asked.borrow();
    let inputs = asked.iter().filter_map(|it| match it {
        Asked::Inputs(inputs) => Some(inputs.clone()),
        _ => None,
    });
    inputs.collect()
}

/// Returns, for each block, the indices of the tensors that got new values.
fn tried(backend: &ScriptedBackend) -> Vec<Vec<usize>> {
    let inputs = asked_inputs(backend);
    inputs.iter().map(|it| it.used.iter().map(|(tensor, _)| *tensor).collect()).collect()
}

#[test]
fn trial_loads_a_kernel_once_more_if_it_does_not_load() {
    let dead = Script { load: Answer::Died, ..honest(120_000 * US) };
    let backend = with_baseline(honest(120_000 * US), dead);
    let report = profile(&backend, &varying(EMBEDDING, &[0]));
    assert!(report.body.baseline_failed);
    // The sessions are two trials and one session of each side.
    assert_eq!(backend.count(|it| matches!(it, Asked::Start(..))), 4);
    assert_eq!(backend.count(|it| *it == Asked::Finish), 4, "all sessions are ended");
}

#[test]
fn trial_tries_all_inputs_then_floats_then_integers_then_the_largest() {
    for (op, choices) in [
        // The indices have 128 bytes, and the table 18 KiB.
        (EMBEDDING, vec![vec![0, 1], vec![1], vec![0]]),
        // The three inputs have 20 KiB, 240 KiB and 768 bytes.
        (LINEAR, vec![vec![0, 1, 2], vec![1], vec![0], vec![2]]),
    ] {
        let backend = computing(|_, _| 3);
        let report = profile(&backend, &varying(op, &[0]));
        assert_eq!(tried(&backend), choices, "{op}");
        let entry = &report.body.entries[0];
        assert_eq!(
            entry.unvaried_because.as_deref(),
            Some("the kernel that tries other values refuses them"),
            "{op}"
        );
    }
}

#[test]
fn trial_uses_the_first_choice_that_works() {
    // Only the table may vary.
    let backend = computing(|shown, output| match shown.inputs {
        [(1, _)] => dense(shown, output),
        _ => 3,
    });
    let report = profile(&backend, &varying(EMBEDDING, &[0]));
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    assert_eq!(report.body.entries[0].varied, ["weight"]);
    let timed: Vec<AskedInputs> = asked_inputs(&backend).split_off(2);
    assert!(4 <= timed.len() && timed.iter().all(|it| it.before != it.used), "each block has new values");
}

#[test]
fn trial_requires_that_all_parts_of_an_output_depend_on_the_inputs() {
    let hardly = Some("an output, or a part of one, hardly depends on the inputs' values");
    // The output has 150 elements, in parts of 16.
    let table: [(&str, Kernel, Option<&str>); 7] = [
        ("all elements", dense, None),
        ("one in eight", |shown, output| add(output, mixed(shown), |at| at % 8 == 0), None),
        ("one in sixteen", |shown, output| add(output, mixed(shown), |at| at % 16 == 0), hardly),
        ("not the first part", |shown, output| add(output, mixed(shown), |at| 16 <= at), hardly),
        ("not the last part", |shown, output| add(output, mixed(shown), |at| at < 134), hardly),
        (
            "NaN",
            |_, output| add(output, f32::NAN, |_| true),
            Some("other values make NaN or infinities that were not recorded"),
        ),
        ("the same for any inputs", |_, output| add(output, 5.0, |_| true), hardly),
    ];
    for (name, kernel, why) in table {
        let report = profile(&computing(kernel), &varying(RELU, &[0]));
        assert_eq!(report.head.status, Status::Passed, "{name}: {}", report.head.detail);
        let entry = &report.body.entries[0];
        assert_eq!(entry.unvaried_because.as_deref(), why, "{name}");
        assert_eq!(entry.varied.is_empty(), why.is_some(), "{name}");
    }
}

#[test]
fn inputs_that_the_baseline_does_not_read_keep_their_values() {
    fn reading(shown: &Shown<'_>, output: &mut [u8], read: &[usize]) -> i32 {
        let inputs: Vec<_> =
            shown.inputs.iter().filter(|(tensor, _)| read.contains(tensor)).cloned().collect();
        dense(&Shown { inputs: &inputs, ..*shown }, output)
    }
    for (name, kernel, varied, layouts) in [
        ("all", dense as Kernel, vec!["input", "weight", "bias"], 3),
        ("not the weight", |shown, output| reading(shown, output, &[0, 2]), vec!["input", "bias"], 2),
        ("only the bias", |shown, output| reading(shown, output, &[2]), vec!["bias"], 1),
    ] as [(&str, Kernel, Vec<&str>, usize); 3]
    {
        let backend = computing(kernel);
        let report = profile(&backend, &varying(LINEAR, &[0]));
        let entry = &report.body.entries[0];
        assert_eq!(
            (entry.varied.iter().map(String::as_str).collect::<Vec<_>>(), &entry.unvaried_because),
            (varied, &None),
            "{name}"
        );
        assert_eq!(tried(&backend).last().map(Vec::len), Some(layouts), "{name}: timed calls");
    }
}

/// Returns the number of blocks of the first session, which is the trial's.
fn blocks_of_the_trial(backend: &ScriptedBackend) -> usize {
    let asked = backend.asked.borrow();
    let trial = asked.iter().take_while(|it| **it != Asked::Finish);
    trial.filter(|it| matches!(it, Asked::Block(_))).count()
}

#[test]
fn inputs_get_other_values_twice_before_they_count_as_unread_and_more_often_if_outputs_are_small() {
    // Neither kernel reads the last input. The output of the second kernel is a single float64.
    let linear: Kernel = |shown, output| dense(&Shown { inputs: &shown.inputs[..2], ..*shown }, output);
    let matmul: Kernel = |shown, output| {
        let inputs: Vec<_> = shown.inputs.iter().filter(|(tensor, _)| *tensor == 0).cloned().collect();
        output.copy_from_slice(&f64::from(mixed(&Shown { inputs: &inputs, ..*shown })).to_le_bytes());
        0
    };
    // One block tries all inputs, another one starts the comparison, and each input that is read needs one more block.
    for (op, number, kernel, varied, blocks) in [
        (LINEAR, 0, linear, vec!["input", "weight"], 1 + 1 + 2 + 2),
        ("torch_matmul", 5, matmul, vec!["arg0"], 1 + 1 + 1 + 16),
    ] {
        let backend = computing(kernel);
        let report = profile(&backend, &varying(op, &[number]));
        let entry = &report.body.entries[0];
        assert_eq!(entry.varied, varied, "{op}: {:?}", entry.unvaried_because);
        assert_eq!(blocks_of_the_trial(&backend), blocks, "{op}");
    }
}

#[test]
fn trial_checks_small_outputs() {
    // The output is a single float64.
    let backend = computing(|shown, output| {
        output.copy_from_slice(&f64::from(mixed(shown)).to_le_bytes());
        0
    });
    let report = profile(&backend, &varying("torch_matmul", &[5]));
    assert_eq!(report.body.entries[0].varied.len(), 2, "{:?}", report.body.entries[0].unvaried_because);
    let report = profile(&computing(|_, _| 0), &varying("torch_matmul", &[5]));
    let why = report.body.entries[0].unvaried_because.as_deref();
    assert_eq!(why, Some("an output, or a part of one, hardly depends on the inputs' values"));
}

#[test]
fn trial_keeps_inputs_from_which_a_plan_call_prepares_something() {
    let planned = |kernel| Script {
        load: Answer::Done(Loaded::Ready { has_plan: true, returned: false }),
        kernel,
        ..honest(120_000 * US)
    };
    let recent: Kernel = |shown, output| dense(&Shown { planned: &[], ..*shown }, output);
    for (kernel, why) in
        [(recent, None), (dense, Some("the plan call prepares something from the inputs' values"))]
    {
        let backend = with_baseline(planned(kernel), planned(kernel));
        let report = profile(&backend, &varying(RELU, &[0]));
        assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
        assert_eq!(report.body.entries[0].unvaried_because.as_deref(), why);
        let (plans, calls): (Vec<_>, Vec<_>) =
            asked_inputs(&backend).split_off(4).into_iter().partition(|it| it.plan);
        assert_eq!(plans.len(), if why.is_none() { 2 } else { 0 }, "both sides");
        assert!(
            plans.iter().all(|plan| calls.iter().all(|call| call.used != plan.used)),
            "no timed call has the values of a plan call"
        );
    }
}

#[test]
fn trial_allows_each_of_its_calls_the_full_time() {
    let backend = computing(dense);
    let task = varying(RELU, &[0]);
    profile(&backend, &task);
    let asked = backend.asked.borrow();
    let first = asked.iter().find_map(|it| match it {
        Asked::Block(block) => Some((block.calls, block.limit)),
        _ => None,
    });
    assert_eq!(first, Some((2, task.verify.call_timeout * 2)));
}

#[test]
fn trial_with_a_ring_of_one_slot_compares_each_block_with_the_next() {
    let script = Script { slots: 1, ..honest(100 * US) };
    let report = profile(&with_baseline(script.clone(), script), &varying(RELU, &[0]));
    let entry = &report.body.entries[0];
    assert_eq!((report.head.status, entry.calls_per_block), (Status::Passed, 1), "{}", report.head.detail);
    assert_eq!(entry.varied, ["input"]);
}

#[test]
fn entry_that_fails_its_trial_does_not_stop_the_other_trials() {
    let mut task = varying(RELU, &[0, 0]);
    for (number, entry) in task.entries.iter_mut().enumerate() {
        entry.name = format!("call_{number}");
    }
    let once = |play| {
        Script::timed(&[BlockPlay { play, ..BlockPlay::honest(100 * US) }, BlockPlay::honest(100 * US)])
    };
    for (first, why, sessions) in [
        // The session is dead, so the second entry needs another one.
        (once(|_| Play::Dies), "the kernel that tries other values does not survive them", 2),
        (once(|_| Play::code(3)), "the kernel that tries other values refuses them", 1),
    ] {
        let backend = ScriptedBackend::playing_each(&[
            ("naive", first),
            ("naive", honest(100 * US)),
            ("fast", honest(100 * US)),
        ]);
        let report = profile(&backend, &task);
        let [one, other] = report.body.entries.as_slice() else { panic!("two entries") };
        assert_eq!(one.unvaried_because.as_deref(), Some(why));
        assert_eq!(other.varied, ["input"]);
        let started = backend.count(|it| matches!(it, Asked::Start(candidate, _) if candidate == "naive"));
        assert_eq!(started, sessions + 1, "{why}: the last one is timed");
    }
}

#[test]
fn trial_treats_a_tensor_that_is_passed_twice_as_one_input() {
    // The second argument is the transpose of the first, over the same bytes.
    let backend = computing(dense);
    let report = profile(&backend, &varying("torch_matmul", &[6]));
    assert_eq!(report.body.entries[0].varied.len(), 1, "{:?}", report.body.entries[0]);
    assert_eq!(tried(&backend)[0], [0]);
    // The three tensors have the same size, but do not share bytes.
    let report = profile(&computing(dense), &varying(ATTENTION, &[1]));
    assert_eq!(report.body.entries[0].varied.len(), 3, "{:?}", report.body.entries[0].unvaried_because);
}

#[test]
fn trial_keeps_inputs_that_overlap() {
    // The inputs are three views of one tensor.
    let backend = computing(dense);
    let report = profile(&backend, &varying(ATTENTION, &[3]));
    let why = report.body.entries[0].unvaried_because.clone().expect("nothing varies");
    assert_eq!(why.matches("it overlaps another argument").count(), 3, "{why}");
    assert!(tried(&backend).is_empty());
}

#[test]
fn trial_writes_every_part_of_a_large_input() {
    // The weight has 240 KiB, which are written in pieces of 64 KiB. Memory that was never written contains zeros.
    let report = profile(
        &computing(|shown, output| {
            let written = |piece: &[u8]| piece.iter().any(|&byte| byte != 0);
            let all = shown.inputs.iter().all(|(_, values)| values.chunks(60 << 10).all(written));
            if all { dense(shown, output) } else { 5 }
        }),
        &varying(LINEAR, &[0]),
    );
    assert_eq!(report.body.entries[0].varied, ["input", "weight", "bias"]);
}

#[test]
fn inputs_are_read_if_they_change_only_the_end_of_a_large_output() {
    // The output has 169 KiB, which are read in pieces of 64 KiB.
    let kernel: Kernel = |shown, output| {
        dense(&Shown { inputs: &shown.inputs[..1], ..*shown }, output);
        let last = output.len() - 4;
        dense(shown, &mut output[last..])
    };
    let report = profile(&computing(kernel), &varying("torch_nn_functional_conv2d", &[0]));
    let entry = &report.body.entries[0];
    assert_eq!(entry.varied, ["input", "weight", "bias"], "{:?}", entry.unvaried_because);
}
