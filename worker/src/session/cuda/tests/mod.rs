//! Tests verification with a scripted driver: the statuses that harmful kernels and errors of the driver lead to.

mod emulated;
mod properties;
mod replays;
mod timed;
mod twin;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opt_shared::arguments::Signature;
use opt_shared::language::Launcher;
use opt_shared::launch::{Expression, Launch, LaunchArg, LaunchStep, Workspace};
use opt_shared::message::{Callee, VerifyTask};
use opt_shared::outcome::{Artifact, Blame, Head, MemoryPoint, Status, Verified};
use opt_shared::settings::VerifySettings;
use opt_shared::units::Bytes;

use super::CudaBackend;
use super::driver::code::Code;
use super::driver::{Driver, Site};
use super::held::HeldDevice;
use super::scripted::{Asked, FakeMemory, ScriptedDriver, SharedScript};
use crate::session::SessionError;
use crate::session::scripted::{callee, entries_of, verify_settings};
use crate::stage::verify;

const RELU: &str = "torch_nn_functional_relu";
/// A cap that suffices for the fixtures' entries and their bands.
const CAP: Bytes = Bytes::mib(64);

fn expression(text: &str) -> Expression {
    Expression::parse(text).expect("an expression")
}

fn step(symbol: &str, args: &[&str]) -> LaunchStep {
    LaunchStep {
        symbol: symbol.to_owned(),
        grid: [expression("ceil_div(out.numel, 256)"), expression("1"), expression("1")],
        block: [expression("256"), expression("1"), expression("1")],
        shared_mem: expression("0"),
        args: args.iter().map(|text| LaunchArg::parse(text).expect("an argument")).collect(),
    }
}

fn device_callee(folder: &Path, image: &[u8], signature: Signature, launch: Launch) -> Callee {
    let path = folder.join("kernel.ptx");
    std::fs::write(&path, image).expect("written");
    let digest = blake3::hash(image).to_hex().to_string();
    Callee {
        artifact: Artifact { digest, path, bytes: Bytes::from(image.len()) },
        launcher: Launcher::Kernel,
        launch,
        ..callee("kernel", signature)
    }
}

/// A verification of recorded calls of relu with one kernel.
struct Attempt {
    driver: Box<dyn Driver>,
    launch: Launch,
    image: Vec<u8>,
    cap: Bytes,
    entries: Vec<u32>,
    settings: VerifySettings,
}

impl Attempt {
    fn on(driver: Box<dyn Driver>) -> Self {
        Self {
            driver,
            launch: Launch {
                steps: vec![step("relu", &["input", "out", "out.numel"])],
                workspaces: Vec::new(),
            },
            image: b"as built".to_vec(),
            cap: CAP,
            entries: vec![0],
            settings: verify_settings(),
        }
    }

    fn of(
        kernel: impl Fn(&mut FakeMemory, &[u64]) -> Result<(), (Code, Option<Site>)> + Send + 'static,
    ) -> Self {
        Self::scripted(kernel).0
    }

    fn scripted(
        kernel: impl Fn(&mut FakeMemory, &[u64]) -> Result<(), (Code, Option<Site>)> + Send + 'static,
    ) -> (Self, SharedScript) {
        let (driver, script) = ScriptedDriver::new();
        script.lock().kernels.insert("relu".to_owned(), (vec![8, 8, 8], Arc::new(Mutex::new(kernel))));
        (Self::on(Box::new(driver)), script)
    }

    fn run(self) -> (Head, Verified, HeldDevice) {
        let (head, verified, device) = self.attempt();
        (head, verified.expect("the worker returned no error"), device)
    }

