//! Detects which of Linux's interfaces for watching memory this machine offers, and whether NVIDIA's driver is loaded.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use super::pressure::TRIGGER;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Whether `/proc/pressure/memory` can be read.
    pub pressure: bool,
    /// Whether a trigger can be armed on that file.
    pub pressure_trigger: bool,
    /// Whether `/proc/PID/task/TID/children` exists.
    pub children: bool,
    /// Whether `/proc/PID/smaps_rollup` exists.
    pub smaps_rollup: bool,
    /// Whether NVIDIA's driver is loaded, according to the files that it creates.
    pub nvidia: bool,
}

impl Features {
    /// Detects the interfaces. To find out whether triggers can be armed, arms one. Closing its file removes the
    /// trigger again.
    pub fn detect(root: &Path) -> Self {
        let proc = root.join("proc");
        let own_process = proc.join("self");
        let thread = std::fs::read_dir(own_process.join("task"))
            .ok()
            .and_then(|threads| threads.flatten().map(|thread| thread.path()).next());
        let pressure = proc.join("pressure/memory");
        Self {
            pressure: std::fs::read(&pressure).is_ok(),
            pressure_trigger: OpenOptions::new()
                .read(true)
                .write(true)
                .open(&pressure)
                .and_then(|mut file| file.write_all(TRIGGER))
                .is_ok(),
            children: thread.is_some_and(|thread| thread.join("children").exists()),
            smaps_rollup: own_process.join("smaps_rollup").exists(),
            nvidia: proc.join("driver/nvidia/version").exists() || root.join("dev/nvidiactl").exists(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detect_finds_existing_interfaces() {
        let root = tempfile::tempdir().expect("folder");
        let none = Features {
            pressure: false,
            pressure_trigger: false,
            children: false,
            smaps_rollup: false,
            nvidia: false,
        };
        assert_eq!(Features::detect(root.path()), none);
        for file in [
            "proc/pressure/memory",
            "proc/self/task/7/children",
            "proc/self/smaps_rollup",
            "proc/driver/nvidia/version",
        ] {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("folder");
            std::fs::write(path, "").expect("writes");
        }
        let all = Features {
            pressure: true,
            pressure_trigger: true,
            children: true,
            smaps_rollup: true,
            nvidia: true,
        };
        assert_eq!(Features::detect(root.path()), all);
        let armed = std::fs::read(root.path().join("proc/pressure/memory")).expect("reads");
        assert_eq!(armed, TRIGGER);
    }
}
