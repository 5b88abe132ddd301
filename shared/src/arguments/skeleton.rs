//! A first C candidate: every argument under its own name, the argument table as its comment.
//!
//! Names and values come from captures, so they are made safe here: identifiers that no C or C++ compiler refuses, and
//! comments that nothing can end early.

use std::collections::BTreeSet;

use super::Signature;
use super::describe::{Observed, PlainKind, Seen, table};

/// Words that cannot name a variable: keywords of C and C++, what the header and the function use, and macros that
/// common compilers predefine.
const TAKEN: &[&str] = &[
    "NULL",
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "args",
    "asm",
    "auto",
    "bitand",
    "bitor",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "class",
    "co_await",
    "co_return",
    "co_yield",
    "compl",
    "concept",
    "const",
    "const_cast",
    "consteval",
    "constexpr",
    "constinit",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dynamic_cast",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "linux",
    "long",
    "mutable",
    "n",
    "namespace",
    "new",
    "noexcept",
    "not",
    "not_eq",
    "nullptr",
    "operator",
    "or",
    "or_eq",
    "private",
    "protected",
    "public",
    "register",
    "reinterpret_cast",
    "requires",
    "restrict",
    "ret",
    "return",
    "self",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "static_cast",
    "struct",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "true",
    "try",
    "typedef",
    "typeid",
    "typename",
    "typeof",
    "typeof_unqual",
    "union",
    "unix",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "while",
    "xor",
    "xor_eq",
];

/// A candidate in C that compiles, takes its arguments apart and does nothing yet (`OPT_UNSUPPORTED`).
pub fn c_skeleton(signature: &Signature, observed: &Observed, symbol: &str) -> String {
    let mut taken = BTreeSet::new();
    let function = function_name(symbol, &mut taken);
    let mut lines = vec!["/* Arguments:".to_owned(), " *".to_owned()];
    lines.extend(table(signature, observed).lines().map(|line| format!(" * {}", comment(line))));
    lines.extend([
        " */".to_owned(),
        "#include \"opt_candidate.h\"".to_owned(),
        String::new(),
        format!("OPT_EXPORT int {function}(void *self, const OptAny *args, int32_t n, OptAny *ret)"),
        "{".to_owned(),
        "    (void)self;".to_owned(),
        "    (void)ret;".to_owned(),
    ]);
    let certain = observed.outputs.iter().take_while(|seen| seen.entries == observed.entries).count();
    let least = observed.arguments.len() + certain;
    lines.push(format!("    if (n < {least}) return -1;"));
    let mut variables = Vec::new();
    for (index, seen) in observed.arguments.iter().enumerate() {
        unpack(index, seen, &mut taken, &mut variables, &mut lines);
    }
    for (index, seen) in (observed.arguments.len()..).zip(&observed.outputs) {
        let name = identifier(&seen.path, &mut taken);
        let value = format!("args[{index}].value.v_tensor");
        let value = if index < least { value } else { format!("n > {index} ? {value} : 0") };
        lines.push(format!("    OptTensor *{name} = {value};"));
        variables.push(name);
    }
    lines.push(String::new());
    if variables.is_empty() {
        variables.push("args".to_owned());
    }
    lines.push("    /* Compute here, then return OPT_OK; these only keep the compiler quiet. */".to_owned());
    lines.extend(variables.iter().map(|name| format!("    (void){name};")));
    lines.extend(["    return OPT_UNSUPPORTED;".to_owned(), "}".to_owned(), String::new()]);
    lines.join("\n")
}

