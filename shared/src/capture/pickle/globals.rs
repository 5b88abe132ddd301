//! Lists the names that this reader knows, and what they stand for. Nothing is ever imported or called: a name is only
//! looked up in this list. Names that are not in the list are kept as text, or refused.

use std::sync::Arc;

use crate::capture::DType;
use crate::capture::error::{ErrorKind, Fault, quoted};

/// What a name in a pickle stands for. Most names are used only in calls (`calls`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    RebuildTensor,
    RebuildTensorV2,
    RebuildTensorV3,
    RebuildParameter,
    RebuildParameterWithState,
    RebuildFromType,
    /// `torch.Tensor`, `Parameter` or `Buffer`, as the type of the rebuilt tensor.
    TensorType {
        parameter: bool,
    },
    /// A storage class; `None` for untyped storages.
    Storage(Option<DType>),
    Size,
    Device,
    GetLayout,
    /// A class of `torch.return_types`.
    ReturnType(&'static str),
    OrderedDict,
    DefaultDict,
    Counter,
    Set,
    FrozenSet,
    Bytes,
    ByteArray,
    Complex,
    Slice,
    Range,
    Encode,
    /// `list`, `int` or another type, as the factory of a `defaultdict`.
    Factory,
    NumpyReconstruct,
    NumpyFromBuffer,
    NumpyScalar,
    NumpyArray,
    NumpyDType,
    // The values from here on are pickled by name.
    Ellipsis,
    DType(DType),
    OtherDType(&'static str),
    Layout(&'static str),
    MemoryFormat(&'static str),
}

/// Torch's dtypes that kernels cannot take.
const OTHER_DTYPES: [&str; 25] = [
    "quint8",
    "qint8",
    "qint32",
    "quint4x2",
    "quint2x4",
    "bits1x8",
    "bits2x4",
    "bits4x2",
    "bits8",
    "bits16",
    "bcomplex32",
    "uint1",
    "uint2",
    "uint3",
    "uint4",
    "uint5",
    "uint6",
    "uint7",
    "int1",
    "int2",
    "int3",
    "int4",
    "int5",
    "int6",
    "int7",
];

const LAYOUTS: [&str; 8] =
    ["strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "_mkldnn", "jagged"];

const MEMORY_FORMATS: [&str; 4] =
    ["contiguous_format", "channels_last", "channels_last_3d", "preserve_format"];

/// The classes of `torch.return_types`, whose instances are named tuples.
const RETURN_TYPES: [&str; 34] = [
    "aminmax",
    "cummax",
    "cummin",
    "frexp",
    "geqrf",
    "histogram",
    "histogramdd",
    "kthvalue",
    "linalg_cholesky_ex",
    "linalg_eig",
    "linalg_eigh",
    "linalg_inv_ex",
    "linalg_ldl_factor",
    "linalg_ldl_factor_ex",
    "linalg_lstsq",
    "linalg_lu",
    "linalg_lu_factor",
    "linalg_lu_factor_ex",
    "linalg_qr",
    "linalg_slogdet",
    "linalg_solve_ex",
    "linalg_svd",
    "lu_unpack",
    "max",
    "median",
    "min",
    "mode",
    "nanmedian",
    "qr",
    "slogdet",
    "sort",
    "svd",
    "topk",
    "triangular_solve",
];

/// Typed storage classes of `torch` and, with the same names, of `torch.cuda`.
const STORAGES: [(&str, DType); 12] = [
    ("FloatStorage", DType::Float32),
    ("DoubleStorage", DType::Float64),
    ("HalfStorage", DType::Float16),
    ("BFloat16Storage", DType::BFloat16),
    ("LongStorage", DType::Int64),
    ("IntStorage", DType::Int32),
    ("ShortStorage", DType::Int16),
    ("CharStorage", DType::Int8),
    ("ByteStorage", DType::UInt8),
    ("BoolStorage", DType::Bool),
    ("ComplexFloatStorage", DType::Complex64),
    ("ComplexDoubleStorage", DType::Complex128),
];

/// The result of looking up a name.
pub(super) enum Name {
    Known(Global),
    /// An unknown name. An object that is made with this name is kept in the form in which the pickle describes it.
    Unknown(Arc<str>),
}

/// Looks up a name. The error says why the name is refused.
pub(super) fn resolve(module: &str, name: &str) -> Result<Name, Fault> {
    match known_global(module, name) {
        Some(global) => Ok(Name::Known(global)),
        None => {
            refuse(module, name).map_or_else(|| Ok(Name::Unknown(format!("{module}.{name}").into())), Err)
        }
    }
}

/// Packages that no captured call uses, so that a pickle which names one of them may be malicious. There are
/// exceptions: captures do use some names of `builtins`, `_codecs`, `collections` and `numpy`. All of these names are
/// in `known_global`, so any other name in these packages is refused too.
const REFUSED_PACKAGES: [&str; 32] = [
    "os",
    "posix",
    "nt",
    "sys",
    "subprocess",
    "pty",
    "socket",
    "shutil",
    "ctypes",
    "importlib",
    "imp",
    "runpy",
    "code",
    "codeop",
    "pickle",
    "_pickle",
    "marshal",
    "types",
    "operator",
    "_operator",
    "functools",
    "_functools",
    "builtins",
    "__builtin__",
    "webbrowser",
    "pip",
    "pydoc",
    "timeit",
    "tempfile",
    "_codecs",
    "collections",
    "numpy",
];

fn known_global(module: &str, name: &str) -> Option<Global> {
    Some(match (module, name) {
        ("torch._utils", "_rebuild_tensor") => Global::RebuildTensor,
        ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensorV2,
        ("torch._utils", "_rebuild_tensor_v3") => Global::RebuildTensorV3,
        ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
        ("torch._utils", "_rebuild_parameter_with_state") => Global::RebuildParameterWithState,
        ("torch._tensor", "_rebuild_from_type_v2") => Global::RebuildFromType,
        ("torch", "Tensor") | ("torch.nn.parameter", "Buffer") => Global::TensorType { parameter: false },
        ("torch.nn.parameter", "Parameter") => Global::TensorType { parameter: true },
        ("torch", "Size") => Global::Size,
        ("torch", "device") => Global::Device,
        ("torch.serialization", "_get_layout") => Global::GetLayout,
        ("torch.storage", "UntypedStorage" | "_UntypedStorage") | ("torch", "UntypedStorage") => {
            Global::Storage(None)
        }
        ("torch" | "torch.cuda", _) => return torch_attribute(name),
        // This is the name that torch gives to a memory format. Only pickles of protocol 4 and later can contain it.
        ("torch._utils", dotted) if dotted.starts_with("torch.") => {
            return among(&MEMORY_FORMATS, &dotted["torch.".len()..]).map(Global::MemoryFormat);
        }
        ("torch.return_types", _) => return among(&RETURN_TYPES, name).map(Global::ReturnType),
        ("collections", "OrderedDict") => Global::OrderedDict,
        ("collections", "defaultdict") => Global::DefaultDict,
        ("collections", "Counter") => Global::Counter,
        ("_codecs", "encode") => Global::Encode,
        ("builtins" | "__builtin__", _) => return builtin(name),
        ("numpy", "ndarray") => Global::NumpyArray,
        ("numpy", "dtype") => Global::NumpyDType,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => Global::NumpyReconstruct,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Global::NumpyScalar,
        ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => Global::NumpyFromBuffer,
        _ => return None,
    })
}

fn torch_attribute(name: &str) -> Option<Global> {
    if let Some(&(_, dtype)) = STORAGES.iter().find(|(storage, _)| *storage == name) {
        return Some(Global::Storage(Some(dtype)));
    }
    if let Some(dtype) = DType::from_name(name) {
        return Some(Global::DType(dtype));
    }
    among(&OTHER_DTYPES, name)
        .map(Global::OtherDType)
        .or_else(|| among(&LAYOUTS, name).map(Global::Layout))
        .or_else(|| among(&MEMORY_FORMATS, name).map(Global::MemoryFormat))
}

fn among(names: &[&'static str], name: &str) -> Option<&'static str> {
    names.iter().copied().find(|&known| known == name)
}

fn builtin(name: &str) -> Option<Global> {
    Some(match name {
        "set" => Global::Set,
        "frozenset" => Global::FrozenSet,
        "bytes" => Global::Bytes,
        "bytearray" => Global::ByteArray,
        "complex" => Global::Complex,
        "slice" => Global::Slice,
        "range" | "xrange" => Global::Range,
        "Ellipsis" => Global::Ellipsis,
        // The last two are the names of int and str in protocol 2.
        "list" | "dict" | "tuple" | "int" | "float" | "str" | "bool" | "long" | "unicode" => Global::Factory,
        _ => return None,
    })
}

/// Returns the layout that `torch.serialization._get_layout` would return for this name.
pub(super) fn layout(name: &str) -> Option<&'static str> {
    among(&LAYOUTS, name.strip_prefix("torch.")?)
}

/// The reason why an unknown name is refused; `None` if the name may be kept.
fn refuse(module: &str, name: &str) -> Option<Fault> {
    let shown = quoted(&format!("{module}.{name}"));
    let what = match (module, name) {
        ("torch._utils", "_rebuild_sparse_tensor" | "_rebuild_sparse_csr_tensor") => "a sparse tensor",
        ("torch._utils", "_rebuild_qtensor") => "a quantized tensor",
        ("torch._utils", "_rebuild_nested_tensor") => "a nested tensor",
        ("torch._utils", "_rebuild_meta_tensor_no_storage") => "a meta tensor, which has no data",
        ("torch._utils", "_rebuild_wrapper_subclass") => "a tensor subclass",
        ("torch._utils", rebuild) if rebuild.starts_with("_rebuild_device_tensor") => {
            "a tensor of a device without storages"
        }
        ("torch", storage) if storage.starts_with('Q') && storage.ends_with("Storage") => {
            "a quantized tensor"
        }
        ("torch.storage", "_load_from_bytes") => "a capture within a capture",
        _ if module.starts_with("torch.nn.modules.") => "a module",
        _ if module.starts_with("__torch__.") => "a TorchScript object",
        _ => {
            let package = module.split('.').next().unwrap_or(module);
            // A dotted name can reach attributes of a module: `torch` has `os`.
            let is_refused = REFUSED_PACKAGES.contains(&package)
                || name.contains('.') && name.split('.').any(|part| REFUSED_PACKAGES.contains(&part))
                || REBUILD_MODULES.contains(&module);
            return is_refused.then(|| {
                Fault::new(
                    ErrorKind::UnsafeGlobal,
                    format!("the pickle names {shown}, which a capture must not contain"),
                )
            });
        }
    };
    Some(Fault::unsupported(format!("the pickle contains {what} ({shown}; record dense tensors only)")))
}

/// Modules of torch whose functions rebuild saved objects. An unknown name in them is refused, because the object that
/// it rebuilds must not be kept uninterpreted.
const REBUILD_MODULES: [&str; 5] =
    ["torch._utils", "torch._tensor", "torch.storage", "torch.serialization", "torch.return_types"];
