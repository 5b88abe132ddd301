//! Infers from a compiler's messages how a build ended.

use std::path::Path;

use opt_shared::kernel_files::LeftOut;

/// The names that gcc, clang and nvcc give to the signals after which a build is repeated. These are signals from
/// outside, and the signals that a failing disk or the limit on file sizes causes. Signals of a crashing compiler, such
/// as SIGSEGV, are not in the list, because the source causes them every time.
const EXTERNAL_SIGNALS: [&str; 8] = [
    "Killed",
    "Kill signal",
    "Terminated",
    "Termination signal",
    "Hangup",
    "Interrupt",
    "Bus error",
    "File size limit exceeded",
];

/// Splits a line that a program of the toolchain prints about itself into the part before the colon (`cc`, `nvcc
/// fatal`) and the complaint. Returns `None` for all other lines. Diagnostics of a source, for example, begin with a
/// path and a line number.
fn own_line(line: &str) -> Option<(&str, &str)> {
    let (program, complaint) = line.split_once(": ")?;
    let program = program.trim_end();
    let name = match program.split_once(' ') {
        Some((name, "fatal" | "error" | "ERROR")) => name,
        Some(_) => return None,
        None => program,
    };
    (!name.contains([':', '('])).then_some((program, complaint))
}

/// Returns the complaint of a diagnostic of this severity that is about a place in a source: `k.c:9:1: fatal error: …`,
/// `k.s:9: Error: …`, or `k.cu(9): error: …`. The name of the source may contain anything, because `#line` can set it.
fn located<'a>(line: &'a str, severity: &str) -> Option<&'a str> {
    line.match_indices(severity).find_map(|(at, _)| {
        let place = line[..at].strip_suffix(": ")?;
        let place = place.strip_suffix(')').unwrap_or(place);
        let number = place.rsplit([':', '(']).next()?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        (is_number && number.len() < place.len()).then(|| &line[at + severity.len()..])
    })
}

/// Messages of a linker that say that the sources do not fit together, or do not fit into a library.
const LINK_ERRORS: [&str; 5] = [
    "undefined reference to ",
    "multiple definition of ",
    "relocation truncated to fit",
    "; recompile with -fPIC",
    "can not be used when making a shared object",
];

/// Returns the last lines of a log, in which programs of the toolchain report their own failures. A source can make a
/// compiler print any line, but none after the report of the program that failed. When a linker reports something, the
/// compiler must have succeeded, so lines before the linker's do not count.
fn last_own_lines(log: &str) -> impl Iterator<Item = &str> {
    let is_of_the_linker = |program: &str| {
        let name = program.rsplit('/').next().unwrap_or(program);
        ["ld", "collect2", "lld", "gold", "mold"]
            .iter()
            .any(|linker| name.starts_with(linker) || name.ends_with(linker))
    };
    let mut has_linker = false;
    log.lines().rev().filter(|line| !is_epilogue(line)).map_while(move |line| {
        let program = own_program(line)?;
        has_linker |= is_of_the_linker(program);
        (!has_linker || is_of_the_linker(program)).then_some(line)
    })
}

/// Returns true for a line that may follow the report of a failure. Such a line is an excerpt of the source (`12 | }`),
/// or the line below an excerpt that marks the place (`| ^`).
fn is_epilogue(line: &str) -> bool {
    let line = line.trim();
    let is_excerpt = line
        .split_once('|')
        .is_some_and(|(number, _)| number.trim().bytes().all(|byte| byte.is_ascii_digit()));
    is_excerpt
        || line.is_empty()
        || line == "compilation terminated."
        || line.starts_with("Please submit a full bug report")
        || line.starts_with("See <")
}

/// Returns the program that reports its own failure in this line, or `None` for all other lines.
fn own_program(line: &str) -> Option<&str> {
    if let Some((program, _)) = own_line(line) {
        return Some(program);
    }
    let is_of_a_compiler = located(line, "fatal error: ").is_some()
        || line.split_once(": ").is_some_and(|(_, rest)| rest.starts_with("Fatal error: "))
        || line.starts_with("Cannot create temporary file in ");
    is_of_a_compiler.then_some("cc")
}

