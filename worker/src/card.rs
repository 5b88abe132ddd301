//! Whether a card is there: its driver is asked, in a process that does nothing else.

use std::ffi::{CStr, c_char, c_int, c_void};

use opt_shared::device::Device;

/// Under the name that every driver installs.
const LIBRARY: &CStr = c"libcuda.so.1";
/// Of a device's attributes.
const MAJOR: c_int = 75;
const MINOR: c_int = 76;

type Init = unsafe extern "C" fn(flags: u32) -> c_int;
type Count = unsafe extern "C" fn(count: *mut c_int) -> c_int;
type Attribute = unsafe extern "C" fn(value: *mut c_int, attribute: c_int, device: c_int) -> c_int;
type Name = unsafe extern "C" fn(name: *mut c_char, length: c_int, device: c_int) -> c_int;

/// `yes WHAT` or `no WHY`.
pub(crate) fn tell(device: &str) -> String {
    let Some(Device::Cuda(number)) = Device::from_name(device) else {
        return format!("no `{device}` is no card");
    };
    match ask(number) {
        Ok(what) => format!("yes {what}"),
        Err(why) => format!("no {why}"),
    }
}

fn ask(number: u32) -> Result<String, String> {
    // SAFETY: a string that lives; the library's own initialisation is what is asked for.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err("there is no NVIDIA driver on this machine (libcuda.so.1 was not found)".to_owned());
    }
    let symbol = |name: &CStr| -> Result<*mut c_void, String> {
        // SAFETY: the library is open for as long as this process lives.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        if found.is_null() {
            Err(format!("the NVIDIA driver has no {}", name.to_string_lossy()))
        } else {
            Ok(found)
        }
    };
    // SAFETY: these are the types of the driver's interface, which has had them since its first version.
    let (init, count, attribute, name) = unsafe {
        (
            std::mem::transmute::<*mut c_void, Init>(symbol(c"cuInit")?),
            std::mem::transmute::<*mut c_void, Count>(symbol(c"cuDeviceGetCount")?),
            std::mem::transmute::<*mut c_void, Attribute>(symbol(c"cuDeviceGetAttribute")?),
            std::mem::transmute::<*mut c_void, Name>(symbol(c"cuDeviceGetName")?),
        )
    };
    let done = |code: c_int| {
        if code == 0 { Ok(()) } else { Err(format!("the NVIDIA driver refused with error {code}")) }
    };
    let device = c_int::try_from(number).map_err(|_| "no driver counts so far".to_owned())?;
    let (mut cards, mut major, mut minor) = (0, 0, 0);
    let mut text = [0; 256];
    // SAFETY: each is given what it writes to; the name's length is its room, less the zero that stays.
    unsafe {
        done(init(0))?;
        done(count(&mut cards))?;
        if cards <= device {
            return Err(format!("the NVIDIA driver has {cards} devices"));
        }
        done(attribute(&mut major, MAJOR, device))?;
        done(attribute(&mut minor, MINOR, device))?;
        done(name(text.as_mut_ptr(), 255, device))?;
    }
    // SAFETY: the last byte is zero.
    let name = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
    Ok(format!("{name}, compute capability {major}.{minor}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_no_card_is_refused_without_a_driver() {
        for name in ["cpu", "emulated", "cuda", "cuda:x"] {
            assert_eq!(super::tell(name), format!("no `{name}` is no card"));
        }
    }
}
