//! Takes outputs that a function built with tvm-ffi returns as tensors, instead of writing to tensors that are passed.
//!
//! The returned tensors are read and copied in the candidate's process, so a bad pointer crashes only the candidate.
//! Tensors on the emulated device are read through the device, so a bad device address is reported as an error. The
//! layouts follow tvm-ffi's `c_api.h`.

use std::ffi::{CStr, c_void};

use super::abi::objects::{Object, Sequence};
use super::abi::{Any, DataType, DlTensor, ON_CPU, ON_CUDA, type_index};
use super::frame::WireOutput;
use super::loader::find_function;
use super::strided_copy::StridedCopy;

/// The type of `TVMFFIObjectDecRef`, which releases a reference to an object.
type Release = unsafe extern "C" fn(*mut c_void) -> i32;

/// The properties of an output that a function may return, in which case the output is not passed as an argument.
pub(super) struct Expected {
    dtype: DataType,
    shape: Vec<i64>,
    stride: Vec<i64>,
}

impl Expected {
    /// Returns `None` if the output is the new value of arguments, because such an output is never returned.
    pub(super) fn of(output: &WireOutput) -> Option<Self> {
        let (shape, stride) = (output.shape.clone(), output.stride.clone());
        output.arguments.is_empty().then(|| Self { dtype: output.dtype.into(), shape, stride })
    }
}

/// The memory in which returned tensors must be.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Host,
    /// The memory of the emulated device. The function reads this memory at an address.
    Device(fn(u64, &mut [u8]) -> Result<(), String>),
}

/// Takes the tensors that the functions of a library return.
pub(super) struct ReturnedTensors {
    release: Option<Release>,
    place: Place,
}

impl ReturnedTensors {
    /// Looks up the function that releases objects. `library` is a handle that `dlopen` returned.
    pub(super) fn of(library: *mut c_void, place: Place) -> Self {
        const NAME: &CStr = c"TVMFFIObjectDecRef";
        let address = find_function(library, NAME);
        // SAFETY: the public ABI gives this signature to the function of this name.
        let function = |address| unsafe { std::mem::transmute::<*mut c_void, Release>(address) };
        Self { release: address.map(function), place }
    }

    /// Copies the tensors of a returned value to their outputs, and releases the value. The error begins with the kind
    /// of the error.
    ///
    /// # Safety
    ///
    /// A function built with tvm-ffi must have returned `value`, and each output must have memory for all its elements.
    pub(super) unsafe fn copy<'a>(
        &self,
        value: &Any,
        outputs: impl Iterator<Item = (&'a Expected, *mut u8)> + Clone,
    ) -> Result<(), String> {
        // SAFETY: the caller's promise.
        let copied = unsafe { copy_all(value, outputs, self.place) };
        if let Some(release) = self.release.filter(|_| type_index::FIRST_OBJECT <= value.type_index) {
            // SAFETY: this is an object, and the function that returned it gave its reference away.
            unsafe { release(value.payload.pointer) };
        }
        copied
    }
}

/// # Safety
///
/// See `ReturnedTensors::copy`.
unsafe fn copy_all<'a>(
    value: &Any,
    outputs: impl Iterator<Item = (&'a Expected, *mut u8)> + Clone,
    place: Place,
) -> Result<(), String> {
    // SAFETY: the type index determines what the payload is.
    let values = unsafe {
        match value.type_index {
            type_index::ARRAY | type_index::LIST => {
                let Sequence { elements, count, .. } = &*object_body::<Sequence>(value);
                let count = usize::try_from(*count).unwrap_or(0);
                if count == 0 { &[] } else { std::slice::from_raw_parts(*elements, count) }
            }
            _ => std::slice::from_ref(value),
        }
    };
    let (found, expected) = (values.len(), outputs.clone().count());
    if found != expected {
        return Err(format!("opt.IncorrectShape: it returned {found} tensors, expected {expected}"));
    }
    for (number, (value, (expected, target))) in values.iter().zip(outputs).enumerate() {
        let rejected =
            |(kind, text): (&str, String)| format!("opt.{kind}: output {number} that it returned {text}");
        if value.type_index != type_index::OWNED_TENSOR {
            return Err(rejected(("Raised", "is not a `Tensor`".to_owned())));
        }
        // SAFETY: in an object of this type, the tensor follows the head, and lives until the value is released.
        unsafe { copy_tensor(&*object_body::<DlTensor>(value), expected, target, place) }
            .map_err(rejected)?;
    }
    Ok(())
}

