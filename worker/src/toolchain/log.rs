//! Infers from a compiler's messages how a build ended.

use opt_shared::kernel_files::LeftOut;

/// Names that gcc and clang give to signals that come from outside. Signals of a crashing compiler, such as SIGSEGV,
/// are not in the list: the source causes them, and they happen every time.
const EXTERNAL_SIGNALS: [&str; 6] =
    ["Killed", "Terminated", "Hangup", "Interrupt", "Bus error", "File size limit exceeded"];

/// Returns true if the compiler's driver reports that one of its programs was killed by a signal from outside. The
/// driver's own lines start with its name. Lines that a source can make the compiler print start with a location, which
/// includes a line number. (Only the assembler's `.print` can print arbitrary text. A source gains nothing by it: the
/// build is repeated and ends as an INFRA_ERROR.)
pub(crate) fn part_was_killed(log: &str) -> bool {
    log.lines().any(|line| {
        let Some((driver, rest)) = line.split_once(": ") else { return false };
        !driver.contains([':', ' '])
            && EXTERNAL_SIGNALS.iter().any(|signal| {
                rest.starts_with(&format!("fatal error: {signal} signal terminated program "))
                    || (rest.starts_with("fatal error: ") && rest.ends_with(&format!(" [{signal}]")))
                    || rest.starts_with(&format!("error: unable to execute command: {signal}"))
            })
    })
}

/// The C library's messages for resources that a machine may lack temporarily.
const RESOURCES: [&str; 7] = [
    "No space left on device",
    "Disk quota exceeded",
    "Resource temporarily unavailable",
    "Too many open files",
    "Too many open files in system",
    "Input/output error",
    "Read-only file system",
];

/// Returns the resource that the compiler reports as missing at the end of one of its own lines, which a source cannot
/// forge.
pub(crate) fn lacking_resource(log: &str) -> Option<&'static str> {
    let complains = |line: &str| {
        let is_from_driver = line.split_once(": ").is_some_and(|(driver, _)| !driver.contains([':', ' ']));
        is_from_driver
            || ["fatal error: ", "Fatal error: ", "final link failed: "].iter().any(|it| line.contains(it))
    };
    let resource = |line: &str| {
        let line = line.trim_end_matches(['\'', '\u{2019}', '.', ')']);
        RESOURCES.into_iter().find(|resource| line.ends_with(resource))
    };
    log.lines().filter(|line| complains(line)).find_map(resource)
}

/// Returns true if a compiler reports in one of its own lines that it ran out of memory. Samples of the compiler's
/// memory do not show this, because the kernel refused the allocation.
pub(crate) fn ran_out_of_memory(log: &str) -> bool {
    log.lines().any(|line| {
        let Some((driver, rest)) = line.split_once(": ") else { return false };
        let llvm = driver == "LLVM ERROR" || driver == "fatal error";
        // gcc does not name the program that ran out of memory.
        if driver == "virtual memory exhausted" {
            return true;
        }
        (llvm || !driver.contains([':', ' ']))
            && ["out of memory", "virtual memory exhausted", "error in backend: out of memory"]
                .iter()
                .any(|words| rest.starts_with(words))
    })
}

/// Returns the header that the compiler did not find, with advice; `None` if it reports something else.
pub(crate) fn missing_header(log: &str, left_out: &[LeftOut]) -> Option<String> {
    let name = log.lines().find_map(|line| {
        let (_, complaint) = line.split_once("fatal error: ")?;
        // First gcc's message, then clang's.
        let gcc = complaint
            .strip_suffix(": No such file or directory")
            .or_else(|| complaint.strip_suffix(": Permission denied"));
        gcc.or_else(|| complaint.strip_prefix('\'')?.strip_suffix("' file not found"))
    })?;
    let why = match left_out.iter().find(|it| it.name == name) {
        Some(left_out) => left_out.why.to_string(),
        None => "a build sees its sources, and headers that they include from their own folders".to_owned(),
    };
    Some(format!("it did not find `{name}` ({why}; name the folder of other headers in [build] include)"))
}