    fn attempt(self) -> (Head, Result<Verified, SessionError>, HeldDevice) {
        let folder = tempfile::tempdir().expect("a folder");
        let (entries, signature) = entries_of(RELU, &self.entries);
        let task = VerifyTask {
            callee: device_callee(folder.path(), &self.image, signature, self.launch),
            entries,
            verify: self.settings,
            shared_runner: Bytes::ZERO,
            device_cap: self.cap,
            drop_cache: false,
        };
        let device = HeldDevice::new(self.driver);
        let backend = CudaBackend::new(&device, task.device_cap).expect("a seed");
        let mut head = Head::passed();
        let verified = verify::run(&backend, &|_, _, _| (), &task, &mut head);
        drop(backend);
        (head, verified, device)
    }
}

fn relu(memory: &mut FakeMemory, params: &[u64]) -> Result<(), (Code, Option<Site>)> {
    let [from, to, count] = *params else { panic!("three parameters") };
    for at in 0..count {
        let value = memory.read(from + 4 * at, 4);
        let value = f32::from_le_bytes(value.try_into().expect("four bytes")).max(0.0);
        memory.write(to + 4 * at, &value.to_le_bytes());
    }
    Ok(())
}

fn ends_as(attempt: Attempt, status: Status, fragments: &[&str]) -> HeldDevice {
    let (head, _, device) = attempt.run();
    assert_eq!(head.status, status, "{}", head.detail);
    for fragment in fragments {
        assert!(head.detail.contains(fragment), "{fragment}: {}", head.detail);
    }
    device
}

#[test]
fn right_kernel_passes_and_leaves_nothing_on_the_device() {
    let (attempt, script) = Attempt::scripted(relu);
    let attempt = Attempt { entries: vec![0, 1], ..attempt };
    let (head, verified, device) = attempt.run();
    assert_eq!((head.status, verified.entries_passed), (Status::Passed, 2), "{}", head.detail);
    let names: Vec<MemoryPoint> = verified.device.iter().map(|it| it.point).collect();
    let (start, uploaded, workspace, called, released) = (
        MemoryPoint::Start,
        MemoryPoint::Uploaded,
        MemoryPoint::BeforeWorkspace,
        MemoryPoint::Called,
        MemoryPoint::Released,
    );
    assert_eq!(names, [start, uploaded, workspace, called, released]);
    // The ledger counts whole grains, and the driver counts the bytes that were requested.
    assert!(verified.device.iter().all(|it| it.used_bytes <= it.placed_bytes), "{:?}", verified.device);
    assert!(verified.device[1].placed_bytes < verified.device[2].placed_bytes, "{:?}", verified.device);
    let script = script.lock();
    assert_eq!(script.held, Bytes::ZERO, "{:?}", script.asked);
    // Each of the two sessions loads a module, and the kernel that computes digests is a third.
    assert_eq!((script.count(Asked::Load), script.count(Asked::Unload)), (3, 3));
    assert!(device.is_usable());
}

#[test]
fn harmful_kernels_have_their_statuses() {
    let wrong = |memory: &mut FakeMemory, params: &[u64]| {
        relu(memory, params)?;
        memory.write(params[1], &9.0_f32.to_le_bytes());
        Ok(())
    };
    ends_as(Attempt::of(wrong), Status::IncorrectNumerical, &["1 of"]);
    let unwritten =
        |memory: &mut FakeMemory, params: &[u64]| relu(memory, &[params[0], params[1], params[2] - 3]);
    ends_as(Attempt::of(unwritten), Status::UnwrittenOutput, &["3 of", "never written"]);
    for (offset, words) in [
        (0_i64, "past the end of `output` (at its end + 0)"),
        (-1, "before the start of `output` (at its start - 1)"),
    ] {
        let stray_write = move |memory: &mut FakeMemory, params: &[u64]| {
            relu(memory, params)?;
            let at = if offset < 0 { params[1] - 1 } else { params[1] + 4 * params[2] };
            memory.write(at, &[1]);
            Ok(())
        };
        ends_as(Attempt::of(stray_write), Status::OutOfBounds, &[words]);
    }
    let stores = |memory: &mut FakeMemory, params: &[u64]| {
        relu(memory, params)?;
        memory.write(params[0] + 4, &1234.5_f32.to_le_bytes());
        Ok(())
    };
    ends_as(Attempt::of(stores), Status::InputMutated, &["the input `input`"]);
    let writes_beside = |memory: &mut FakeMemory, params: &[u64]| {
        relu(memory, params)?;
        memory.write(params[0] + 4 * params[2] + 7, &[0]);
        Ok(())
    };
    ends_as(
        Attempt::of(writes_beside),
        Status::OutOfBounds,
        &["wrote past the end of the input `input` (at its end + 7)"],
    );
}

