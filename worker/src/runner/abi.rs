//! The C structures with which a candidate is called (tvm-ffi's `TVMFFIAny` and DLPack's `DLTensor`), and the block
//! of memory that holds one entry's arguments.
//!
//! The layouts follow the public C headers (tvm-ffi `c_api.h`, DLPack 1.1 `dlpack.h`). `worker/include/opt_candidate.h`
//! declares them in C. A candidate may overwrite its arguments, so a pristine copy is restored before every call.

use std::ffi::{CString, c_char, c_void};

use super::enter::enter;
use super::frame::{EntrySetup, WireArgument, WireOutput, WireType};

/// `TVMFFIAny`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Any {
    pub(crate) type_index: i32,
    pub(crate) zero_padding: u32,
    pub(crate) payload: Payload,
}

/// The value of an `Any`. The type index says which field is valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Payload {
    pub(crate) int: i64,
    pub(crate) float: f64,
    pub(crate) pointer: *mut c_void,
    pub(crate) text: *const c_char,
    pub(crate) dtype: DataType,
    pub(crate) device: Device,
}

/// The type indices of `TVMFFIAny`.
pub(crate) mod type_index {
    pub(crate) const NONE: i32 = 0;
    pub(crate) const INT: i32 = 1;
    pub(crate) const BOOL: i32 = 2;
    pub(crate) const FLOAT: i32 = 3;
    pub(crate) const DATA_TYPE: i32 = 5;
    pub(crate) const DEVICE: i32 = 6;
    pub(crate) const TENSOR: i32 = 7;
    pub(crate) const RAW_STR: i32 = 8;
    /// Objects, which have a reference count, have this type index or a higher one.
    pub(crate) const FIRST_OBJECT: i32 = 64;
    pub(crate) const OWNED_TENSOR: i32 = 70;
    pub(crate) const ARRAY: i32 = 71;
    pub(crate) const LIST: i32 = 75;
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

impl DataType {
    /// The size of an element.
    pub(crate) fn bytes(self) -> usize {
        (usize::from(self.bits) * usize::from(self.lanes)).div_ceil(8)
    }
}

impl From<WireType> for DataType {
    fn from(wire: WireType) -> Self {
        Self { code: wire.code, bits: wire.bits, lanes: wire.lanes.into() }
    }
}

impl std::fmt::Display for DataType {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.bits) {
            (0, bits) => write!(formatter, "int{bits}"),
            (1, bits) => write!(formatter, "uint{bits}"),
            (2, bits) => write!(formatter, "float{bits}"),
            (4, bits) => write!(formatter, "bfloat{bits}"),
            (5, bits) => write!(formatter, "complex{bits}"),
            (6, 8) => formatter.write_str("bool"),
            (code, bits) => write!(formatter, "DLPack code {code} with {bits} bits"),
        }?;
        if self.lanes == 1 { Ok(()) } else { write!(formatter, "x{}", self.lanes) }
    }
}

/// The device types of DLPack (`kDLCPU` and `kDLCUDA`).
pub(crate) const ON_CPU: i32 = 1;
pub(crate) const ON_CUDA: i32 = 2;

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub(crate) kind: i32,
    pub(crate) index: i32,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DlTensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: Device,
    pub(crate) ndim: i32,
    pub(crate) dtype: DataType,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

const _: () = assert!(size_of::<Any>() == 16 && size_of::<DlTensor>() == 48);

/// The value of a function that returns nothing.
pub(crate) const NOTHING: Any = any(type_index::NONE, Payload { int: 0 });

pub(crate) type Function = unsafe extern "C" fn(*mut c_void, *const Any, i32, *mut Any) -> i32;

/// The `data` fields of an output, as word indices in `Arguments::live`.
struct OutputWords {
    words: Vec<usize>,
    /// True if the output is the new value of arguments that the call changes. A plan call gets these as inputs.
    changed: bool,
}

/// The `data` field of an input, as a word index in `Arguments::live`.
struct InputWord {
    word: usize,
    /// The index of the input's range.
    range: u32,
    /// True if the call changes the argument. Only a plan call then gets it as an input.
    changed: bool,
}

/// The arguments of an entry's calls, as the candidate gets them.
pub(crate) struct Arguments {
    /// The block that is passed. It begins with the `Any` of each argument, followed by the structures.
    live: Vec<u64>,
    pristine: Vec<u64>,
    /// The number of arguments, and of those before the outputs.
    count: i32,
    inputs: i32,
    /// The `data` fields that get the address of each output.
    output_data: Vec<OutputWords>,
    /// The `data` fields of the inputs.
    input_data: Vec<InputWord>,
    /// Owns the strings that arguments point to.
    _texts: Vec<CString>,
    /// The `self` argument of the functions.
    this: *mut c_void,
}

