//! Tests that PTX features that the documentation lists as refused are refused by name and line.

use crate::kit::{line_of, load_error};

/// A module with declarations, and a kernel with a body.
fn module(declarations: &str, body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n{declarations}\n.visible .entry k()\n{{\n\
         .reg .b64 %rd<4>;\n.reg .b32 %r<4>;\n{body}\nret;\n}}\n"
    )
}

const FUNCTION: &str = ".func f()\n{\nret;\n}";

#[test]
fn refused_features_are_named_with_their_line() {
    let recursive = ".func g();\n.func f()\n{\ncall g, ();\nret;\n}\n.func g()\n{\ncall f, ();\nret;\n}";
    let malloc = ".extern .func (.param .b64 out) malloc(.param .b64 bytes);";
    let allocate = "{\n.param .b64 p;\n.param .b64 q;\nst.param.b64 [p], 8;\ncall.uni (q), malloc, (p);\n}";
    // Declarations, the body, a word of the line that is named, and a part of the message.
    for (declarations, body, word, what) in [
        (FUNCTION, "mov.u64 %rd1, f;", "mov.u64", "addresses of functions"),
        (".visible .global .u64 table = f;", "", ".global", "the address of `f` in an initialiser"),
        ("", "p0: .callprototype _ ();\ncall %rd1, (), p0;", "call %rd1", "indirect calls"),
        (recursive, "call f, ();", "call f", "recursion"),
        (malloc, allocate, "malloc, (p)", "calls of `malloc`"),
        (".func f()\n{\nret;\n}\n.alias g, f;", "", ".alias", "`.alias`"),
        (".global .attribute(.managed) .u32 x;", "", ".managed", "variables or parameters with `.attribute`"),
        (".extern .global .u32 x;", "", ".extern", "the variable `x`, which is defined elsewhere"),
        ("", "alloca.u64 %rd1, 16;", "alloca", "`alloca.u64`"),
        ("", "discard.global.L2 [%rd1], 128;", "discard", "`discard.global.L2`"),
        ("", "mov.u32 %r1, %clusterid.x;", "%clusterid", "the register `%clusterid.x`"),
        ("", ".reg .b128 %x;", ".b128", "registers of type `.b128`"),
    ] {
        let text = module(declarations, body);
        let error = load_error(&text);
        assert!(error.to_string().contains(what), "{what}: {error}\n{text}");
        assert_eq!(error.line(), Some(line_of(&text, word)), "{error}\n{text}");
        assert_eq!(error.code(), 801, "{error}");
    }
}