/// Returns true if the compiler found a mistake in the source. If so, the build fails regardless of other messages.
///
/// A source can make a compiler print any line (`#pragma message "\ncc: …"`). So lines about the machine count only if
/// the compiler found no such mistake. A correct source would gain nothing by faking lines about the machine.
pub(crate) fn blames_the_source(log: &str) -> bool {
    log.lines().any(|line| {
        ["error: ", "Error: "].iter().any(|severity| located(line, severity).is_some())
            || LINK_ERRORS.iter().any(|message| line.contains(message))
    })
}

/// Returns a digest of the output that is the same for each build of the same source. Paths in the scratch folder are
/// left out of it, because they may differ.
pub(crate) fn digest(log: &str, scratch: &Path) -> String {
    let scratch = scratch.to_string_lossy();
    let ends_path = |c: char| c.is_whitespace() || "'\"`:;,()\u{2018}\u{2019}".contains(c);
    let mut parts = log.split(&*scratch);
    let mut hasher = blake3::Hasher::new();
    hasher.update(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        hasher.update(&[0]);
        hasher.update(part.trim_start_matches(|c| !ends_path(c)).as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Returns true if the compiler's driver reports that one of its programs was killed by one of `EXTERNAL_SIGNALS`.
pub(crate) fn part_was_killed(log: &str) -> bool {
    last_own_lines(log).filter_map(own_line).any(|(_, complaint)| {
        EXTERNAL_SIGNALS.iter().any(|signal| {
            complaint.starts_with(&format!("fatal error: {signal} signal terminated program "))
                || (complaint.starts_with("fatal error: ") && complaint.ends_with(&format!(" [{signal}]")))
                || complaint.starts_with(&format!("error: unable to execute command: {signal}"))
                || (complaint.contains("' died due to signal ")
                    && complaint.trim_end().ends_with(&format!("({signal})")))
        })
    })
}

/// The words with which gcc reports that it could not start one of its programs.
const CANNOT_EXECUTE: &str = "cannot execute ";

/// Returns true if the compiler's driver reports that one of its programs does not exist or cannot be executed.
pub(crate) fn part_is_missing(log: &str) -> bool {
    last_own_lines(log).filter_map(own_line).any(|(_, complaint)| {
        complaint.strip_prefix("fatal error: ").is_some_and(|it| it.starts_with(CANNOT_EXECUTE))
            || complaint.starts_with("error: unable to execute command: Executable \"")
    })
}

/// Returns true if the compiler's driver reports that one of its programs exceeded the limit on the size of a file.
pub(crate) fn part_wrote_too_much(log: &str) -> bool {
    log.lines().filter_map(own_line).any(|(_, complaint)| {
        complaint.contains("File size limit exceeded")
            || complaint.ends_with("final link failed: File too large")
    })
}

/// The C library's message for a full disk.
pub(crate) const NO_SPACE: &str = "No space left on device";

/// The C library's message when the machine cannot start another process or thread.
pub(crate) const NO_TASKS: &str = "Resource temporarily unavailable";

/// The C library's messages for resources that a machine may lack temporarily.
const RESOURCES: [&str; 7] = [
    NO_SPACE,
    "Disk quota exceeded",
    NO_TASKS,
    "Too many open files",
    "Too many open files in system",
    "Input/output error",
    "Read-only file system",
];

/// Returns the resource that the compiler reports as missing. The name of the resource must be at the end of a line in
/// which a program reports its own failure. Such a line is one of these:
/// - a line that begins with the program's name (`cc: …`);
/// - a fatal error of gcc, located where gcc stopped reading (`k.c:9:1: fatal error: error writing to …`);
/// - a fatal error of the assembler (`/tmp/k.s: Fatal error: can't write …`);
/// - gcc's message about a temporary file.
pub(crate) fn lacking_resource(log: &str) -> Option<&'static str> {
    let resource = |line: &str| {
        let line = line.trim_end_matches(['\'', '\u{2019}', '.', ')']);
        RESOURCES.into_iter().find(|resource| line.ends_with(resource))
    };
    last_own_lines(log).find_map(resource)
}

/// Returns true if a compiler reports, in a line about itself, that it ran out of memory. The log is needed to find
/// this out, because samples of the compiler's memory do not show it if Linux refused the allocation.
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

/// Returns the header that the compiler did not find, with advice. Returns `None` if the compiler reports something
/// else.
pub(crate) fn missing_header(log: &str, left_out: &[LeftOut]) -> Option<String> {
    let name = log.lines().find_map(|line| {
        let (_, complaint) = line.split_once("fatal error: ")?;
        if complaint.starts_with(CANNOT_EXECUTE) {
            return None;
        }
        // The first alternatives are gcc's messages, and the next one is clang's.
        let gcc = complaint
            .strip_suffix(": No such file or directory")
            .or_else(|| complaint.strip_suffix(": Permission denied"));
        gcc.or_else(|| complaint.strip_prefix('\'')?.strip_suffix("' file not found"))
    })?;
    let why = match left_out.iter().find(|it| it.name == name) {
        Some(left_out) => left_out.why.to_string(),
        None => "a build sees its sources, and headers that they include from their own folders".to_owned(),
    };
    Some(format!(
        "it did not find the header `{name}` ({why}; name the folder of other headers in [build] include)"
    ))
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
            ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", true),
            ("nvcc error   : 'cudafe++' died due to signal 15 (Termination signal)", true),
            ("nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)", false),
            ("k.cu(1): error: #error nvcc error   : 'cicc' died due to signal 9 (Kill signal)", false),
            ("    1 | #error cc: fatal error: Killed signal terminated program cc1", false),
            ("cc: fatal error: Segmentation fault signal terminated program cc1", false),
            // With `.print` or `#pragma message`, a source can print such a line, but not after the linker's report.
            (
                "cc: fatal error: Killed signal terminated program cc1\n/usr/bin/ld: k.o: relocation R_X86_64_32S against `.data'\n/usr/bin/ld: final link failed: bad value\ncollect2: error: ld returned 1 exit status",
                false,
            ),
            ("cc: fatal error: Killed signal terminated program cc1\nk.c:3:1: note: in this function", false),
            (
                "k.c:3:1: warning: unused\nclang: error: unable to execute command: Killed\nclang: error: linker command failed due to signal (use -v to see invocation)",
                true,
            ),
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
                "k.c:56:1: fatal error: error writing to /s/cc.s: No space left on device\n   56 | }\n      | ^\ncompilation terminated.",
                Some("No space left on device"),
            ),
            (
                "/s/cc.s: Assembler messages:\n/s/cc.s: Fatal error: can't write 30 bytes to section .text of /s/k.o: 'No space left on device'\n/s/cc.s: Fatal error: /s/k.o: No such file or directory",
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
            ("Cannot create temporary file in /s/: No space left on device", Some("No space left on device")),
            (
                "error: unable to open output file '/s/k.o': 'No space left on device'",
                Some("No space left on device"),
            ),
            (
                "LLVM ERROR: IO failure on output stream: No space left on device",
                Some("No space left on device"),
            ),
            (
                "nvcc fatal   : Could not open output file '/s/k.ptx': Read-only file system",
                Some("Read-only file system"),
            ),
            ("/my runs/cc.s: Fatal error: can't close k.o: Input/output error", Some("Input/output error")),
            ("k.c:1:2: error: #error No space left on device", None),
            ("k.c:1:2: error: #error Fatal error: No space left on device", None),
            ("k.c:1:2: error: #error x: fatal error: No space left on device", None),
            ("k.c:1:9: note: '#pragma message: final link failed: No space left on device'", None),
            ("    1 | #error cc: fatal error: No space left on device", None),
            ("k.c:1:10: fatal error: No space left on device: No such file or directory", None),
            ("k.c:1:2: error: expected `;`", None),
        ] {
            assert_eq!(lacking_resource(log), expected, "{log}");
        }
    }

    #[test]
    fn mistakes_in_a_source_are_recognised() {
        for (log, blames) in [
            ("k.c:1:2: error: #error x", true),
            ("k.c:7: error: unterminated", true),
            ("k.s: Assembler messages:\nk.s:12: Error: no such instruction: `oops'", true),
            ("k.cu(12): error: expected a \";\"", true),
            // The source itself has chosen the name of this file: `#line 1 "a\ncc: fatal error: Killed signal …"`.
            ("a\ncc: fatal error: Killed signal terminated program cc1:1:2: error: #error z", true),
            ("/usr/bin/ld: k.o: in function `f':\nk.c:(.text+0x5): undefined reference to `g'", true),
            (
                "/usr/bin/ld: a.o:(.bss+0x0): multiple definition of `x'; b.o:(.bss+0x0): first defined here",
                true,
            ),
            ("k.c:9:1: fatal error: error writing to /s/cc.s: No space left on device", false),
            (
                "k.c:1:1: warning: x [-Wmisleading]\ncc: fatal error: Killed signal terminated program cc1",
                false,
            ),
            ("cc: error: k.c: Too many open files", false),
            ("collect2: error: ld returned 1 exit status", false),
            ("/s/cc.s: Fatal error: can't close k.o: Input/output error", false),
            ("error: unable to open output file '/s/k.o': 'No space left on device'", false),
            ("", false),
        ] {
            assert_eq!(blames_the_source(log), blames, "{log}");
        }
    }

    #[test]
    fn digest_of_an_output_does_not_depend_on_temporary_names() {
        let output = |folder: &str, file: &str, words: &str| {
            let log = format!("{folder}/k.c:1:2: warning: x\n/usr/bin/ld: {folder}/cc{file}.o: {words}\n");
            digest(&log, Path::new(folder))
        };
        let first = output("/runs/a/scratch/build-3", "Ab12Cd", "unknown form of relocation");
        assert_eq!(first, output("/runs/a/scratch/build-14", "Zz9876", "unknown form of relocation"));
        assert_ne!(first, output("/runs/a/scratch/build-3", "Ab12Cd", "section is missing"));
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
                Some("the header `x.h` (a build sees"),
            ),
            ("k.c:1:10: fatal error: ../x.h: No such file or directory", Some("`../x.h` (it is outside")),
            ("k.c:1:10: fatal error: /a/x.h: Permission denied", Some("`/a/x.h` (a build sees")),
            ("k.cpp:1:10: fatal error: 'x.h' file not found", Some("`x.h` (a build sees")),
            ("k.c:1:2: error: expected `;`", None),
            ("cc: fatal error: no input files", None),
            ("cc: fatal error: cannot execute 'cc1': execvp: No such file or directory", None),
            ("", None),
        ] {
            let found = missing_header(log, &left_out);
            assert_eq!(found.is_some(), expected.is_some(), "{log}: {found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{log}");
        }
    }

    #[test]
    fn missing_and_limited_parts_are_read_from_the_drivers_own_lines() {
        for (log, is_missing, wrote_too_much) in [
            ("cc: fatal error: cannot execute 'cc1': execvp: No such file or directory", true, false),
            ("cc: fatal error: cannot execute 'as': posix_spawnp: Permission denied", true, false),
            ("clang: error: unable to execute command: Executable \"ld\" doesn't exist!", true, false),
            ("k.c:1:2: fatal error: cannot execute 'cc1': execvp: No such file or directory", false, false),
            (
                "cc: internal compiler error: File size limit exceeded signal terminated program as",
                false,
                true,
            ),
            ("/usr/bin/ld: final link failed: File too large", false, true),
            ("k.c:1:2: error: File size limit exceeded", false, false),
            ("cc: fatal error: no input files", false, false),
        ] {
            assert_eq!(
                (part_is_missing(log), part_wrote_too_much(log)),
                (is_missing, wrote_too_much),
                "{log}"
            );
        }
    }
}
