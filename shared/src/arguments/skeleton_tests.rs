//! Tests the C skeleton and its header by compiling them with the machine's own compilers. Every warning is treated as
//! an error.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::fixture::{bound, dict, int, list, observed, tensor, text, tuple, unbound};
use super::{Entry, Observed, c_skeleton};
use crate::capture::{DType, Value};

/// Compiles a file with every warning treated as an error; returns the messages if that fails.
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
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
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
fn skeleton_unpacks_every_kind_of_argument() {
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
fn hostile_names_and_values_become_safe_identifiers_and_comments() {
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
fn skeleton_without_arguments_compiles() {
    compile_as_both(&skeleton(&[unbound([], [])], "run"));
    compile_as_both(&skeleton(&[unbound([list([]), Value::None], [])], "run"));
    let (signature, _) = observed(&[unbound([dict([])], [])].map(|_| unbound([], [])));
    compile_as_both(&c_skeleton(&signature, &Observed::new(), "run"));
}

/// Compares the header with the layouts of tvm-ffi's TVMFFIAny and DLPack's DLTensor, written out by hand.
#[test]
fn header_has_the_layout_of_tvm_ffi_and_dlpack() {
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
        ("FLOAT8_E8M0FNU", DType::Float8E8M0Fnu),
        ("FLOAT4_E2M1FN", DType::Float4E2M1FnX2),
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
