//! Defines the element types of dense tensors, with their sizes and names.
//!
//! The reader, the judge and the candidate interface all use this table. The names are PyTorch's.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::to_index;

macro_rules! dtypes {
    ($($variant:ident, $name:literal, $size:literal, $dl_code:literal, $kind:ident;)*) => {
        /// The element type of a tensor.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum DType { $(#[serde(rename = $name)] $variant,)* }

        impl DType {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// PyTorch's name without `torch.`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Size of an element, in bytes.
            pub const fn size(self) -> u64 {
                match self { $(Self::$variant => $size,)* }
            }

            /// `size` as a `usize`, for dividing buffers into elements.
            pub const fn element_len(self) -> usize {
                to_index(self.size())
            }

            /// `DLDataTypeCode` of DLPack 1.1.
            pub const fn dlpack_code(self) -> u8 {
                match self { $(Self::$variant => $dl_code,)* }
            }

            /// Number of values in an element: one, or two for types that torch packs.
            pub const fn lanes(self) -> u8 {
                match self { Self::Float4E2M1FnX2 => 2, _ => 1 }
            }

            /// Size of a value, in bits.
            pub const fn bits(self) -> u8 {
                #[expect(clippy::cast_possible_truncation, reason = "128 at most")]
                let bits = 8 * self.size() as u8;
                bits / self.lanes()
            }

            pub const fn kind(self) -> Kind {
                match self { $(Self::$variant => Kind::$kind,)* }
            }

            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

/// How values of a type are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Float,
    Complex,
    /// Other types that are compared bit by bit also have this kind.
    Integer,
    Bool,
}

dtypes! {
    Float64, "float64", 8, 2, Float;
    Float32, "float32", 4, 2, Float;
    Float16, "float16", 2, 2, Float;
    BFloat16, "bfloat16", 2, 4, Float;
    Float8E4M3Fn, "float8_e4m3fn", 1, 10, Float;
    Float8E5M2, "float8_e5m2", 1, 12, Float;
    Float8E4M3FnUz, "float8_e4m3fnuz", 1, 11, Float;
    Float8E5M2FnUz, "float8_e5m2fnuz", 1, 13, Float;
    Complex32, "complex32", 4, 5, Complex;
    Complex64, "complex64", 8, 5, Complex;
    Complex128, "complex128", 16, 5, Complex;
    UInt8, "uint8", 1, 1, Integer;
    UInt16, "uint16", 2, 1, Integer;
    UInt32, "uint32", 4, 1, Integer;
    UInt64, "uint64", 8, 1, Integer;
    Int8, "int8", 1, 0, Integer;
    Int16, "int16", 2, 0, Integer;
    Int32, "int32", 4, 0, Integer;
    Int64, "int64", 8, 0, Integer;
    Bool, "bool", 1, 6, Bool;
    // Scales and packed values of block formats are compared bit by bit.
    Float8E8M0Fnu, "float8_e8m0fnu", 1, 14, Integer;
    Float4E2M1FnX2, "float4_e2m1fn_x2", 1, 17, Integer;
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_parse_back() {
        for &dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        }
    }
}