/// Returns the address of the data that follows the head of an object.
///
/// # Safety
///
/// `value` must be an object.
unsafe fn object_body<T>(value: &Any) -> *const T {
    // SAFETY: the caller's promise.
    unsafe { value.payload.pointer.cast::<Object>().add(1).cast::<T>() }
}

/// # Safety
///
/// The tensor must be valid, and `target` must have memory for all elements of the output.
unsafe fn copy_tensor(
    tensor: &DlTensor,
    expected: &Expected,
    target: *mut u8,
    place: Place,
) -> Result<(), (&'static str, String)> {
    let (kind, name) = match place {
        Place::Host => (ON_CPU, "the CPU"),
        Place::Device(_) => (ON_CUDA, "CUDA"),
    };
    if tensor.device.kind != kind {
        let text = format!("is on a device of DLPack's type {}, expected {name}", tensor.device.kind);
        return Err(("Raised", text));
    }
    if tensor.dtype != expected.dtype {
        let (found, expected) = (tensor.dtype, expected.dtype);
        return Err(("IncorrectDtype", format!("is of dtype {found}, expected {expected}")));
    }
    let rank = expected.shape.len();
    if usize::try_from(tensor.ndim) != Ok(rank) {
        let text = format!("has {} dimensions, expected the shape {:?}", tensor.ndim, expected.shape);
        return Err(("IncorrectShape", text));
    }
    // SAFETY: a valid tensor has a size and a stride for each dimension, except that the pointer to strides may be
    // null.
    let (shape, stride) = unsafe {
        let slice =
            |pointer: *const i64| if rank == 0 { &[] } else { std::slice::from_raw_parts(pointer, rank) };
        (slice(tensor.shape), if tensor.strides.is_null() { None } else { Some(slice(tensor.strides)) })
    };
    if shape != expected.shape {
        return Err(("IncorrectShape", format!("has the shape {shape:?}, expected {:?}", expected.shape)));
    }
    if shape.contains(&0) {
        return Ok(());
    }
    let row_major = row_major(shape);
    let stride = stride.unwrap_or(&row_major);
    let offset = usize::try_from(tensor.byte_offset).unwrap_or(0);
    let data = tensor.data.cast::<u8>().wrapping_add(offset);
    let copy = StridedCopy::new(expected.dtype, shape, stride, &expected.stride);
    // The bytes that were read from the device, and the position of the tensor's first element in these bytes.
    let (bytes, first) = match place {
        Place::Host => (Vec::new(), None),
        Place::Device(read) => {
            let (before, length) = span(shape, stride, expected.dtype.bytes())
                .ok_or_else(|| ("Raised", "has strides that lead out of every memory".to_owned()))?;
            let unread = |text: String| ("Raised", format!("cannot be read on the device: {text}"));
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(length).map_err(|error| unread(error.to_string()))?;
            bytes.resize(length, 0);
            read((data.addr() as u64).wrapping_sub(before as u64), &mut bytes).map_err(unread)?;
            (bytes, Some(before))
        }
    };
    let source = first.map_or(data.cast_const(), |first| bytes.as_ptr().wrapping_add(first));
    // SAFETY: source and target contain all elements, and the checks above have shown that these agree in number and
    // size.
    match unsafe { copy.run(source, target) } {
        None => Ok(()),
        Some(axis) => Err((
            "IncorrectNumerical",
            format!(
                "has different elements along axis {axis}, although the recorded output was expanded along it"
            ),
        )),
    }
}

/// Returns how many bytes before its first element a tensor spans, and how many bytes it spans in total. The tensor
/// must have an element. Returns `None` if the range is too large for an address.
fn span(shape: &[i64], stride: &[i64], element: usize) -> Option<(usize, usize)> {
    let (mut before, mut after) = (0_i64, 0_i64);
    for (size, stride) in shape.iter().zip(stride) {
        let last = size.checked_sub(1)?.checked_mul(*stride)?;
        let side = if last < 0 { &mut before } else { &mut after };
        *side = side.checked_add(last.checked_abs()?)?;
    }
    let bytes = |elements: i64| usize::try_from(elements).ok()?.checked_mul(element);
    Some((bytes(before)?, bytes(before.checked_add(after)?.checked_add(1)?)?))
}

fn row_major(shape: &[i64]) -> Vec<i64> {
    let mut stride = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        stride[axis - 1] = stride[axis] * shape[axis];
    }
    stride
}

#[cfg(test)]
mod tests {
    use super::super::abi::{Device, Payload};
    use super::*;

    const FLOAT: DataType = DataType { code: 2, bits: 32, lanes: 1 };