#[test]
fn changed_input_is_uploaded_again() {
    let stores = |memory: &mut FakeMemory, params: &[u64]| {
        relu(memory, params)?;
        memory.write(params[0], &77.0_f32.to_le_bytes());
        Ok(())
    };
    let attempt = Attempt { entries: vec![0, 0], ..Attempt::of(stores) };
    let (head, verified, _) = attempt.run();
    // If the second entry got the inputs that the first call changed, it would be INCORRECT_NUMERICAL.
    let statuses: Vec<Status> = head.failures.iter().map(|failure| failure.status).collect();
    assert_eq!((statuses.as_slice(), verified.entries_run), (&[Status::InputMutated; 2][..], 2));
}

#[test]
fn errors_of_a_launch_have_their_statuses() {
    let fails = |code: u32, site: Option<Site>| {
        Attempt::of(move |_: &mut FakeMemory, _: &[u64]| Err((Code(code), site.clone())))
    };
    for (code, status, words) in [
        (700, Status::Crashed, "CUDA_ERROR_ILLEGAL_ADDRESS (700), in launch 1 (`relu`)"),
        (716, Status::Crashed, "MISALIGNED"),
        (710, Status::Crashed, "ASSERT"),
        (715, Status::Crashed, "ILLEGAL_INSTRUCTION"),
        (719, Status::Crashed, "LAUNCH_FAILED"),
        (702, Status::Timeout, "LAUNCH_TIMEOUT"),
        (1, Status::RuntimeError, "the device refused the request in launch 1"),
        (701, Status::RuntimeError, "OUT_OF_RESOURCES"),
        (801, Status::Unsupported, ""),
        (2, Status::InfraError, "another process probably uses the memory"),
        (46, Status::InfraError, "DEVICE_UNAVAILABLE"),
        (100, Status::InfraError, "NO_DEVICE"),
        (214, Status::InfraError, "ECC"),
        (999, Status::InfraError, "UNKNOWN"),
        (31_337, Status::InfraError, "error 31337 of the driver"),
    ] {
        let device = ends_as(fails(code, None), status, &[words]);
        assert_eq!(device.is_usable(), !Code(code).ends_the_context(), "{code}");
    }
    let site = Site {
        block: Some([0, 3, 0]),
        thread: Some([17, 0, 0]),
        ptx_line: Some(1236),
        source: Some("relu.cu:45".to_owned()),
        address: None,
        outside_global: false,
        is_race: false,
        text: "trap".to_owned(),
    };
    let fragments = ["trap", "block (0, 3, 0), thread (17, 0, 0), PTX line 1236, relu.cu:45"];
    ends_as(fails(719, Some(site.clone())), Status::Crashed, &fragments);
    let shared = Site { outside_global: true, ..site };
    ends_as(fails(700, Some(shared)), Status::OutOfBounds, &["PTX line 1236"]);
}

#[test]
fn illegal_access_near_a_buffer_is_out_of_bounds() {
    for (past, status, words) in [
        (0, Status::OutOfBounds, "0 bytes past the end of the output `output`"),
        (5, Status::OutOfBounds, "5 bytes past the end of the output `output`"),
        (1 << 19, Status::Crashed, "past the end of the output `output`"),
    ] {
        let kernel = move |_: &mut FakeMemory, params: &[u64]| {
            let address = Some(params[1] + 4 * params[2] + past);
            Err((Code::ILLEGAL_ADDRESS, Some(Site { address, ..Site::default() })))
        };
        ends_as(Attempt::of(kernel), status, &[words]);
    }
}

