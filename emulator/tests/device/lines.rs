//! Tests of the source lines that faults name.

use opt_emulator::Fault;

use crate::kit::{Bench, REGISTERS, kernel};

const FILES: &str = ".file 1 \"/build/kernel.cu\"\n.file 2 \"/toolkit/include/mma.hpp\"\n\
                     .file 3 \"/build/parts/own.cuh\"\n.file 4 \"/buildings/other.cuh\"\n";

/// The file and line of a fault in a kernel that executes these directives and then reads address 8. `function` is
/// called if the body says so.
fn fault_of(function: &str, body: &str) -> Fault {
    let text = kernel(0, REGISTERS, body).replace(".visible", &format!("{function}\n.visible")) + FILES;
    Bench::new(&text).run(1, 1, &[]).expect_err("a fault")
}

fn line(fault: &Fault) -> (String, u32) {
    let source = fault.site.as_ref().and_then(|site| site.source.as_ref());
    let source = source.unwrap_or_else(|| panic!("{fault}"));
    (source.name().to_owned(), source.line)
}

const READ: &str = "mov.u64 %rd1, 8; ld.global.b32 %r1, [%rd1];";

#[test]
fn faults_in_inlined_functions_name_the_authors_lines() {
    for (what, directives, wanted) in [
        ("no inlining", ".loc 1 7 3", ("kernel.cu", 7)),
        ("a function of the same file", ".loc 1 3 1, inlined_at 1 9 5", ("kernel.cu", 3)),
        ("a function of a header beside it", ".loc 3 4 1, inlined_at 1 9 5", ("own.cuh", 4)),
        (
            "a function of the toolkit",
            ".loc 2 90 1, function_name $L__info, inlined_at 1 9 5",
            ("kernel.cu", 9),
        ),
        ("a folder whose name begins alike", ".loc 4 90 1, inlined_at 1 9 5", ("kernel.cu", 9)),
        (
            "a function of the toolkit that another one calls",
            ".loc 1 9 5\n.loc 2 90 1, inlined_at 1 9 5\n.loc 2 20 2, inlined_at 2 90 1",
            ("kernel.cu", 9),
        ),
        (
            "a function of the toolkit that an inlined function calls",
            ".loc 3 4 1, inlined_at 1 9 5\n.loc 2 90 1, function_name $L__info+7, inlined_at 3 4 1",
            ("own.cuh", 4),
        ),
        (
            "a function of the author that one of the toolkit calls, which no directive names",
            ".loc 1 7 3\n.loc 1 4 1, inlined_at 2 90 1",
            ("kernel.cu", 4),
        ),
        ("a position that no directive names", ".loc 2 20 2, inlined_at 2 90 1", ("mma.hpp", 20)),
        (
            "a file without a name",
            ".loc 2 20 2, inlined_at 1 9 5\n.loc 9 1 1, inlined_at 1 9 5",
            ("kernel.cu", 9),
        ),
    ] {
        let fault = fault_of("", &format!("{directives}\n{READ}"));
        let (file, number) = wanted;
        assert_eq!(line(&fault), (file.to_owned(), number), "{what}: {fault}");
    }
}

#[test]
fn headers_of_the_author_are_those_in_or_below_the_folder_of_the_kernel() {
    for (kernel_path, header, is_own) in [
        ("a.cu", "include/own.cuh", true),
        ("a.cu", "/toolkit/mma.hpp", false),
        ("/a.cu", "/own.cuh", true),
        ("/a.cu", "/toolkit/mma.hpp", false),
        ("/build/a.cu", "/build/own.cuh", true),
        ("/build/a.cu", "own.cuh", false),
    ] {
        let files = format!(".file 1 \"{kernel_path}\"\n.file 2 \"{header}\"\n");
        let body = format!(".loc 2 4 1, inlined_at 1 9 5\n{READ}");
        let fault = Bench::new(&(kernel(0, REGISTERS, &body) + &files)).run(1, 1, &[]).expect_err("a fault");
        assert_eq!(line(&fault).1, if is_own { 4 } else { 9 }, "{kernel_path} and {header}: {fault}");
    }
}

#[test]
fn faults_in_called_functions_name_the_authors_lines() {
    for (file, wanted) in [(2, ("kernel.cu", 9)), (3, ("own.cuh", 4))] {
        let function = format!(".func f () {{ {REGISTERS}\n.loc {file} 4 1\n{READ}\nret; }}");
        let fault = fault_of(&function, ".loc 1 9 5\ncall f, ();");
        assert_eq!(line(&fault), (wanted.0.to_owned(), wanted.1), "{fault}");
    }
}
