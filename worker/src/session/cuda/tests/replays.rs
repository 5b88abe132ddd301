//! Tests replays on a device: what the pool contains, errors of the driver, and kernels that write into the pool.

use std::sync::atomic::{AtomicU32, Ordering};

use opt_shared::message::{ReplayCall, ReplayCallee, ReplayTask};
use opt_shared::outcome::{ReplayResult, Replayed};

use super::*;
use crate::session::cuda::driver::emulated::EmulatedDriver;
use crate::stage::replay;

/// The input sizes of the two entries, in bytes.
const FIRST: u64 = 600;
const SECOND: u64 = 144;
const IN_TURNS: [u32; 4] = [0, 1, 0, 1];

fn replayed(
    driver: Box<dyn Driver>,
    image: &[u8],
    numbers: &[u32],
) -> (Head, Option<Box<ReplayResult>>, HeldDevice) {
    let folder = tempfile::tempdir().expect("a folder");
    let (entries, signature) = entries_of(RELU, numbers);
    let launch = Launch { steps: vec![step("relu", &["input", "out", "out.numel"])], workspaces: Vec::new() };
    let callee = device_callee(folder.path(), image, signature, launch);
    let task = ReplayTask {
        name: "all".to_owned(),
        steps: entries.into_iter().map(|entry| ReplayCall { callee: 0, entry }).collect(),
        callees: vec![ReplayCallee { job: "relu".to_owned(), callee, verify: verify_settings() }],
        budget: Bytes::mib(8),
        device_cap: CAP,
        pin: Vec::new(),
        prefetch: 2,
        recording: folder.path().join("all.recording"),
        drop_cache: false,
    };
    let device = HeldDevice::new(driver);
    let backend = CudaBackend::new(&device, task.device_cap).expect("a seed");
    let mut head = Head::passed();
    let Replayed { result } = replay::run(&backend, &|_, _, _| (), &task, &mut head);
    drop(backend);
    (head, result, device)
}

/// Replays relu of these entries with this kernel on the scripted driver.
fn scripted(
    kernel: impl Fn(&mut FakeMemory, &[u64]) -> Result<(), (Code, Option<Site>)> + Send + 'static,
    numbers: &[u32],
) -> (Head, Option<Box<ReplayResult>>, SharedScript) {
    let (driver, script) = ScriptedDriver::new();
    script.lock().kernels.insert("relu".to_owned(), (vec![8, 8, 8], Arc::new(Mutex::new(kernel))));
    let (head, result, _) = replayed(Box::new(driver), b"as built", numbers);
    assert_eq!(script.lock().held, Bytes::ZERO, "nothing is left on the device");
    (head, result, script)
}

#[test]
fn replay_loads_each_constant_once_and_has_the_outputs_of_the_emulated_device() {
    let (head, result, script) = scripted(relu, &IN_TURNS);
    assert_eq!(head.status, Status::Passed, "{}", head.detail);
    let result = result.expect("every step succeeded");
    assert_eq!((result.constants, result.uses, result.step_count), (2, 4, 4));
    assert_eq!(result.bytes_moved, Bytes::new(FIRST + SECOND));
    assert_eq!((script.lock().count(Asked::Upload), result.evictions), (2, 0));
    // The scripted driver counts in units of 512 bytes.
    assert_eq!(result.peak_pool_bytes, Bytes::new(1024 + 512));
    let ptx = include_str!("relu.ptx").replace("HARM", "st.global.f32 [%rd7], %f2;");
    let (head, emulated, device) = replayed(Box::new(EmulatedDriver::new()), ptx.as_bytes(), &IN_TURNS);
    assert_eq!(head.status, Status::Passed, "{}", head.detail);
    let emulated = emulated.expect("every step succeeded");
    assert_eq!(emulated.outputs_digest, result.outputs_digest);
    assert_eq!(emulated.peak_pool_bytes, Bytes::new(768 + 256));
    let left = device.driver.lock().memory().expect("figures");
    assert_eq!(left.free, left.total);
}

#[test]
fn replayed_kernel_that_changes_its_input_is_blamed() {
    let kernel = |memory: &mut FakeMemory, params: &[u64]| {
        relu(memory, params)?;
        memory.write(params[0], &[0; 4]);
        Ok(())
    };
    let (head, result, _) = scripted(kernel, &IN_TURNS);
    assert_eq!((head.status, result.is_none()), (Status::InputMutated, true), "{}", head.detail);
    assert!(
        head.detail.starts_with("step 0, entry_000000: stored into the input `input`"),
        "{}",
        head.detail
    );
}

/// Any kernel of the steps in between may have written to the constant, so no candidate is blamed.
#[test]
fn write_into_a_constant_of_another_step_is_noticed_when_it_is_used_again() {
    let constant = Mutex::new(None);
    let kernel = move |memory: &mut FakeMemory, params: &[u64]| {
        let mut constant = constant.lock().expect("no panic");
        match *constant {
            // The first call has the larger input, the second call the smaller one.
            _ if params[2] * 4 == SECOND => *constant = Some(params[0]),
            Some(address) => memory.write(address, &[0xaa; 4]),
            None => {}
        }
        relu(memory, params)
    };
    let (head, result, _) = scripted(kernel, &IN_TURNS);
    assert_eq!((head.status, result.is_none()), (Status::InfraError, true), "{}", head.detail);
    assert!(
        head.detail.contains("`input` has changed in the pool since it was loaded or last used"),
        "{}",
        head.detail
    );
}

/// The pool loads the last step's constant while the first step runs.
#[test]
fn write_into_a_constant_that_was_loaded_ahead_is_noticed_at_its_first_use() {
    let calls = AtomicU32::new(0);
    let kernel = move |memory: &mut FakeMemory, params: &[u64]| {
        if calls.fetch_add(1, Ordering::Relaxed) == 1 {
            // To keep its alignment, the tensor may begin after the start of its allocation, but by less than 64 bytes.
            let second = usize::try_from(SECOND).expect("small");
            memory.damage(second..second + 64);
        }
        relu(memory, params)
    };
    let (head, result, _) = scripted(kernel, &[0, 0, 1]);
    assert_eq!((head.status, result.is_none()), (Status::InfraError, true), "{}", head.detail);
    assert!(
        head.detail.starts_with("step 2, entry_000001: the input `input` has changed"),
        "{}",
        head.detail
    );
}

#[test]
fn error_of_the_driver_while_the_pool_is_filled_leaves_no_result() {
    for asked in [Asked::Allocate, Asked::Upload, Asked::Fill, Asked::Pinned] {
        let (driver, script) = ScriptedDriver::new();
        script.lock().kernels.insert("relu".to_owned(), (vec![8; 3], Arc::new(Mutex::new(relu))));
        script.lock().failing.push((asked, 1, Code::OUT_OF_MEMORY));
        let (head, result, _) = replayed(Box::new(driver), b"as built", &[0, 1]);
        assert_eq!((head.status, result.is_none()), (Status::InfraError, true), "{asked:?}: {}", head.detail);
    }
}
