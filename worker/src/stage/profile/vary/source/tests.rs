//! Tests how new values of inputs are generated, and which inputs keep their captured values.

use super::*;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|it| f32::from_le_bytes([it[0], it[1], it[2], it[3]])).collect()
}

fn drawn(values: Vec<u8>, bytes: usize, fresh: bool) -> Source {
    Source::Drawn { values, width: 4, bytes: bytes as u64, fresh, zeros: Zeros::default() }
}

fn written(source: &mut Source, seed: u64, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    let write = |at: u64, piece: &[u8]| {
        found[to_index(at)..][..piece.len()].copy_from_slice(piece);
        Ok(())
    };
    source.write(&mut SmallRng::seed_from_u64(seed), write).expect("written");
    found
}

#[test]
fn floats_are_drawn_from_captured_values_with_varying_means() {
    let captured: Vec<u8> = (0..50_000u16).flat_map(|at| f32::from(at % 1000).to_le_bytes()).collect();
    let values = sorted_sample(DType::Float32, &captured, 8 << 10);
    assert!((4 << 10..=8 << 10).contains(&values.len()), "{}", values.len());
    assert!(floats(&values).is_sorted());
    let mut source = drawn(values, captured.len(), false);
    let variants: Vec<Vec<f32>> =
        (0..8).map(|seed| floats(&written(&mut source, seed, captured.len()))).collect();
    let mean = |values: &[f32]| values.iter().sum::<f32>() / 50_000.0;
    let means: Vec<f32> = variants.iter().map(|values| mean(values)).collect();
    for (number, values) in variants.iter().enumerate() {
        assert!(values.iter().all(|value| (0.0..1000.0).contains(value)));
        let same = values.iter().zip(floats(&captured)).filter(|(one, other)| **one == *other).count();
        assert!(same < 500, "{same} elements kept their value");
        for (other, mean) in means.iter().enumerate().filter(|(other, _)| *other != number) {
            assert!(0.5 < (mean - means[number]).abs(), "variants {number} and {other} have the same mean");
        }
    }
}

#[test]
fn large_inputs_are_drawn_whole_and_alike_for_the_same_seed() {
    let values: Vec<u8> = (1..1000u16).flat_map(|at| f32::from(at).to_le_bytes()).collect();
    // This is not a whole number of stripes or rounds.
    let bytes = to_index(DRAWN_BY_ONE + STRIPE / 2 + 4);
    let mut source = drawn(values, bytes, false);
    let [one, same, other] = [1, 1, 2].map(|seed| written(&mut source, seed, bytes));
    assert!(floats(&one).iter().all(|value| (1.0..1000.0).contains(value)));
    assert!(one == same);
    let kept = floats(&one).iter().zip(floats(&other)).filter(|(one, other)| **one == *other).count();
    assert!(kept < bytes / 4 / 100, "{kept} elements are the same in two variants");
    let stripes: Vec<&[u8]> = one.chunks(to_index(STRIPE)).collect();
    assert!(stripes[..8].windows(2).all(|pair| pair[0] != pair[1]), "two stripes are the same");
}

/// Returns the expected variant, drawn without pieces and threads. It is drawn at once, or stripe by stripe if
/// `in_stripes`, where each stripe has a seed of its own.
fn expected(values: &[u8], bytes: usize, seed: u64, in_stripes: bool) -> Vec<u8> {
    let random = &mut SmallRng::seed_from_u64(seed);
    let of_variant = Favours::of_variant(random);
    let mut run = Run { left: 0, favours: of_variant, of_variant };
    let (elements, mut all) = (bytes as u64 / 4, vec![0; bytes]);
    if !in_stripes {
        draw_runs::<4>(values, &mut all, &mut run, elements, false, random);
        return all;
    }
    for stripe in all.chunks_mut(1 << 20) {
        let random = &mut SmallRng::seed_from_u64(random.random());
        draw_runs::<4>(values, stripe, &mut run.clone(), elements, false, random);
    }
    all
}

#[test]
fn pieces_and_stripes_are_drawn_like_the_whole_input() {
    let values: Vec<u8> = (1..1000u16).flat_map(|at| f32::from(at).to_le_bytes()).collect();
    let (piece, limit) = (to_index(PIECE), 8 << 20);
    for (bytes, in_stripes) in [
        (4, false),
        (4000, false),
        (piece, false),
        // This is not a whole number of pieces.
        (3 * piece + 400, false),
        (limit, false),
        (limit + 4, true),
    ] {
        let found = written(&mut drawn(values.clone(), bytes, false), 5, bytes);
        assert!(found == expected(&values, bytes, 5, in_stripes), "{bytes} bytes");
    }
}

#[test]
fn rows_of_one_variant_have_different_norms() {
    for row in [256, 4096, 16_384] {
        let (rows, bytes) = (32, 32 * row * 4);
        let values: Vec<u8> = (-512..512i16).flat_map(|at| f32::from(at).to_le_bytes()).collect();
        let mut source = drawn(values, bytes, false);
        let variant = floats(&written(&mut source, 7, bytes));
        let norm = |row: &[f32]| row.iter().map(|it| f64::from(*it).powi(2)).sum::<f64>().sqrt();
        let norms: Vec<f64> = variant.chunks(row).map(norm).collect();
        let alike = norms.iter().filter(|norm| (*norm / norms[0] - 1.0).abs() < 0.01).count();
        assert!(alike <= rows / 2, "{alike} of {rows} rows of {row} elements have nearly the same norm");
    }
}

