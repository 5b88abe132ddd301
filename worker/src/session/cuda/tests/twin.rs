//! Tests verification through the twin of libcuda, with the same code that drives a card.

use std::path::PathBuf;

use super::*;
use crate::session::cuda::driver::NoDriver;
use crate::session::cuda::driver::card::CardDriver;

const PTX: &str = include_str!("relu.ptx");

/// Loads the twin under the driver's name. It lies beside this test's executable.
fn load_twin() {
    let mut path: PathBuf = std::env::current_exe().expect("this test");
    path.set_file_name("libcuda.so");
    // SAFETY: our own library, whose start-up code does nothing.
    let twin = unsafe { libloading::Library::new(&path) };
    // It stays loaded, so that loading `libcuda.so` finds it later.
    std::mem::forget(twin.expect("the twin, which is built with this test"));
}

fn kernel(harm: &str) -> Attempt {
    load_twin();
    let driver = CardDriver::open(0).expect("the twin's device");
    let mut attempt = Attempt::on(Box::new(driver));
    attempt.image = PTX.replace("HARM", harm).into_bytes();
    attempt
}

/// There is only one test, because a fault ends the context of the whole process, as on a card.
#[test]
fn card_is_driven_through_libcuda() {
    load_twin();
    let absent = CardDriver::open(7).err().expect("one device");
    assert!(matches!(absent, NoDriver::Device { ordinal: 7, .. }), "{absent}");
    let store = "st.global.f32 [%rd7], %f2;";
    let attempt = Attempt { entries: vec![0, 1], ..kernel(store) };
    let (head, verified, device) = attempt.run();
    assert_eq!((head.status, verified.entries_passed), (Status::Passed, 2), "{}", head.detail);
    {
        let mut driver = device.driver.lock();
        let left = driver.memory().expect("figures");
        assert_eq!(left.free, left.total);
        assert_eq!(driver.card().name, "twin of a card");
    }
    // A store beside a buffer does not fault on this device. The bands detect it.
    let beyond = format!("{store}\nadd.s64 %rd7, %rd7, 4;\n{store}");
    let device = ends_as(kernel(&beyond), Status::OutOfBounds, &["past the end of `output`"]);
    assert!(device.is_usable());
    let stores = format!("{store}\nst.global.f32 [%rd6], 0f40e00000;");
    ends_as(kernel(&stores), Status::InputMutated, &["`input`"]);
    ends_as(kernel("no instruction"), Status::LoadError, &["CUDA_ERROR_INVALID_PTX (218), PTX line"]);
    let mut short = kernel(store);
    short.launch.steps[0] = step("relu", &["input", "out"]);
    ends_as(short, Status::LoadError, &["takes 3 parameters of 8, 8, 8 bytes"]);
    let words =
        ["CUDA_ERROR_LAUNCH_FAILED (719)", "in launch 1 (`relu`)", "a card does not report the place"];
    let attempt = Attempt { entries: vec![0, 1], ..kernel("trap;") };
    let (head, verified, device) = attempt.run();
    assert_eq!((head.status, verified.entries_run), (Status::Crashed, 1), "{}", head.detail);
    assert!(words.iter().all(|words| head.detail.contains(words)), "{}", head.detail);
    assert!(head.context_lost && !device.is_usable());
    // The driver is not called, because freeing memory could wait for a kernel that never ends.
    assert_eq!(device.driver.lock().free(1), Ok(()));
}
