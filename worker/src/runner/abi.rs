//! The C structures with which a candidate is called (tvm-ffi's `TVMFFIAny` and DLPack's `DLTensor`), and the block of
//! memory that contains the arguments of one entry.
//!
//! The layouts follow the public C headers (tvm-ffi `c_api.h`, DLPack 1.1 `dlpack.h`). `worker/include/opt_candidate.h`
//! declares them in C. A candidate may overwrite its arguments, so a pristine copy is restored before every call.

mod block;
pub(super) mod objects;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};

use self::block::{Block, Layout};
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

/// The value of an `Any`. The type index determines which field is valid.
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

/// The type indices that a `TVMFFIAny` can have.
pub(crate) mod type_index {
    pub(crate) const NONE: i32 = 0;
    pub(crate) const INT: i32 = 1;
    pub(crate) const BOOL: i32 = 2;
    pub(crate) const FLOAT: i32 = 3;
    pub(crate) const DATA_TYPE: i32 = 5;
    pub(crate) const DEVICE: i32 = 6;
    pub(crate) const TENSOR: i32 = 7;
    pub(crate) const RAW_STR: i32 = 8;
    /// The lowest type index of objects, which are the values that have a reference count.
    pub(crate) const FIRST_OBJECT: i32 = 64;
    pub(crate) const OWNED_TENSOR: i32 = 70;
    pub(crate) const ARRAY: i32 = 71;
    pub(crate) const LIST: i32 = 75;
}

/// DLPack's `DLDataType`, the type of a tensor's elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

impl DataType {
    /// Returns the size of an element, in bytes.
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

/// DLPack's `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub(crate) kind: i32,
    pub(crate) index: i32,
}

/// DLPack's `DLTensor`, a tensor whose memory belongs to the caller.
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

/// The value that a function returns if it returns nothing.
pub(crate) const NOTHING: Any = any(type_index::NONE, Payload { int: 0 });

pub(crate) type Function = unsafe extern "C" fn(*mut c_void, *const Any, i32, *mut Any) -> i32;

/// The places of an output's `data` fields, as word indices in `Arguments::live`.
struct OutputWords {
    words: Vec<usize>,
    /// True if the output is the new value of arguments that the call changes. A plan call gets these arguments as
    /// inputs.
    changed: bool,
}

/// The place of an input's `data` field, as a word index in `Arguments::live`.
struct InputWord {
    word: usize,
    /// The index of the input range whose address is stored there.
    range: u32,
    /// True if the call changes the argument. Only a plan call then gets the argument as an input.
    changed: bool,
}

/// The form in which a function expects its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form {
    /// True if the function returns its outputs, so that none are passed.
    pub(crate) returns_outputs: bool,
    /// The arguments that are passed as objects of tvm-ffi, by the index of the argument.
    pub(crate) objects: BTreeMap<usize, Passed>,
}

/// The kind of object as which an argument is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    Array,
    Tensor,
}

/// The place of a list's elements in the block.
struct List {
    dtype: WireType,
    /// The index of the word in which the elements begin.
    word: usize,
    bytes: usize,
}

/// The arguments of an entry's calls, in the form in which the candidate gets them.
pub(crate) struct Arguments {
    /// The block that is passed to the candidate. It begins with the `Any` of each argument, which the structures
    /// follow.
    live: Vec<u64>,
    pristine: Vec<u64>,
    /// The number of all arguments, and below it the number of those before the outputs.
    count: i32,
    inputs: i32,
    /// The `data` fields that get the address of each output before a call.
    output_data: Vec<OutputWords>,
    /// The `data` fields of the inputs.
    input_data: Vec<InputWord>,
    lists: BTreeMap<usize, List>,
    /// For each argument that is a tensor or a list, the object that contains its `DLTensor`.
    owned: Vec<Option<Any>>,
    /// The memory of arrays that have been passed, by the index of the argument.
    arrays: BTreeMap<usize, Vec<u64>>,
    /// Owns the strings that arguments point to.
    _texts: Vec<CString>,
    /// The `self` argument with which the functions are called.
    this: *mut c_void,
}