/// Returns the source of an argument's values if `room` bytes of them may be stored. `first` limits the argument to its
/// first elements.
fn of_capture(
    op: &str,
    number: u32,
    argument: usize,
    room: u64,
    first: Option<u64>,
) -> Result<Source, WhyKept> {
    of_view(op, number, argument, room, |tensor| {
        if let Some(first) = first {
            (tensor.shape, tensor.stride) = (vec![first], vec![1]);
        }
    })
}

/// Does the same for another tensor that uses the argument's storage.
fn of_view(
    op: &str,
    number: u32,
    argument: usize,
    room: u64,
    change: impl FnOnce(&mut Tensor),
) -> Result<Source, WhyKept> {
    let (entries, signature) = crate::session::scripted::entries_of(op, &[number]);
    let recorded = Recorded::open(&entries[0], &signature).expect("a capture");
    let opt_shared::arguments::ArgumentValue::Tensor(tensor) = &recorded.arguments[argument].value else {
        panic!("a tensor")
    };
    let mut tensor = Tensor::clone(tensor);
    change(&mut tensor);
    Source::of(&recorded, &tensor, room).expect("readable").map(|(source, _)| source)
}

#[test]
fn few_integers_keep_their_values() {
    for (elements, kept) in [(7, true), (8, false), (9, false)] {
        let found = of_capture("torch_nn_functional_embedding", 0, 0, 1 << 20, Some(elements));
        assert_eq!(found.is_err(), kept, "{elements}: {found:?}");
    }
}

#[test]
fn inputs_that_are_shuffled_must_fit_twice() {
    let (embedding, pool) = ("torch_nn_functional_embedding", "torch_nn_functional_max_pool2d");
    // The first input has 128 bytes of indices. The second has 1944 bytes of floats, and an output contains positions
    // of them.
    for (op, number, bytes) in [(embedding, 0, 128), (pool, 1, 1944)] {
        for (room, fits) in [(2 * bytes, true), (2 * bytes + 2, true), (2 * bytes - 1, false), (0, false)] {
            let found = of_capture(op, number, 0, room, None);
            assert_eq!(found.is_ok(), fits, "{op} with {room}: {found:?}");
            assert!(found.is_err() || matches!(found, Ok(Source::Shuffled { .. })), "{op}: {found:?}");
        }
    }
    // If floats are drawn, not all captured values have to be stored.
    let Ok(Source::Drawn { values, bytes, .. }) = of_capture(embedding, 0, 1, 1024, None) else {
        panic!("floats are drawn")
    };
    assert_eq!(bytes, 96 * 48 * 4);
    assert!((512..=1024).contains(&values.len()), "{}", values.len());
}

#[test]
fn integer_outputs_may_give_positions_unless_they_are_counters() {
    let output = |dtype, shape: &[u64], arguments: &[usize]| {
        let tensor = Tensor::dense(dtype, shape, opt_shared::ids::StorageId(0));
        let tensor = std::sync::Arc::new(tensor);
        OutputTensor { path: "output".into(), tensor, arguments: arguments.to_vec() }
    };
    let float = || output(DType::Float32, &[4], &[]);
    for (other, positions) in [
        (output(DType::Int64, &[4], &[]), true),
        (output(DType::Bool, &[4], &[]), false),
        // This is the position of the largest of all elements.
        (output(DType::Int64, &[], &[]), true),
        // An argument that the call changes in place is a counter if it has a single element.
        (output(DType::Int64, &[], &[0]), false),
        (output(DType::Int64, &[1], &[0]), false),
        (output(DType::Int64, &[2], &[0]), true),
        (output(DType::Int64, &[3], &[0]), true),
    ] {
        assert_eq!(gives_positions(&[float(), other.clone()]), positions, "{other:?}");
    }
    assert!(!gives_positions(&[float()]));
}

#[test]
fn fresh_floats_were_never_captured_and_stay_distinct() {
    let captured: Vec<u8> = (1..=1000u16).flat_map(|at| (f32::from(at) / 7.0).to_le_bytes()).collect();
    let known: std::collections::BTreeSet<u32> = floats(&captured).iter().map(|it| it.to_bits()).collect();
    let new = |bytes: &[u8]| floats(bytes).iter().filter(|it| !known.contains(&it.to_bits())).count();
    assert!(950 < new(&written(&mut drawn(captured.clone(), 4000, true), 1, 4000)));
    let mut shuffled = Source::Shuffled {
        captured: captured.clone(),
        order: captured.clone(),
        width: 4,
        fresh: true,
        kept: Kept::Nothing,
        view: None,
    };
    let one = written(&mut shuffled, 1, 4000);
    assert!(950 < new(&one));
    let distinct: std::collections::BTreeSet<u32> = floats(&one).iter().map(|it| it.to_bits()).collect();
    assert_eq!(distinct.len(), 1000, "all values are distinct");
}

