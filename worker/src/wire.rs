//! Converts dtypes, shapes and plain values to the form in which a runner gets them.

use opt_shared::arguments::PlainValue;
use opt_shared::capture::DType;

use crate::runner::frame::{WireArgument, WireType};

pub(crate) fn wire_type(dtype: DType) -> WireType {
    WireType { code: dtype.dlpack_code(), bits: dtype.bits(), lanes: dtype.lanes() }
}

pub(crate) fn plain_argument(value: &PlainValue) -> WireArgument {
    match value {
        PlainValue::None => WireArgument::None,
        PlainValue::Bool(value) => WireArgument::Bool(*value),
        PlainValue::Int(value) => WireArgument::Int(*value),
        PlainValue::Float(value) => WireArgument::Float(*value),
        PlainValue::Str(value) => WireArgument::Str(value.clone()),
        PlainValue::DType(dtype) => WireArgument::DType(wire_type(*dtype)),
        // A kernel on the CPU gets the CPU as device, even if the model ran on another device. In DLPack, type 1 is the
        // CPU.
        PlainValue::Device(_) => WireArgument::Device { kind: 1, index: 0 },
        PlainValue::Ints(values) => {
            array(DType::Int64, values.len(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
        }
        PlainValue::Floats(values) => {
            array(DType::Float64, values.len(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
        }
        PlainValue::Bools(values) => {
            array(DType::Bool, values.len(), values.iter().map(|&value| u8::from(value)).collect())
        }
    }
}

fn array(dtype: DType, elements: usize, bytes: Vec<u8>) -> WireArgument {
    WireArgument::Array { dtype: wire_type(dtype), elements: elements as u64, bytes }
}

pub(crate) fn signed(values: &[u64]) -> Vec<i64> {
    values.iter().map(|&value| i64::try_from(value).unwrap_or(i64::MAX)).collect()
}