impl Arguments {
    /// Builds the arguments. An output that is the new value of arguments is not passed again. `inputs[i]` is the
    /// address of the first byte of range `i`. `device` is the device type of the tensors; lists of numbers are always
    /// on the CPU.
    pub(crate) fn build(setup: &EntrySetup, inputs: &[*mut u8], device: i32) -> Result<Self, &'static str> {
        let written = || setup.outputs.iter().filter(|output| output.arguments.is_empty());
        let count = setup.arguments.len() + written().count();
        let mut layout = Layout::default();
        let any_at = layout.take(count * words::<Any>());
        let mut texts = Vec::new();
        // First decide where every tensor's structure, shape and strides go, in argument order. Their addresses are
        // known only when the block is allocated.
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
        let lists = setup.arguments.iter().zip(&tensors).enumerate();
        let lists = lists.filter_map(|(index, it)| match it {
            (WireArgument::Array { dtype, bytes, .. }, Some(offsets)) => {
                Some((index, List { dtype: *dtype, word: offsets.bytes, bytes: bytes.len() }))
            }
            _ => None,
        });
        let lists = lists.collect();
        let owned: Vec<Option<Any>> =
            tensors.iter().map(|offsets| offsets.as_ref().map(|offsets| block.owned(offsets))).collect();
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
            lists,
            owned,
            arrays: BTreeMap::new(),
            _texts: texts,
            this: std::ptr::null_mut(),
        })
    }

    /// Sets the `self` argument. Through it, a module of an interpreter gets its state for this entry.
    pub(crate) fn set_self(&mut self, this: *mut c_void) {
        self.this = this;
    }

    /// Returns true if an error says that a call with these arguments was refused because the outputs were passed too,
    /// which means that the function returns them. tvm-ffi writes this text before it calls the function.
    pub(crate) fn outputs_are_returned(&self, error: &str) -> bool {
        let Self { inputs, count, .. } = self;
        error.starts_with("TypeError: Mismatched number of arguments")
            && error.ends_with(&format!(". Expected {inputs} but got {count} arguments"))
    }

    pub(crate) fn is_list(&self, index: usize) -> bool {
        self.lists.contains_key(&index)
    }

    /// Returns true if an argument can be passed as a tensor. This includes lists, which are passed as tensors by
    /// default.
    pub(crate) fn is_tensor(&self, index: usize) -> bool {
        self.owned.get(index).is_some_and(Option::is_some)
    }

    /// Restores the block, and fills in the address of each output from `data`, which is null for an output without
    /// elements. In a plan call, arguments that the call changes are inputs like all others.
    pub(crate) fn renew(&mut self, planned: bool, data: impl Iterator<Item = *mut u8>) {
        self.live.copy_from_slice(&self.pristine);
        for (output, pointer) in self.output_data.iter().zip(data) {
            for &word in output.words.iter().filter(|_| !(planned && output.changed)) {
                self.live[word] = pointer as u64;
            }
        }
    }

    /// Makes an input range refer to other bytes, until the block is restored. An argument that the call changes keeps
    /// the address of its output, except in a plan call.
    pub(crate) fn show(&mut self, planned: bool, range: u32, data: *mut u8) {
        for it in self.input_data.iter().filter(|it| it.range == range && (planned || !it.changed)) {
            self.live[it.word] = data as u64;
        }
    }

    /// Makes an array object from an argument that is a list. Returns `None` if the argument is not a list.
    fn array(&mut self, index: usize) -> Option<Any> {
        let List { dtype, word, bytes } = self.lists.get(&index)?;
        let words = self.pristine[*word..].iter().take(bytes.div_ceil(8));
        let mut list: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        list.truncate(*bytes);
        let values = values(*dtype, &list);
        // The array is at the same address in each call, because the candidate may have kept a reference to it.
        let words = block::array_words(values.len());
        let memory = self.arrays.entry(index).or_insert_with(|| vec![0; words]);
        Some(Block { base: memory.as_mut_ptr() }.array(&values))
    }

    /// Calls a function with these arguments in the given form. Returns the function's code, and the value that it
    /// returned.
    ///
    /// # Safety
    /// `function` must have the signature of the candidate interface. Apart from that, the function may
    /// do anything, because this process contains nothing that must survive the function.
    pub(crate) unsafe fn call(&mut self, function: Function, form: &Form) -> (i32, Any) {
        let count = if form.returns_outputs { self.inputs } else { self.count };
        for (&index, kind) in &form.objects {
            let object = match kind {
                Passed::Array => self.array(index),
                Passed::Tensor => self.owned.get(index).copied().flatten(),
            };
            if let Some(object) = object {
                // SAFETY: lists and tensors are arguments, and the block begins with the `Any`s of all arguments.
                unsafe { self.live.as_mut_ptr().cast::<Any>().add(index).write(object) };
            }
        }
        let mut returned = NOTHING;
        // SAFETY: the block begins with `count` arguments. The rest is the caller's obligation.
        let code = unsafe { enter(self.this, self.live.as_ptr().cast(), count, &raw mut returned, function) };
        (code, returned)
    }
}

/// Converts the bytes of a list of numbers to its elements.
fn values(dtype: WireType, bytes: &[u8]) -> Vec<Any> {
    let words = || bytes.as_chunks::<8>().0.iter();
    match DataType::from(dtype) {
        DataType { code: 0, .. } => {
            words().map(|&it| any(type_index::INT, Payload { int: i64::from_le_bytes(it) })).collect()
        }
        DataType { code: 2, .. } => {
            words().map(|&it| any(type_index::FLOAT, Payload { float: f64::from_le_bytes(it) })).collect()
        }
        _ => bytes.iter().map(|&it| any(type_index::BOOL, Payload { int: i64::from(it) })).collect(),
    }
}

const fn words<T>() -> usize {
    size_of::<T>() / 8
}

const fn any(type_index: i32, payload: Payload) -> Any {
    Any { type_index, zero_padding: 0, payload }
}
