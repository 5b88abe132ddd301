//! Tests that calls get the right arguments, in the form in which the function takes them.

use super::objects::{Object, Sequence};
use super::*;
use crate::runner::passing::adapt;

unsafe extern "C" fn scribble(_: *mut c_void, arguments: *const Any, count: i32, returned: *mut Any) -> i32 {
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

fn setup(arguments: Vec<WireArgument>, outputs: Vec<WireOutput>) -> EntrySetup {
    EntrySetup {
        inputs: vec![],
        arguments,
        outputs,
        page_by_page: false,
        resident: false,
        pooled: false,
        variants: vec![],
        call: None,
    }
}

#[test]
fn each_call_gets_fresh_arguments() {
    let float = WireType { code: 2, bits: 32, lanes: 1 };
    let setup = setup(
        vec![
            WireArgument::Int(7),
            WireArgument::Array {
                dtype: WireType { code: 0, bits: 64, lanes: 1 },
                elements: 2,
                bytes: [5i64, 6].iter().flat_map(|value| value.to_le_bytes()).collect(),
            },
            WireArgument::Tensor { range: 0, dtype: float, shape: vec![2, 3], stride: vec![3, 1] },
        ],
        vec![
            WireOutput { dtype: float, shape: vec![], stride: vec![], arguments: vec![], regions: vec![] },
            WireOutput {
                dtype: float,
                shape: vec![2, 3],
                stride: vec![3, 1],
                arguments: vec![2],
                regions: vec![],
            },
        ],
    );
    let mut arguments = Arguments::build(&setup, &[0x2000 as *mut u8], ON_CUDA).expect("built");
    for slot in [3_u8, 4] {
        let slots = || [usize::from(slot) as *mut u8, 0x1000 as *mut u8].into_iter();
        let input = |arguments: &Arguments| arguments.live[arguments.input_data[0].word];
        // In a plan call, the argument that the call changes is an input.
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
        let (code, returned) = unsafe { arguments.call(scribble, &Form::default()) };
        assert_eq!((code, returned.type_index), (i32::from(slot), type_index::INT));
    }
}

unsafe extern "C" fn takes_objects(_: *mut c_void, arguments: *const Any, _: i32, _: *mut Any) -> i32 {
    // SAFETY: called through `Arguments::call` with five arguments, of which the first three are objects.
    unsafe {
        let arguments = std::slice::from_raw_parts(arguments, 5);
        for (argument, ty) in
            arguments.iter().zip([type_index::ARRAY, type_index::ARRAY, type_index::OWNED_TENSOR])
        {
            assert_eq!(argument.type_index, ty);
            let object = &mut *argument.payload.pointer.cast::<Object>();
            assert_eq!((object.type_index, object.reference_counts), (ty, 1 << 32 | 1 << 30));
            object.reference_counts -= 1;
        }
        let elements = |index: usize| {
            let sequence = *arguments[index].payload.pointer.cast::<Object>().add(1).cast::<Sequence>();
            assert_eq!(sequence.capacity, sequence.count);
            std::slice::from_raw_parts(sequence.elements, usize::try_from(sequence.count).expect("small"))
        };
        let ints = elements(0);
        assert!(ints.iter().all(|it| it.type_index == type_index::INT));
        assert_eq!(ints.iter().map(|it| it.payload.int).collect::<Vec<_>>(), [5, -6]);
        let floats = elements(1);
        assert_eq!(
            (floats.len(), floats[0].type_index, floats[0].payload.float),
            (1, type_index::FLOAT, 0.5)
        );
        let tensor = *arguments[2].payload.pointer.cast::<Object>().add(1).cast::<DlTensor>();
        assert_eq!((tensor.data as usize, tensor.ndim), (0x1000, 1));
        // These two arguments were not refused, so they are still borrowed tensors.
        assert_eq!(arguments[3].type_index, type_index::TENSOR);
        assert_eq!(arguments[4].type_index, type_index::TENSOR);
    }
    0
}

#[test]
fn refused_arguments_are_passed_as_objects_that_hold_the_same_values() {
    let ty = |code, bits| WireType { code, bits, lanes: 1 };
    let list = |dtype, elements, bytes| WireArgument::Array { dtype, elements, bytes };
    let words = |values: &[[u8; 8]]| values.concat();
    let float = ty(2, 32);
    let setup = setup(
        vec![
            list(ty(0, 64), 2, words(&[5_i64.to_le_bytes(), (-6_i64).to_le_bytes()])),
            list(ty(2, 64), 1, words(&[0.5_f64.to_le_bytes()])),
            WireArgument::Tensor { range: 0, dtype: float, shape: vec![3], stride: vec![1] },
            list(ty(6, 8), 3, vec![1, 0, 1]),
        ],
        vec![WireOutput {
            dtype: float,
            shape: vec![3],
            stride: vec![1],
            arguments: vec![],
            regions: vec![],
        }],
    );
    let mut arguments = Arguments::build(&setup, &[0x1000 as *mut u8], ON_CPU).expect("built");
    let mut form = Form::default();
    let refused = |index| {
        format!(
            "TypeError: Mismatched type on argument #{index} when calling: `run()`. Expected `X` but got `DLTensor*`"
        )
    };
    for index in 0..3 {
        assert!(adapt(&mut form, &refused(index), &arguments, false), "{index}");
        assert!(!adapt(&mut form, &refused(index), &arguments, false), "{index} was tried");
    }
    assert!(!adapt(&mut form, &refused(5), &arguments, false), "there are five arguments");
    // Each call must get objects with the same number of references, at the same addresses.
    let mut addresses = std::collections::BTreeSet::new();
    for _ in 0..2 {
        arguments.renew(false, std::iter::once(0x2000 as *mut u8));
        // SAFETY: `takes_objects` has the signature and stays within its arguments.
        assert_eq!(unsafe { arguments.call(takes_objects, &form) }.0, 0);
        addresses.insert(arguments.arrays[&0].as_ptr());
    }
    assert_eq!(addresses.len(), 1, "a candidate may have kept the array of the first call");
    // If a list is refused as an array too, it is passed as an owned tensor.
    let as_array = refused(0).replace("DLTensor*", "ffi.Array");
    assert!(adapt(&mut form, &as_array, &arguments, false));
    assert!(!adapt(&mut form, &as_array, &arguments, false));
    assert_eq!(form.objects[&0], Passed::Tensor);
    let bits = values(ty(6, 8), &[1, 0]);
    assert!(bits.iter().all(|it| it.type_index == type_index::BOOL));
}