impl Arguments {
    /// Builds the arguments. An output that is the new value of arguments is not passed again. `inputs[i]` is the
    /// address of the first byte of range `i`. `device` is the tensors' device type; lists of numbers are on the CPU.
    pub(crate) fn build(setup: &EntrySetup, inputs: &[*mut u8], device: i32) -> Result<Self, &'static str> {
        let written = || setup.outputs.iter().filter(|output| output.arguments.is_empty());
        let count = setup.arguments.len() + written().count();
        let mut layout = Layout::default();
        let any_at = layout.take(count * words::<Any>());
        let mut texts = Vec::new();
        // First lay out every tensor's structure, shape and strides, in argument order. Their addresses are known only
        // when the block is allocated.
        let mut tensors = Vec::with_capacity(count);
        for argument in &setup.arguments {
            tensors.push(match argument {
                WireArgument::Tensor { shape, .. } => Some(layout.tensor(shape.len(), 0)),
                WireArgument::Array { bytes, .. } => Some(layout.tensor(1, bytes.len())),
                _ => None,
            });
        }
        for output in written() {
            tensors.push(Some(layout.tensor(output.shape.len(), 0)));
        }
        let mut live = vec![0u64; layout.words];
        let base = live.as_mut_ptr();
        let mut block = Block { base };
        let mut input_data = Vec::new();
        for (index, argument) in setup.arguments.iter().enumerate() {
            let any = match argument {
                WireArgument::None => any(type_index::NONE, Payload { int: 0 }),
                WireArgument::Int(value) => any(type_index::INT, Payload { int: *value }),
                WireArgument::Bool(value) => any(type_index::BOOL, Payload { int: i64::from(*value) }),
                WireArgument::Float(value) => any(type_index::FLOAT, Payload { float: *value }),
                WireArgument::Str(value) => {
                    let text =
                        CString::new(value.as_str()).map_err(|_| "a text argument contains a NUL byte")?;
                    let pointer = text.as_ptr();
                    texts.push(text);
                    any(type_index::RAW_STR, Payload { text: pointer })
                }
                WireArgument::DType(dtype) => {
                    let mut payload = Payload { int: 0 };
                    payload.dtype = (*dtype).into();
                    any(type_index::DATA_TYPE, payload)
                }
                WireArgument::Device { kind, index } => {
                    any(type_index::DEVICE, Payload { device: Device { kind: *kind, index: *index } })
                }
                WireArgument::Tensor { range, dtype, shape, stride } => {
                    let offsets =
                        tensors[index].as_ref().ok_or("a tensor has no place in the argument block")?;
                    let data = if shape.contains(&0) {
                        std::ptr::null_mut()
                    } else {
                        let mut changed = setup.outputs.iter().flat_map(|output| &output.arguments);
                        input_data.push(InputWord {
                            word: offsets.structure,
                            range: *range,
                            changed: changed.any(|&it| it as usize == index),
                        });
                        *inputs.get(*range as usize).ok_or("a tensor has no input range")?
                    };
                    block.tensor(offsets, data, *dtype, shape, stride, device)
                }
                WireArgument::Array { dtype, elements, bytes } => {
                    let offsets =
                        tensors[index].as_ref().ok_or("an array has no place in the argument block")?;
                    let data = block.bytes(offsets, bytes);
                    let elements = i64::try_from(*elements).map_err(|_| "an array is too long")?;
                    let data = if elements == 0 { std::ptr::null_mut() } else { data };
                    block.tensor(offsets, data, *dtype, &[elements], &[1], ON_CPU)
                }
            };
            block.put_any(any_at + index * words::<Any>(), any);
        }
        let mut output_data = Vec::new();
        let mut index = setup.arguments.len();
        for output in &setup.outputs {
            if !output.arguments.is_empty() {
                let words = output.arguments.iter().filter_map(|&index| {
                    let is_filled = matches!(
                        setup.arguments.get(index as usize),
                        Some(WireArgument::Tensor { shape, .. }) if !shape.contains(&0)
                    );
                    tensors.get(index as usize)?.as_ref().filter(|_| is_filled).map(|it| it.structure)
                });
                output_data.push(OutputWords { words: words.collect(), changed: true });
                continue;
            }
            let offsets = tensors[index].as_ref().ok_or("an output has no place in the argument block")?;
            let WireOutput { dtype, shape, stride, .. } = output;
            let any = block.tensor(offsets, std::ptr::null_mut(), *dtype, shape, stride, device);
            block.put_any(any_at + index * words::<Any>(), any);
            output_data.push(OutputWords { words: vec![offsets.structure], changed: false });
            index += 1;
        }
        let pristine = live.clone();
        let number = |count: usize| i32::try_from(count).map_err(|_| "too many arguments");
        let (count, inputs) = (number(count)?, number(setup.arguments.len())?);
        Ok(Self {
            live,
            pristine,
            count,
            inputs,
            output_data,
            input_data,
            _texts: texts,
            this: std::ptr::null_mut(),
        })
    }

    /// Sets the `self` argument, through which a module of an interpreter gets its state for this entry.
    pub(crate) fn set_self(&mut self, this: *mut c_void) {
        self.this = this;
    }

    /// Returns whether an error says that a call with these arguments was refused because it passed the outputs. Then
    /// the function returns them. tvm-ffi writes this text before it calls the function.
    pub(crate) fn outputs_are_returned(&self, error: &str) -> bool {
        let Self { inputs, count, .. } = self;
        error.starts_with("TypeError: Mismatched number of arguments")
            && error.ends_with(&format!(". Expected {inputs} but got {count} arguments"))
    }

    /// Restores the block, and fills in the address of each output from `data`; null for an output without elements. In
    /// a plan call, arguments that the call changes are inputs like all others.
    pub(crate) fn renew(&mut self, planned: bool, data: impl Iterator<Item = *mut u8>) {
        self.live.copy_from_slice(&self.pristine);
        for (output, pointer) in self.output_data.iter().zip(data) {
            for &word in output.words.iter().filter(|_| !(planned && output.changed)) {
                self.live[word] = pointer as u64;
            }
        }
    }

    /// Redirects an input range to other bytes until the block is restored. An argument that the call changes keeps
    /// the address of its output, except in a plan call.
    pub(crate) fn show(&mut self, planned: bool, range: u32, data: *mut u8) {
        for it in self.input_data.iter().filter(|it| it.range == range && (planned || !it.changed)) {
            self.live[it.word] = data as u64;
        }
    }

    /// Calls a function with these arguments, without the outputs if it returns them. Returns its code, and the value
    /// that it returned.
    ///
    /// # Safety
    /// `function` must have the signature of the candidate interface. The function may do anything else: this process
    /// contains nothing that must survive it.
    pub(crate) unsafe fn call(&mut self, function: Function, returns_outputs: bool) -> (i32, Any) {
        let count = if returns_outputs { self.inputs } else { self.count };
        let mut returned = NOTHING;
        // SAFETY: the block holds `count` arguments from its first word on. The rest is the caller's obligation.
        let code = unsafe { enter(self.this, self.live.as_ptr().cast(), count, &raw mut returned, function) };
        (code, returned)
    }
}