    /// A tensor of tvm-ffi, with the head and the tensor in one object.
    #[repr(C)]
    struct Returned {
        head: Object,
        tensor: DlTensor,
    }

    fn returned(data: &mut [f32], shape: &mut [i64], stride: Option<&mut [i64]>) -> Returned {
        let ndim = i32::try_from(shape.len()).expect("small");
        let strides = stride.map_or(std::ptr::null_mut(), <[i64]>::as_mut_ptr);
        let device = Device { kind: ON_CPU, index: 0 };
        let (data, shape) = (data.as_mut_ptr().cast(), shape.as_mut_ptr());
        Returned {
            head: Object { reference_counts: 1, type_index: 70, padding: 0, deleter: std::ptr::null_mut() },
            tensor: DlTensor { data, device, ndim, dtype: FLOAT, shape, strides, byte_offset: 0 },
        }
    }

    fn value(object: &mut Returned) -> Any {
        Any { type_index: 70, zero_padding: 0, payload: Payload { pointer: (&raw mut *object).cast() } }
    }

    /// Copies to outputs of four floats, which all contain 9 before, and returns what they contain afterwards.
    fn copied(value: &Any, outputs: &[(&[i64], &[i64])]) -> Result<Vec<[f32; 4]>, String> {
        let expected = |(shape, stride): &(&[i64], &[i64])| Expected {
            dtype: FLOAT,
            shape: shape.to_vec(),
            stride: stride.to_vec(),
        };
        let expected: Vec<Expected> = outputs.iter().map(expected).collect();
        let mut memory = vec![[9.0_f32; 4]; outputs.len()];
        let addresses: Vec<*mut u8> = memory.iter_mut().map(|it| it.as_mut_ptr().cast()).collect();
        let tensors = ReturnedTensors { release: None, place: Place::Host };
        // SAFETY: the values of these tests are valid, and no output has more than four elements.
        unsafe { tensors.copy(value, expected.iter().zip(addresses)) }.map(|()| memory)
    }