#[test]
fn integers_are_shuffled_and_keep_their_values() {
    let captured: Vec<u8> = (0..1000i64).flat_map(i64::to_le_bytes).collect();
    let mut source = Source::Shuffled {
        captured: captured.clone(),
        order: captured.clone(),
        width: 8,
        fresh: false,
        kept: Kept::Nothing,
        view: None,
    };
    let (one, other) = (written(&mut source, 1, 8000), written(&mut source, 2, 8000));
    let sorted = |bytes: &[u8]| {
        let mut all: Vec<i64> =
            bytes.chunks_exact(8).map(|it| i64::from_le_bytes(it.try_into().expect("eight"))).collect();
        all.sort_unstable();
        all
    };
    assert_ne!(one, other);
    assert_ne!(one, captured);
    assert_eq!(written(&mut source, 1, 8000), one, "the same seed gives the same order");
    assert_eq!(sorted(&one), (0..1000).collect::<Vec<i64>>());
    assert_eq!(sorted(&other), sorted(&one));
}

/// Half of the captured values are equal to another, so new values cannot be spread over their range.
#[test]
fn fresh_floats_that_are_often_equal_move_towards_the_next_one_at_most() {
    let values: Vec<f32> = (1..=200u8).map(|at| f32::from(at / 2) / 7.0 + 1.0).collect();
    let captured: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
    let mut source = Source::Shuffled {
        order: captured.clone(),
        captured,
        width: 4,
        fresh: true,
        kept: Kept::Nothing,
        view: None,
    };
    let mut found = floats(&written(&mut source, 1, 800));
    assert!(!found.is_sorted(), "they are in another order");
    found.sort_unstable_by(f32::total_cmp);
    for (at, pair) in values.windows(2).enumerate() {
        let is_between =
            if pair[0] < pair[1] { pair[0] < found[at] && found[at] < pair[1] } else { found[at] == pair[0] };
        assert!(is_between, "{} between {pair:?}", found[at]);
    }
    assert_eq!(found.last(), values.last());
}

#[test]
fn views_of_integers_must_fit_once_whole_and_twice_without_their_gaps() {
    // The view has eight of fifteen indices, which are 120 bytes with the gaps and 64 without. It does not begin at the
    // storage's first element.
    for (room, fits) in [(249, true), (248, true), (247, false), (241, false)] {
        let found = of_view("torch_nn_functional_embedding", 0, 0, room, |tensor| {
            *tensor = Tensor { shape: vec![8], stride: vec![2], storage_offset: 1, ..tensor.clone() };
        });
        assert_eq!(found.is_ok(), fits, "{room}: {found:?}");
        assert!(found.is_err() || matches!(found, Ok(Source::Shuffled { view: Some(_), .. })), "{found:?}");
    }
    // If floats are drawn, no copy of their gaps is needed.
    let found = of_view("torch_nn_functional_embedding", 0, 1, 64, |tensor| {
        *tensor = Tensor { shape: vec![96], stride: vec![48], ..tensor.clone() };
    });
    assert!(matches!(found, Ok(Source::Drawn { .. })), "{found:?}");
}

#[test]
fn parallel_indices_must_fit_into_the_room_that_a_tensor_leaves() {
    // The tensor has 64 bytes. The other one has 120 bytes with its gaps.
    let recorded = super::super::parallel::tests::indices(2, "input");
    let opt_shared::arguments::ArgumentValue::Tensor(tensor) = &recorded.arguments[0].value else {
        panic!("a tensor")
    };
    for (room, fits) in [(184, true), (183, false)] {
        let found = Source::of(&recorded, tensor, room).expect("readable");
        assert_eq!(found.err(), (!fits).then_some(TOO_MANY), "{room}");
    }
}

#[test]
fn zeros_are_those_of_floats_without_gaps() {
    let captured: Vec<u8> =
        [vec![1.5_f32; 40], vec![0.0; 60]].concat().into_iter().flat_map(f32::to_le_bytes).collect();
    let tensor = |dtype| Tensor::dense(dtype, &[100], opt_shared::ids::StorageId(0));
    for (dtype, has_gaps, found) in
        [(DType::Float32, false, true), (DType::Float32, true, false), (DType::Int32, false, false)]
    {
        assert_eq!(!zeros_of(&tensor(dtype), &captured, has_gaps).is_empty(), found, "{dtype:?} {has_gaps}");
    }
}

#[test]
fn room_is_shared_by_the_inputs() {
    let all = VALUES.get();
    assert_eq!([0, 1, 4].map(room), [all, all, all / 4]);
}

#[test]
fn reasons_name_the_structure() {
    for (structure, words) in [
        (Structure::Constant, "are the same"),
        (Structure::Sorted, "is sorted"),
        (Structure::Symmetric, "is symmetric"),
        (Structure::LogProbabilities, "logarithms"),
    ] {
        assert!(kept_because(structure).contains(words), "{structure:?}");
    }
}