const fn words<T>() -> usize {
    size_of::<T>() / 8
}

const fn any(type_index: i32, payload: Payload) -> Any {
    Any { type_index, zero_padding: 0, payload }
}

/// Assigns positions in the block. `words` is the size so far.
#[derive(Default)]
struct Layout {
    words: usize,
}

/// The word indices of one tensor's parts.
struct TensorOffsets {
    structure: usize,
    shape: usize,
    strides: usize,
    bytes: usize,
}

impl Layout {
    fn take(&mut self, words: usize) -> usize {
        let at = self.words;
        self.words += words;
        at
    }

    fn tensor(&mut self, rank: usize, bytes: usize) -> TensorOffsets {
        TensorOffsets {
            structure: self.take(words::<DlTensor>()),
            shape: self.take(rank.max(1)),
            strides: self.take(rank.max(1)),
            bytes: self.take(bytes.div_ceil(8)),
        }
    }
}

/// The live block while it is being filled. Word indices come from its own `Layout`.
struct Block {
    base: *mut u64,
}

impl Block {
    fn at(&self, word: usize) -> *mut u64 {
        // SAFETY: `word` was handed out by the layout that sized the block.
        unsafe { self.base.add(word) }
    }

    fn put_any(&mut self, word: usize, any: Any) {
        // SAFETY: two words of the block, aligned to eight like `Any`.
        unsafe { self.at(word).cast::<Any>().write(any) }
    }

    fn bytes(&mut self, offsets: &TensorOffsets, bytes: &[u8]) -> *mut u8 {
        let target = self.at(offsets.bytes).cast::<u8>();
        // SAFETY: the layout took `bytes.len()` rounded up to words at this offset.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        target
    }