    #[test]
    fn returned_tensor_is_copied_by_the_strides_of_both() {
        type Case = (&'static [i64], Option<&'static [i64]>, &'static [i64], [f32; 4]);
        let cases: [Case; 4] = [
            (&[2, 2], None, &[2, 1], [1.0, 2.0, 3.0, 4.0]),
            (&[2, 2], Some(&[1, 2]), &[2, 1], [1.0, 3.0, 2.0, 4.0]),
            (&[2, 2], None, &[1, 2], [1.0, 3.0, 2.0, 4.0]),
            (&[2], Some(&[0]), &[0], [1.0, 9.0, 9.0, 9.0]),
        ];
        for (shape, from, to, expected) in cases {
            let (mut data, mut sizes, mut strides) =
                ([1.0, 2.0, 3.0, 4.0], shape.to_vec(), from.map(<[i64]>::to_vec));
            let mut object = returned(&mut data, &mut sizes, strides.as_deref_mut());
            assert_eq!(
                copied(&value(&mut object), &[(shape, to)]),
                Ok(vec![expected]),
                "{shape:?} {from:?} {to:?}"
            );
        }
        // If a tensor has no elements, nothing is read or written. A tensor without axes has one element.
        let (mut none, mut five, mut axes) = ([], [5.0], [0]);
        let mut empty = returned(&mut none, &mut axes, None);
        assert_eq!(copied(&value(&mut empty), &[(&[0], &[1])]), Ok(vec![[9.0; 4]]));
        let mut scalar = returned(&mut five, &mut [], None);
        assert_eq!(copied(&value(&mut scalar), &[(&[], &[])]), Ok(vec![[5.0, 9.0, 9.0, 9.0]]));
    }

    #[test]
    fn tensor_that_is_no_output_is_refused_with_the_reason() {
        let copied_as = |change: fn(&mut Returned), shape: &[i64], stride: &[i64]| {
            let (mut data, mut sizes) = ([1.0, 2.0], [2]);
            let mut object = returned(&mut data, &mut sizes, None);
            change(&mut object);
            copied(&value(&mut object), &[(shape, stride)]).expect_err("refused")
        };
        for (error, expected) in [
            (
                copied_as(|_| {}, &[3], &[1]),
                "opt.IncorrectShape: output 0 that it returned has the shape [2], expected [3]",
            ),
            (
                copied_as(|_| {}, &[2], &[0]),
                "opt.IncorrectNumerical: output 0 that it returned has different elements along axis 0",
            ),
            (
                copied_as(|it| it.tensor.dtype.bits = 16, &[2], &[1]),
                "opt.IncorrectDtype: output 0 that it returned is of dtype float16, expected float32",
            ),
            (
                copied_as(|it| it.tensor.device.kind = 2, &[2], &[1]),
                "opt.Raised: output 0 that it returned is on a device of DLPack's type 2",
            ),
        ] {
            assert!(error.starts_with(expected), "{error}");
        }
        let nothing = Any { type_index: 0, zero_padding: 0, payload: Payload { int: 0 } };
        let error = copied(&nothing, &[(&[2], &[1])]).expect_err("refused");
        assert_eq!(error, "opt.Raised: output 0 that it returned is not a `Tensor`");
    }

    #[test]
    fn tensor_on_the_device_is_read_through_it() {
        /// Reads from the device's memory, which consists of four floats at address 4096.
        fn read(address: u64, bytes: &mut [u8]) -> Result<(), String> {
            let memory: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|it| it.to_ne_bytes()).collect();
            let start = address.checked_sub(4096).and_then(|start| usize::try_from(start).ok());
            let found = start.and_then(|start| memory.get(start..start + bytes.len()));
            bytes.copy_from_slice(found.ok_or_else(|| format!("nothing at {address}"))?);
            Ok(())
        }
        let copied = |address: usize, kind: i32, stride: [i64; 2]| {
            let (mut sizes, mut strides) = ([2, 2], stride);
            let mut object = returned(&mut [], &mut sizes, Some(&mut strides));
            object.tensor.data = std::ptr::without_provenance_mut(address);
            object.tensor.device.kind = kind;
            let expected = Expected { dtype: FLOAT, shape: vec![2, 2], stride: vec![2, 1] };
            let mut memory = [9.0_f32; 4];
            let tensors = ReturnedTensors { release: None, place: Place::Device(read) };
            let output = (&expected, memory.as_mut_ptr().cast());
            // SAFETY: the value is valid, and the output has four elements.
            unsafe { tensors.copy(&value(&mut object), std::iter::once(output)) }.map(|()| memory)
        };
        assert_eq!(copied(4096, ON_CUDA, [2, 1]), Ok([1.0, 2.0, 3.0, 4.0]));
        assert_eq!(copied(4096, ON_CUDA, [1, 2]), Ok([1.0, 3.0, 2.0, 4.0]));
        assert_eq!(copied(4096 + 12, ON_CUDA, [-2, -1]), Ok([4.0, 3.0, 2.0, 1.0]));
        let error = "opt.Raised: output 0 that it returned ";
        for (address, kind, stride, expected) in [
            (4096, ON_CPU, [2, 1], "is on a device of DLPack's type 1, expected CUDA"),
            (4100, ON_CUDA, [2, 1], "cannot be read on the device: nothing at 4100"),
            (0, ON_CUDA, [2, 1], "cannot be read on the device: nothing at 0"),
            (4096, ON_CUDA, [1 << 58, 1], "cannot be read on the device: "),
            (4096, ON_CUDA, [i64::MIN, 1], "has strides that lead out of every memory"),
            (4096, ON_CUDA, [i64::MAX, 1], "has strides that lead out of every memory"),
        ] {
            let text = copied(address, kind, stride).expect_err("refused");
            assert!(text.starts_with(&format!("{error}{expected}")), "{text}");
        }
    }

    #[test]
    fn arrays_have_one_tensor_for_each_output() {
        let ((mut first, mut second), (mut one, mut two)) = (([1.0_f32], [2.0_f32]), ([1_i64], [1_i64]));
        let (mut first, mut second) =
            (returned(&mut first, &mut one, None), returned(&mut second, &mut two, None));
        let elements = [value(&mut first), value(&mut second)];
        #[repr(C)]
        struct Array {
            head: Object,
            sequence: Sequence,
        }
        let head = Object { reference_counts: 1, type_index: 71, padding: 0, deleter: std::ptr::null_mut() };
        let (elements, deleter) = (elements.as_ptr(), std::ptr::null_mut());
        let sequence = Sequence { elements, count: 2, capacity: 2, deleter };
        let mut array = Array { head, sequence };
        let value =
            Any { type_index: 71, zero_padding: 0, payload: Payload { pointer: (&raw mut array).cast() } };
        let output: (&[i64], &[i64]) = (&[1], &[1]);
        assert_eq!(copied(&value, &[output, output]), Ok(vec![[1.0, 9.0, 9.0, 9.0], [2.0, 9.0, 9.0, 9.0]]));
        let error = copied(&value, &[output]).expect_err("refused");
        assert_eq!(error, "opt.IncorrectShape: it returned 2 tensors, expected 1");
    }
}