#[test]
fn endless_kernel_is_a_timeout_and_costs_the_context() {
    let (attempt, script) = Attempt::scripted(relu);
    script.lock().endless.push("relu".to_owned());
    let settings = VerifySettings { call_timeout: Duration::from_millis(30), ..verify_settings() };
    let attempt = Attempt { settings, entries: vec![0, 1, 2], ..attempt };
    let (head, verified, device) = attempt.run();
    assert_eq!(head.status, Status::Timeout, "{}", head.detail);
    assert!(head.detail.contains("ended in launch 1 (`relu`): not done after 30ms"), "{}", head.detail);
    // No other entry can be tried in this process.
    assert_eq!((verified.entries_run, device.is_usable()), (1, false));
}

#[test]
fn context_is_replaced_where_it_can_be() {
    let (driver, script) = ScriptedDriver::new();
    let kernel = |_: &mut FakeMemory, _: &[u64]| Err((Code(719), None));
    script.lock().kernels.insert("relu".to_owned(), (vec![8, 8, 8], Arc::new(Mutex::new(kernel))));
    script.lock().replaceable = true;
    let attempt = Attempt { entries: vec![0, 1], ..Attempt::on(Box::new(driver)) };
    let (head, verified, device) = attempt.run();
    assert_eq!((head.status, verified.entries_run), (Status::Crashed, 2));
    assert!(device.is_usable());
    let script = script.lock();
    assert_eq!((script.count(Asked::Replace), script.held), (2, Bytes::ZERO));
}

#[test]
fn candidate_that_cannot_be_called_is_refused() {
    type Change = fn(&mut Attempt);
    let cases: [(Change, &str); 4] = [
        (|it| it.image = b"broken".to_vec(), "CUDA_ERROR_INVALID_PTX (218)"),
        (|it| it.launch.steps[0].symbol = "relo".to_owned(), "CUDA_ERROR_NOT_FOUND (500)"),
        (
            |it| it.launch.steps[0] = step("relu", &["input", "out"]),
            "launch 1: `relu` takes 3 parameters of 8, 8, 8 bytes, and `args` gives 2 parameters of 8, 8 bytes",
        ),
        (|it| it.launch.steps[0] = step("relu", &["input", "outt", "out.numel"]), "`outt`"),
    ];
    for (change, words) in cases {
        let mut attempt = Attempt::of(relu);
        change(&mut attempt);
        ends_as(attempt, Status::LoadError, &[words]);
    }
}

#[test]
fn workspace_beyond_the_cap_and_store_beyond_a_workspace_blame_the_candidate() {
    let with = |bytes: &str| {
        let (mut attempt, script) = Attempt::scripted(relu);
        attempt.launch.workspaces.push(Workspace { name: "scratch".to_owned(), bytes: expression(bytes) });
        (attempt, script)
    };
    ends_as(with("67108864").0, Status::DeviceMemoryLimit, &["64.0 MiB", "the device"]);
    let device = ends_as(with("1048576").0, Status::Passed, &[]);
    assert!(device.is_usable());
    let (mut beyond, script) = with("4096");
    beyond.launch.steps[0] = step("relu", &["input", "out", "scratch"]);
    script.lock().kernels.insert(
        "relu".to_owned(),
        (
            vec![8, 8, 8],
            Arc::new(Mutex::new(|memory: &mut FakeMemory, params: &[u64]| {
                memory.write(params[2] + 4096, &[1]);
                Ok(())
            })),
        ),
    );
    ends_as(beyond, Status::OutOfBounds, &["past the end of the workspace `scratch` (at its end + 0)"]);
}

#[test]
fn inputs_beyond_the_cap_end_the_attempt_with_an_error() {
    let (attempt, script) = Attempt::scripted(relu);
    let attempt = Attempt { cap: Bytes::kib(4), ..attempt };
    let (_, verified, _) = attempt.attempt();
    assert!(matches!(verified, Err(SessionError::Inputs { .. })));
    assert_eq!(script.lock().held, Bytes::ZERO);
}