    /// Writes a `DLTensor` into the block, and returns the argument that points to it.
    fn tensor(
        &mut self,
        offsets: &TensorOffsets,
        data: *mut u8,
        dtype: WireType,
        shape: &[i64],
        stride: &[i64],
        device: i32,
    ) -> Any {
        let (shape_at, strides_at) = (self.at(offsets.shape), self.at(offsets.strides));
        // SAFETY: `rank` words each were taken; a stride list that is longer than the shape is cut.
        unsafe {
            std::ptr::copy_nonoverlapping(shape.as_ptr(), shape_at.cast(), shape.len());
            std::ptr::copy_nonoverlapping(stride.as_ptr(), strides_at.cast(), stride.len().min(shape.len()));
        }
        let tensor = DlTensor {
            data: data.cast(),
            device: Device { kind: device, index: 0 },
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_possible_wrap,
                reason = "the reader limits ranks to 64"
            )]
            ndim: shape.len() as i32,
            dtype: dtype.into(),
            shape: shape_at.cast(),
            strides: strides_at.cast(),
            byte_offset: 0,
        };
        let structure = self.at(offsets.structure);
        // SAFETY: six words of the block, aligned like `DlTensor`.
        unsafe { structure.cast::<DlTensor>().write(tensor) };
        any(type_index::TENSOR, Payload { pointer: structure.cast() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn scribble(
        _: *mut c_void,
        arguments: *const Any,
        count: i32,
        returned: *mut Any,
    ) -> i32 {
        assert_eq!(count, 4);
        // SAFETY: called through `Arguments::call` with four arguments.
        unsafe {
            let arguments = std::slice::from_raw_parts_mut(arguments.cast_mut(), 4);
            assert_eq!(arguments[0].payload.int, 7);
            let list = &mut *arguments[1].payload.pointer.cast::<DlTensor>();
            assert_eq!((list.ndim, *list.shape, *list.strides), (1, 2, 1));
            assert_eq!(list.device.kind, ON_CPU);
            assert_eq!(std::slice::from_raw_parts(list.data.cast::<i64>(), 2), [5, 6]);
            let input = &mut *arguments[2].payload.pointer.cast::<DlTensor>();
            assert_eq!((input.data as usize, input.device.kind), (0x1000, ON_CUDA));
            let output = &mut *arguments[3].payload.pointer.cast::<DlTensor>();
            let slot = output.data as usize;
            *list.shape = 99;
            output.data = std::ptr::null_mut();
            arguments[0].payload.int = 0;
            (*returned).type_index = 1;
            i32::try_from(slot & 0xff).expect("a byte")
        }
    }

    #[test]
    fn each_call_gets_fresh_arguments() {
        let float = WireType { code: 2, bits: 32, lanes: 1 };
        let setup = EntrySetup {
            inputs: vec![],
            arguments: vec![
                WireArgument::Int(7),
                WireArgument::Array {
                    dtype: WireType { code: 0, bits: 64, lanes: 1 },
                    elements: 2,
                    bytes: [5i64, 6].iter().flat_map(|value| value.to_le_bytes()).collect(),
                },
                WireArgument::Tensor { range: 0, dtype: float, shape: vec![2, 3], stride: vec![3, 1] },
            ],
            outputs: vec![
                WireOutput {
                    dtype: float,
                    shape: vec![],
                    stride: vec![],
                    arguments: vec![],
                    regions: vec![],
                },
                WireOutput {
                    dtype: float,
                    shape: vec![2, 3],
                    stride: vec![3, 1],
                    arguments: vec![2],
                    regions: vec![],
                },
            ],
            page_by_page: false,
            resident: false,
            pooled: false,
            variants: vec![],
            call: None,
        };
        let mut arguments = Arguments::build(&setup, &[0x2000 as *mut u8], ON_CUDA).expect("built");
        for slot in [3_u8, 4] {
            let slots = || [usize::from(slot) as *mut u8, 0x1000 as *mut u8].into_iter();
            let input = |arguments: &Arguments| arguments.live[arguments.input_data[0].word];
            // A plan call gets the argument that the call changes as an input.
            arguments.renew(true, slots());
            assert_eq!(input(&arguments), 0x2000);
            arguments.show(true, 0, 0x4000 as *mut u8);
            arguments.show(true, 1, 0x3000 as *mut u8);
            assert_eq!(input(&arguments), 0x4000);
            arguments.renew(false, slots());
            let output = input(&arguments);
            arguments.show(false, 0, 0x4000 as *mut u8);
            assert_eq!(input(&arguments), output, "the call changes it in its slot");
            // SAFETY: `scribble` has the signature and stays within its arguments.
            let (code, returned) = unsafe { arguments.call(scribble, false) };
            assert_eq!((code, returned.type_index), (i32::from(slot), type_index::INT));
        }
    }
}