#[cfg(test)]
mod tests {
    use opt_shared::kernel_files::LeftOutReason;

    use super::*;

    #[test]
    fn kills_are_read_from_the_drivers_own_lines_only() {
        for (log, killed) in [
            ("cc: fatal error: Killed signal terminated program cc1\ncompilation terminated.", true),
            ("x86_64-linux-gnu-gcc-13: fatal error: Killed signal terminated program as", true),
            ("collect2: fatal error: ld terminated with signal 9 [Killed]", true),
            ("clang: error: unable to execute command: Killed", true),
            ("cc: fatal error: Terminated signal terminated program cc1", true),
            ("collect2: fatal error: ld terminated with signal 15 [Terminated]", true),
            ("k.c:1:2: error: #error cc: fatal error: Killed signal terminated program cc1", false),
            ("cc:1:2: fatal error: Killed signal terminated program cc1: No such file", false),
            ("    1 | #error cc: fatal error: Killed signal terminated program cc1", false),
            ("cc: fatal error: Segmentation fault signal terminated program cc1", false),
            ("", false),
        ] {
            assert_eq!(part_was_killed(log), killed, "{log}");
        }
    }

    #[test]
    fn missing_machine_resources_are_recognised() {
        for (log, expected) in [
            (
                "k.c:9:1: fatal error: error writing to /s/cc.s: No space left on device\ncompilation terminated.",
                Some("No space left on device"),
            ),
            (
                "/s/cc.s: Fatal error: can't write 34 bytes to section .text of k.o: 'No space left on device'",
                Some("No space left on device"),
            ),
            (
                "/usr/bin/ld: final link failed: No space left on device\ncollect2: error: ld returned 1 exit status",
                Some("No space left on device"),
            ),
            (
                "cc: fatal error: cannot execute 'cc1': vfork: Resource temporarily unavailable",
                Some("Resource temporarily unavailable"),
            ),
            ("cc: error: k.c: Too many open files", Some("Too many open files")),
            ("k.c:1:2: error: #error No space left on device", None),
            ("k.c:1:10: fatal error: No space left on device: No such file or directory", None),
            ("k.c:1:2: error: expected `;`", None),
        ] {
            assert_eq!(lacking_resource(log), expected, "{log}");
        }
    }

    #[test]
    fn refused_memory_is_read_from_the_compilers_own_lines_only() {
        for (log, refused) in [
            ("\ncc1: out of memory allocating 536870912 bytes after a total of 63614976 bytes", true),
            ("virtual memory exhausted: Cannot allocate memory", true),
            ("cc1plus: virtual memory exhausted: Cannot allocate memory", true),
            ("LLVM ERROR: out of memory\nAllocation failed", true),
            ("k.c:1:2: error: #error cc1: out of memory allocating 1 bytes", false),
            ("k.c:1:2: error: out of memory", false),
            ("", false),
        ] {
            assert_eq!(ran_out_of_memory(log), refused, "{log}");
        }
    }

    #[test]
    fn missing_header_is_named_with_advice() {
        let left_out = [LeftOut { name: "../x.h".to_owned(), why: LeftOutReason::Outside }];
        for (log, expected) in [
            (
                "k.c:1:10: fatal error: x.h: No such file or directory\n 1 | #include",
                Some("`x.h` (a build sees"),
            ),
            ("k.c:1:10: fatal error: ../x.h: No such file or directory", Some("`../x.h` (it is outside")),
            ("k.c:1:10: fatal error: /a/x.h: Permission denied", Some("`/a/x.h` (a build sees")),
            ("k.cpp:1:10: fatal error: 'x.h' file not found", Some("`x.h` (a build sees")),
            ("k.c:1:2: error: expected `;`", None),
            ("cc: fatal error: no input files", None),
            ("", None),
        ] {
            let found = missing_header(log, &left_out);
            assert_eq!(found.is_some(), expected.is_some(), "{log}: {found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{log}");
        }
    }
}
