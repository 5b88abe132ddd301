//! The names a pickle may name, and what each stands for here. Nothing is ever imported or called: a name is
//! looked up in this list, and the list ends.

use crate::capture::DType;
use crate::capture::error::{ErrorKind, Fault, quoted};

/// A thing that a pickle names. Most mean something only in a call that `machine` acts out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    RebuildTensor,
    RebuildTensorV2,
    RebuildTensorV3,
    RebuildParameter,
    RebuildParameterWithState,
    RebuildFromType,
    /// `torch.Tensor`, `Parameter`, `Buffer`: named as the type to rebuild into.
    TensorType {
        parameter: bool,
    },
    /// A storage class; none for untyped ones.
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
    /// `list`, `int`, …: named as the factory of a `defaultdict`.
    Factory,
    NumpyReconstruct,
    NumpyFromBuffer,
    NumpyScalar,
    NumpyArray,
    NumpyDType,
    // Values that are pickled by their name.
    Ellipsis,
    DType(DType),
    OtherDType(&'static str),
    Layout(&'static str),
    MemoryFormat(&'static str),
}

/// dtypes torch knows and no dense tensor here can have.
const OTHER_DTYPES: [&str; 26] = [
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
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
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

/// The classes of `torch.return_types`, whose instances are tuples with names.
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

/// Typed storage classes of `torch` (and, under the same names, of `torch.cuda`).
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

/// Looks a name up, or says why it is refused.
pub(super) fn resolve(module: &str, name: &str) -> Result<Global, Fault> {
    known(module, name).ok_or_else(|| refuse(module, name))
}

fn known(module: &str, name: &str) -> Option<Global> {
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
        "list" | "dict" | "tuple" | "int" | "float" | "str" | "bool" => Global::Factory,
        _ => return None,
    })
}

/// The layout that `torch.serialization._get_layout` finds under this name.
pub(super) fn layout(name: &str) -> Option<&'static str> {
    among(&LAYOUTS, name.strip_prefix("torch.")?)
}

fn refuse(module: &str, name: &str) -> Fault {
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
            return Fault::new(
                ErrorKind::UnsafeGlobal,
                format!("the pickle names {shown}, which is not among what a capture may hold"),
            );
        }
    };
    Fault::unsupported(format!("the pickle holds {what} ({shown}; record dense tensors only)"))
}