/// One variable of the type that was seen, beside it `has_…` where some entries have None; the OptAny itself where
/// entries disagree about the type.
fn unpack(
    index: usize,
    seen: &Seen,
    taken: &mut BTreeSet<String>,
    variables: &mut Vec<String>,
    lines: &mut Vec<String>,
) {
    let mut kinds: BTreeSet<CType> = seen.plain.iter().filter_map(|kind| CType::of(*kind)).collect();
    if !seen.dtypes.is_empty() {
        kinds.insert(CType::Tensor);
    }
    let optional = seen.plain.contains(&PlainKind::None);
    let mut kinds = kinds.into_iter();
    let Some(kind) = kinds.next() else {
        lines.push(format!("    /* args[{index}], {}, is None in every entry. */", comment(&seen.path)));
        return;
    };
    let name = identifier(&seen.path, taken);
    if kinds.next().is_some() {
        lines
            .push(format!("    OptAny {name} = args[{index}]; /* its type_index differs between entries */"));
    } else {
        let (declaration, member) = kind.declaration();
        let value = format!("args[{index}].value.{member}");
        match kind {
            CType::Tensor | CType::Str if optional => lines.push(format!(
                "    {declaration}{name} = args[{index}].type_index == OPT_NONE ? 0 : {value};"
            )),
            CType::Bool => lines.push(format!("    {declaration}{name} = {value} != 0;")),
            _ => lines.push(format!("    {declaration}{name} = {value};")),
        }
        if optional && !matches!(kind, CType::Tensor | CType::Str) {
            let flag = identifier(&format!("has_{}", seen.path), taken);
            lines.push(format!("    int {flag} = args[{index}].type_index != OPT_NONE;"));
            variables.push(flag);
        }
    }
    variables.push(name);
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CType {
    Tensor,
    Int,
    Float,
    Bool,
    Str,
    DataType,
    Device,
}

impl CType {
    fn of(kind: PlainKind) -> Option<Self> {
        match kind {
            PlainKind::None => None,
            PlainKind::Int => Some(Self::Int),
            PlainKind::Float => Some(Self::Float),
            PlainKind::Bool => Some(Self::Bool),
            PlainKind::Str => Some(Self::Str),
            PlainKind::DType => Some(Self::DataType),
            PlainKind::Device => Some(Self::Device),
            PlainKind::Ints | PlainKind::Floats | PlainKind::Bools => Some(Self::Tensor),
        }
    }

    /// What stands before the name, and the payload's member.
    fn declaration(self) -> (&'static str, &'static str) {
        match self {
            Self::Tensor => ("const OptTensor *", "v_tensor"),
            Self::Int => ("int64_t ", "v_int64"),
            Self::Float => ("double ", "v_float64"),
            Self::Bool => ("int ", "v_int64"),
            Self::Str => ("const char *", "v_c_str"),
            Self::DataType => ("OptDataType ", "v_dtype"),
            Self::Device => ("OptDevice ", "v_device"),
        }
    }
}

/// The symbol as it is wherever C can declare it: it is what the loader will look for.
fn function_name(symbol: &str, taken: &mut BTreeSet<String>) -> String {
    let letters = symbol.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let starts = symbol.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if letters && starts && !TAKEN.contains(&symbol) {
        taken.insert(symbol.to_owned());
        return symbol.to_owned();
    }
    identifier(symbol, taken)
}

/// A name of its own that every C and C++ compiler takes: `tensors[1]` is `tensors_1`, `float` is `float_`.
fn identifier(text: &str, taken: &mut BTreeSet<String>) -> String {
    let mut name: String = text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    // Two underscores together, or one before a capital letter, belong to the compiler.
    while name.contains("__") {
        name = name.replace("__", "_");
    }
    let name = name.trim_end_matches('_');
    let first = name.strip_prefix('_').unwrap_or(name).chars().next();
    let reserved =
        first.is_none_or(|c| c.is_ascii_digit() || (name.starts_with('_') && c.is_ascii_uppercase()));
    let mut name = if reserved { format!("x{name}") } else { name.to_owned() };
    if TAKEN.contains(&name.as_str()) || name.ends_with("_t") || name.to_lowercase().starts_with("opt") {
        name.push('_');
    }
    let mut unique = name.clone();
    let mut count = 1;
    while !taken.insert(unique.clone()) {
        count += 1;
        unique = format!("{}_{count}", name.trim_end_matches('_'));
    }
    unique
}

/// Text that can stand in a block comment: nothing ends it or opens another, and nothing shows as what it is not.
fn comment(text: &str) -> String {
    let ascii: String = text.chars().map(|c| if (' '..='~').contains(&c) { c } else { '.' }).collect();
    ascii.replace('*', "+").replace("??", "..")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use super::super::fixture::{bound, dict, int, list, observed, tensor, text, tuple, unbound};
    use super::*;
    use crate::arguments::Entry;
    use crate::capture::{DType, Value};

    /// Compiles one file with every warning an error; the messages if it does not.
    fn compile(compiler: &str, standard: &str, file: &str, source: &str) -> Result<(), String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(file);
        fs::write(&path, source).expect("the source is written");
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/include");
        let output = Command::new(compiler)
            .args([
                standard,
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pedantic",
                "-Wshadow",
                "-c",
                "-o",
                "/dev/null",
                "-I",
            ])
            .args([include.as_path(), path.as_path()])
            .output()
            .expect("a compiler");
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    fn compile_as_both(source: &str) {
        for (compiler, standard, file) in [
            ("cc", "-std=c99", "kernel.c"),
            ("c++", "-std=c++11", "kernel.cpp"),
            ("c++", "-std=c++20", "kernel.cpp"),
        ] {
            if let Err(messages) = compile(compiler, standard, file, source) {
                panic!("{compiler} {standard}:\n{messages}\n{source}");
            }
        }
    }

    fn skeleton(entries: &[Entry], symbol: &str) -> String {
        let (signature, observed) = observed(entries);
        c_skeleton(&signature, &observed, symbol)
    }

    #[test]
    fn every_kind_of_argument_is_taken_apart() {
        let t = |storage| tensor(DType::Float32, &[2, 3], storage);
        let entry = |index: Value, bias: Value, value: Value, output: Value| {
            let params = [
                "input",
                "bias",
                "padding_idx",
                "eps",
                "inplace",
                "mode",
                "dtype",
                "device",
                "pad",
                "value",
                "hx",
                "nothing",
            ];
            let mut entry = bound(
                &params,
                [],
                [
                    ("input", t(0)),
                    ("bias", bias),
                    ("padding_idx", index),
                    ("eps", Value::Float(1e-5)),
                    ("inplace", Value::Bool(false)),
                    ("mode", text("reflect")),
                    ("dtype", Value::DType(DType::Float16)),
                    ("device", Value::Device("cpu".into())),
                    ("pad", tuple([int(1), int(2)])),
                    ("value", value),
                    ("hx", tuple([t(2), t(3)])),
                    ("nothing", Value::None),
                ],
            );
            entry.output = Some(output);
            entry
        };
        let source = skeleton(
            &[
                entry(int(1), t(1), int(2), tuple([t(4), t(5)])),
                entry(Value::None, Value::None, Value::Float(0.5), t(4)),
            ],
            "run",
        );
        compile_as_both(&source);
        for line in [
            "OPT_EXPORT int run(void *self, const OptAny *args, int32_t n, OptAny *ret)",
            " * args[ 0]  input        tensor float32 2-D",
            "    if (n < 14) return -1;",
            "    const OptTensor *input = args[0].value.v_tensor;",
            "    const OptTensor *bias = args[1].type_index == OPT_NONE ? 0 : args[1].value.v_tensor;",
            "    int64_t padding_idx = args[2].value.v_int64;",
            "    int has_padding_idx = args[2].type_index != OPT_NONE;",
            "    double eps = args[3].value.v_float64;",
            "    int inplace = args[4].value.v_int64 != 0;",
            "    const char *mode = args[5].value.v_c_str;",
            "    OptDataType dtype = args[6].value.v_dtype;",
            "    OptDevice device = args[7].value.v_device;",
            "    const OptTensor *pad = args[8].value.v_tensor;",
            "    OptAny value = args[9]; /* its type_index differs between entries */",
            "    const OptTensor *hx_0 = args[10].value.v_tensor;",
            "    /* args[12], nothing, is None in every entry. */",
            "    OptTensor *output_0 = args[13].value.v_tensor;",
            "    OptTensor *output_1 = n > 14 ? args[14].value.v_tensor : 0;",
        ] {
            assert!(source.lines().any(|found| found == line), "{line}\n{source}");
        }
    }

    #[test]
    fn names_and_values_from_captures_stay_names_and_comments() {
        let names = [
            "float",
            "class",
            "self",
            "args",
            "n",
            "a-b",
            "a_b",
            "a b",
            "9lives",
            "__dunder__",
            "_Upper",
            "_stacklevel",
            "größe",
            "*/ int evil; /*",
            "int64_t",
            "OptAny",
            "OPT_NONE",
            "OPT_EXPORT",
            "run",
            "has_x",
            "x",
            "",
            "??/",
            "\u{202e}",
            "unix",
        ];
        let kwargs = names.iter().map(|name| (*name, int(1)));
        let entry = unbound([], kwargs.chain([("z", text("*/ #error ??/\n\\"))]));
        let mut optional = entry.clone();
        optional.kwargs.retain(|(name, _)| **name != *"x");
        for symbol in ["run", "int", "evil(); }", "", "__tvm_ffi_run"] {
            compile_as_both(&skeleton(&[entry.clone(), optional.clone()], symbol));
        }
        assert!(skeleton(&[entry], "__tvm_ffi_run").contains("OPT_EXPORT int __tvm_ffi_run(void *self"));
    }

    #[test]
    fn a_call_of_nothing_compiles() {
        compile_as_both(&skeleton(&[unbound([], [])], "run"));
        compile_as_both(&skeleton(&[unbound([list([]), Value::None], [])], "run"));
        let (signature, _) = observed(&[unbound([dict([])], [])].map(|_| unbound([], [])));
        compile_as_both(&c_skeleton(&signature, &Observed::new(), "run"));
    }

    /// The layout of tvm-ffi's TVMFFIAny and of DLPack's DLTensor, written out by hand.
    #[test]
    fn the_header_has_the_layout_of_tvm_ffi_and_dlpack() {
        const FACTS: &[&str] = &[
            "sizeof(OptAny) == 16",
            "offsetof(OptAny, type_index) == 0",
            "offsetof(OptAny, zero_padding) == 4",
            "offsetof(OptAny, value) == 8",
            "sizeof(((OptAny *)0)->value) == 8",
            "sizeof(OptDataType) == 4",
            "offsetof(OptDataType, bits) == 1",
            "offsetof(OptDataType, lanes) == 2",
            "sizeof(OptDevice) == 8",
            "offsetof(OptDevice, device_id) == 4",
            "sizeof(OptTensor) == 48",
            "offsetof(OptTensor, data) == 0",
            "offsetof(OptTensor, device) == 8",
            "offsetof(OptTensor, ndim) == 16",
            "offsetof(OptTensor, dtype) == 20",
            "offsetof(OptTensor, shape) == 24",
            "offsetof(OptTensor, strides) == 32",
            "offsetof(OptTensor, byte_offset) == 40",
            "OPT_NONE == 0 && OPT_INT == 1 && OPT_BOOL == 2 && OPT_FLOAT == 3 && OPT_OPAQUE_PTR == 4",
            "OPT_DATA_TYPE == 5 && OPT_DEVICE == 6 && OPT_TENSOR == 7 && OPT_RAW_STR == 8",
            "OPT_OK == 0 && OPT_UNSUPPORTED == -2",
        ];
        let mut codes: Vec<String> = Vec::new();
        for (name, dtype) in [
            ("INT", DType::Int64),
            ("UINT", DType::UInt8),
            ("FLOAT", DType::Float32),
            ("BFLOAT", DType::BFloat16),
            ("COMPLEX", DType::Complex64),
            ("BOOL", DType::Bool),
            ("FLOAT8_E4M3FN", DType::Float8E4M3Fn),
            ("FLOAT8_E4M3FNUZ", DType::Float8E4M3FnUz),
            ("FLOAT8_E5M2", DType::Float8E5M2),
            ("FLOAT8_E5M2FNUZ", DType::Float8E5M2FnUz),
        ] {
            codes.push(format!("OPT_CODE_{name} == {}", dtype.dlpack_code()));
        }
        for (compiler, standard, file, assert) in [
            ("cc", "-std=c11", "layout.c", "_Static_assert"),
            ("c++", "-std=c++11", "layout.cpp", "static_assert"),
        ] {
            let facts = FACTS.iter().copied().chain(codes.iter().map(String::as_str));
            let checks: String = facts.map(|fact| format!("{assert}({fact}, \"{fact}\");\n")).collect();
            let source = format!("#include <stddef.h>\n#include \"opt_candidate.h\"\n{checks}");
            compile(compiler, standard, file, &source).unwrap_or_else(|messages| panic!("{messages}"));
            let wrong = format!("{source}{assert}(sizeof(OptAny) == 24, \"must fail\");\n");
            assert!(compile(compiler, standard, file, &wrong).is_err());
        }
    }
}
