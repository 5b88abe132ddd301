//! Gives inputs new values in every timed call, so that no call can reuse the results of another.
//!
//! This folder also decides which inputs of an entry vary. For an input to vary, there must be no objection in the
//! capture's header, the plan, the input's contents (`source`, `structure`) or the input's relations to other inputs
//! (`relations`). In addition, a kernel that is known to be right must still work with the new values (`trial`), and
//! must read the input (`unread`). `layout` places the variants in memory.

mod choices;
mod decisions;
mod fresh;
mod keyed;
mod layout;
mod narrowed;
mod order;
mod parallel;
mod parts;
mod places;
mod relations;
mod runs;
mod source;
mod structure;
mod trial;
mod tried;
mod unique;
mod unread;
mod zeros;

use std::io;

use opt_shared::arguments::{Argument, ArgumentValue, VaryChoice, may_vary};
use opt_shared::capture::{Kind, Tensor};
use opt_shared::formula::{self, ALIGNMENT};
use opt_shared::message::ProfileTask;
use opt_shared::units::{Bytes, to_index};

use self::decisions::Decision;
pub(crate) use self::decisions::Decisions;
use self::keyed::Keyed;
use self::layout::{Extent, lay_out};
pub(super) use self::narrowed::{Inputs, works};
use self::source::{Source, WhyKept};
pub(super) use self::trial::{decide, recall};
use crate::recorded::{Recorded, RecordedError, allocated_bytes};
use crate::session::{SessionError, VariantMemory, Variants, VariedInput};

/// The number of bytes that are written at a time, for zeros and for inputs that a single thread draws.
const PIECE: u64 = 64 << 10;
const ZEROS: &[u8] = &[0; to_index(PIECE)];

/// The inputs of an entry that vary, and the sources of their new values.
#[derive(Debug)]
pub(super) struct Variation {
    pub(super) variants: Variants,
    /// The source of each varying input, in the order of the variants.
    sources: Vec<Keyed>,
    pub(super) names: Vec<String>,
    /// The reason why a kernel could return remembered results, or `None` if it could not. There are three such
    /// reasons: no input varies, too many inputs keep their values for lack of memory, or the candidate is wrong for
    /// new values of some inputs.
    pub(super) unvaried: Option<String>,
    /// True if the candidate is wrong for new values of some inputs, which therefore keep their values.
    pub(super) narrowed: bool,
    /// The decision about this entry, which other candidates of the job can reuse. It is `None` if the decision is
    /// uncertain, because a process ended or did not load the kernel.
    decision: Option<Decision>,
}

impl Variation {
    fn none(why: impl Into<String>) -> Self {
        let why = why.into();
        Self {
            variants: Variants::default(),
            sources: Vec::new(),
            names: Vec::new(),
            unvaried: Some(why.clone()),
            narrowed: false,
            decision: Some(Decision::Unvaried(why)),
        }
    }

    /// Like `none`, but for a reason that may not apply to the next candidate, so the decision is not reused.
    fn none_for_now(why: impl Into<String>) -> Self {
        Self { decision: None, ..Self::none(why) }
    }

    pub(super) fn varies(&self) -> bool {
        self.variants.count != 0
    }

    /// Returns true if this output is an argument that the call changes and whose values vary.
    pub(super) fn changes(&self, output: usize) -> bool {
        self.variants.inputs.iter().any(|input| input.output == Some(output))
    }

    /// Returns the maximum number of calls in a block.
    pub(super) fn most_calls(&self, slots: u32) -> u32 {
        if self.varies() { slots.min(self.variants.count) } else { slots }
    }

    /// Writes new values for a block of `calls` calls. The same seed gives the same values.
    pub(super) fn renew(&mut self, memory: &impl VariantMemory, calls: u32, seed: u64) -> io::Result<()> {
        self.draw(calls, seed, |input, variant, offset, bytes| {
            memory.write(input.at(variant) + offset, bytes)
        })
    }

    /// Draws the values of a block, and passes them to `each` in pieces, with the input, the variant and the offset of
    /// each piece.
    pub(super) fn draw(
        &mut self,
        calls: u32,
        seed: u64,
        mut each: impl FnMut(&VariedInput, u32, u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let count = calls.min(self.variants.count);
        let mut inputs = self.variants.inputs.iter().zip(&mut self.sources);
        inputs.try_for_each(|(input, source)| {
            source.write(seed, count, |variant, offset, bytes| each(input, variant, offset, bytes))
        })
    }

    /// Writes new values of a single input, for the first call of a block.
    pub(super) fn renew_one(
        &mut self,
        memory: &impl VariantMemory,
        number: usize,
        seed: u64,
    ) -> io::Result<()> {
        let input = self.variants.inputs[number];
        self.sources[number].write(seed, 1, |_, offset, bytes| memory.write(input.at(0) + offset, bytes))
    }

    /// Overwrites the values of `calls` calls with zeros, so that no kernel can read them.
    pub(super) fn hide(
        &self,
        recorded: &Recorded,
        memory: &impl VariantMemory,
        calls: u32,
    ) -> Result<(), SessionError> {
        let mut pieces = self.variants.inputs.iter().flat_map(|input| {
            let (first, end) = (input.at(0), input.at(calls.min(self.variants.count)));
            (first..end).step_by(ZEROS.len()).map(move |at| (at, &ZEROS[..to_index((end - at).min(PIECE))]))
        });
        pieces
            .try_for_each(|(at, zeros)| memory.write(at, zeros))
            .map_err(|source| SessionError::Variants { entry: recorded.name.clone(), source })
    }

    /// Like `renew`, but errors name the entry.
    pub(super) fn write_for(
        &mut self,
        recorded: &Recorded,
        memory: &impl VariantMemory,
        calls: u32,
        seed: u64,
    ) -> Result<(), SessionError> {
        let written = if self.varies() { self.renew(memory, calls, seed) } else { Ok(()) };
        written.map_err(|source| SessionError::Variants { entry: recorded.name.clone(), source })
    }
}

/// An input that may vary.
struct Eligible {
    extent: Extent,
    source: Keyed,
    name: String,
    shuffled: bool,
    /// True if its values are integers, such as the indices of rows of a table.
    is_index: bool,
}

/// The names of the arguments that keep their values, with the reasons.
type KeptInputs = Vec<(String, WhyKept)>;

/// Returns the inputs of an entry that may vary, and the arguments that keep their values.
fn eligible(recorded: &Recorded, task: &ProfileTask) -> Result<(Vec<Eligible>, KeptInputs), RecordedError> {
    let outputs = &recorded.outputs;
    let tensors: Vec<(&Argument, &Tensor, Option<usize>)> = recorded
        .arguments
        .iter()
        .enumerate()
        .filter_map(|(index, argument)| match &argument.value {
            ArgumentValue::Tensor(tensor) => {
                Some((argument, &**tensor, outputs.iter().position(|it| it.arguments.contains(&index))))
            }
            ArgumentValue::Plain(_) => None,
        })
        .collect();
    let repeated = task.entries.iter().find(|entry| entry.name == recorded.name);
    let repeated = repeated.map_or(&[][..], |entry| entry.repeated.as_slice());
    let choice = VaryChoice {
        vary: &task.profile.vary,
        constant: &task.constant,
        repeated,
        largest: task.largest_varied(),
    };
    let room = source::room(tensors.iter().filter(|(_, tensor, _)| may_vary(tensor)).count());
    let (mut found, mut kept) = (Vec::new(), Vec::new());
    for (number, &(argument, tensor, output)) in tensors.iter().enumerate() {
        // An input that is passed twice was already handled as its first argument.
        if tensors[..number].iter().any(|(_, earlier, _)| same_bytes(earlier, tensor)) {
            continue;
        }
        let why = match choice.kept_because(argument, tensor) {
            None if tensors.iter().any(|(_, other, _)| overlaps(other, tensor)) => {
                Some("it overlaps another argument")
            }
            why => why,
        };
        let source = match why {
            Some(why) => Err(why),
            None => Source::of(recorded, tensor, room)
                .map_err(|source| RecordedError::Capture { name: recorded.name.clone(), source })?,
        };
        match source {
            Ok((source, key)) => found.push(Eligible {
                extent: Extent {
                    tensor: number,
                    bytes: allocated_bytes(tensor),
                    phase: tensor.byte_range().start % ALIGNMENT,
                    output,
                },
                shuffled: matches!(source, Source::Shuffled { .. }),
                is_index: tensor.dtype.kind() == Kind::Integer,
                source: Keyed { source, key },
                name: argument.path.clone(),
            }),
            Err(why) => kept.push((argument.path.clone(), why)),
        }
    }
    let read = |tensor: &Tensor, first: u64, end: u64| {
        let (start, width) = (tensor.byte_range().start, tensor.dtype.size());
        let mut bytes = vec![0; to_index((end - first) * width)];
        recorded.capture.read_range(tensor.storage, start + first * width, &mut bytes)?;
        Ok(bytes)
    };
    let parameters: Vec<(&str, &Tensor)> =
        tensors.iter().map(|&(argument, tensor, _)| (argument.parameter.as_str(), tensor)).collect();
    let why = relations::of(&parameters, &found, &read)
        .map_err(|source| RecordedError::Capture { name: recorded.name.clone(), source })?;
    let mut related = why.into_iter();
    found.retain(|input| match related.next().flatten() {
        None => true,
        Some(why) => {
            kept.push((input.name.clone(), why));
            false
        }
    });
    Ok((found, kept))
}

fn same_bytes(one: &Tensor, other: &Tensor) -> bool {
    one.storage == other.storage && one.byte_range() == other.byte_range() && one.dtype == other.dtype
}

/// Returns true if two tensors share bytes, except if both consist of exactly the same bytes with the same type.
fn overlaps(one: &Tensor, other: &Tensor) -> bool {
    let (a, b) = (one.byte_range(), other.byte_range());
    one.storage == other.storage && a.start.max(b.start) < a.end.min(b.end) && !same_bytes(one, other)
}

/// Returns the number of slots in the ring of outputs, which limits the number of calls in a block.
fn slots(recorded: &Recorded) -> u32 {
    formula::ring_slots(recorded.outputs.iter().map(|output| Bytes::new(allocated_bytes(&output.tensor))))
}

/// Returns the layout of the chosen inputs, or `None` if they do not all fit into the memory.
fn layout_of(
    recorded: &Recorded,
    task: &ProfileTask,
    eligible: &[Eligible],
    chosen: &[usize],
) -> Option<Variants> {
    let extents: Vec<Extent> = chosen.iter().map(|&at| eligible[at].extent).collect();
    let page = rustix::param::page_size() as u64;
    Some(lay_out(&extents, slots(recorded), page, task.largest_varied()))
        .filter(|variants| variants.count != 0)
}

fn unvaried_because(kept: &[(String, WhyKept)]) -> String {
    match kept {
        [] => "the entry has no tensor among its inputs".to_owned(),
        kept => kept.iter().map(|(name, why)| format!("`{name}`: {why}")).collect::<Vec<_>>().join("; "),
    }
}

#[cfg(test)]
mod tests {
    use opt_shared::capture::DType;
    use opt_shared::ids::StorageId;

    use super::*;

    fn tensor(storage: u32, dtype: DType, first: u64, elements: u64) -> Tensor {
        Tensor { storage_offset: first, ..Tensor::dense(dtype, &[elements], StorageId(storage)) }
    }

    #[test]
    fn tensors_overlap_if_they_share_bytes_but_are_not_the_same() {
        let float = |storage, first, elements| tensor(storage, DType::Float32, first, elements);
        for (other, same, shared) in [
            (float(0, 4, 4), true, false),
            (float(1, 4, 4), false, false),
            (float(0, 4, 5), false, true),
            (float(0, 7, 2), false, true),
            (float(0, 0, 5), false, true),
            (float(0, 5, 2), false, true),
            // These bytes are next to the tensor, or in another storage.
            (float(0, 8, 4), false, false),
            (float(0, 0, 4), false, false),
            (float(1, 5, 2), false, false),
            // These are the same bytes with another type.
            (tensor(0, DType::Int32, 4, 4), false, true),
            (tensor(0, DType::Float64, 2, 2), false, true),
            (tensor(1, DType::Int32, 4, 4), false, false),
        ] {
            let one = float(0, 4, 4);
            for (one, other) in [(&one, &other), (&other, &one)] {
                assert_eq!((same_bytes(one, other), overlaps(one, other)), (same, shared), "{other:?}");
            }
        }
    }

    #[test]
    fn variants_have_the_captured_address_modulo_the_alignment() {
        let (entries, signature) = crate::session::scripted::entries_of("torch_nn_functional_relu", &[0]);
        let mut recorded = Recorded::open(&entries[0], &signature).expect("a capture");
        for (first, phase) in [(0, 0), (3, 12), (16, 0), (17, 4)] {
            let ArgumentValue::Tensor(input) = &mut recorded.arguments[0].value else { panic!("a tensor") };
            *input = std::sync::Arc::new(tensor(input.storage.0, DType::Float32, first, 100));
            let task = crate::stage::profile::tests::task(&[0], false);
            let (found, kept) = eligible(&recorded, &task).expect("readable");
            assert_eq!((found[0].extent.phase, found[0].extent.bytes), (phase, 400), "{kept:?}");
        }
    }

    #[test]
    fn new_order_of_a_column_leaves_the_rest_of_its_table_as_it_was() {
        let column = Tensor { shape: vec![20], stride: vec![3], ..tensor(0, DType::UInt8, 0, 20) };
        let all: Vec<u8> = (0..58).map(|at| if at % 3 == 0 { at } else { 200 }).collect();
        let captured: Vec<u8> = all.iter().copied().step_by(3).collect();
        let source = Source::Shuffled {
            order: captured.clone(),
            captured: captured.clone(),
            width: 1,
            fresh: false,
            kept: unique::Kept::Nothing,
            view: Some((places::Places::of(&column), all.clone())),
        };
        let mut written = Vec::new();
        let write = |_, _, bytes: &[u8]| {
            written.extend_from_slice(bytes);
            Ok(())
        };
        Keyed { source, key: 0 }.write(1, 1, write).expect("written");
        assert_eq!(written.len(), all.len());
        assert!(written.iter().enumerate().all(|(at, &it)| (it == 200) == (at % 3 != 0)), "{written:?}");
        let mut column: Vec<u8> = written.iter().copied().step_by(3).collect();
        assert_ne!(column, captured);
        column.sort_unstable();
        assert_eq!(column, captured);
    }

    /// Memory whose bytes are ones at first.
    struct Ones(std::cell::RefCell<Vec<u8>>);

    impl VariantMemory for Ones {
        fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
            self.0.borrow_mut()[to_index(at)..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn clear(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn hidden_values_are_those_of_the_calls_of_a_block() {
        let (entries, signature) = crate::session::scripted::entries_of("torch_nn_functional_relu", &[0]);
        let recorded = Recorded::open(&entries[0], &signature).expect("a capture");
        // 50,000 bytes are not a multiple of the number of bytes that are written at a time.
        let extents = [50_000, 400].map(|bytes| Extent { tensor: 0, bytes, phase: 12, output: None });
        let variation =
            Variation { variants: lay_out(&extents, 4, 4096, Bytes::mib(8)), ..Variation::none("") };
        let end = variation.variants.inputs[1].region.start + variation.variants.inputs[1].region.bytes;
        for calls in [0, 1, 3, 4, 5] {
            let memory = Ones(vec![1; to_index(end)].into());
            variation.hide(&recorded, &memory, calls).expect("written");
            for (input, extent) in variation.variants.inputs.iter().zip(&extents) {
                for variant in 0..4 {
                    let values = &memory.0.borrow()[to_index(input.at(variant))..][..to_index(extent.bytes)];
                    let expected = u8::from(calls <= variant);
                    assert!(values.iter().all(|&it| it == expected), "variant {variant} of {calls} calls");
                }
            }
        }
    }

    /// Returns a variation of two inputs that are larger than a piece, in blocks of up to four calls. The second output
    /// contains the values of the second input after a call.
    fn of_two_inputs() -> Variation {
        let extents = [(100_000, None), (90_000, Some(1))].map(|(bytes, output)| Extent {
            tensor: 0,
            bytes,
            phase: 12,
            output,
        });
        let values: Vec<u8> = (1..1000u16).flat_map(|at| f32::from(at).to_le_bytes()).collect();
        let sources = extents.map(|extent| {
            let (values, zeros) = (values.clone(), zeros::Zeros::default());
            Keyed {
                source: Source::Drawn { values, width: 4, bytes: extent.bytes, fresh: false, zeros },
                key: extent.bytes,
            }
        });
        Variation {
            variants: lay_out(&extents, 4, 4096, Bytes::mib(8)),
            sources: sources.into(),
            ..Variation::none("")
        }
    }

    #[test]
    fn variation_limits_the_calls_of_a_block_and_changes_the_outputs_of_its_inputs() {
        let variation = of_two_inputs();
        assert_eq!([0, 1, 2].map(|output| variation.changes(output)), [false, true, false]);
        assert_eq!([1, 4, 5, 24].map(|slots| variation.most_calls(slots)), [1, 4, 4, 4]);
        let none = Variation::none("");
        assert!(variation.varies() && !none.varies() && !none.changes(0));
        assert_eq!([1, 24].map(|slots| none.most_calls(slots)), [1, 24]);
    }

    #[test]
    fn each_call_of_a_block_has_its_own_values_and_one_input_can_be_renewed_alone() {
        let mut variation = of_two_inputs();
        let inputs = variation.variants.inputs.clone();
        let end = inputs[1].region.start + inputs[1].region.bytes;
        let memory = || Ones(vec![1; to_index(end)].into());
        let values = |memory: &Ones, number: usize, variant: u32| {
            let bytes = [100_000, 90_000][number];
            memory.0.borrow()[to_index(inputs[number].at(variant))..][..bytes].to_vec()
        };
        let is_new = |values: &[u8]| values.chunks(4000).all(|part| part.iter().any(|&it| it != 1));
        let block = memory();
        variation.renew(&block, 3, 9).expect("written");
        for number in [0, 1] {
            let [one, two, three, last] = [0, 1, 2, 3].map(|variant| values(&block, number, variant));
            assert!([&one, &two, &three].map(|it| is_new(it)) == [true; 3] && one != two && two != three);
            assert!(last.iter().all(|&it| it == 1), "there are only three calls");
        }
        let renewed = memory();
        variation.renew_one(&renewed, 1, 9).expect("written");
        assert!(values(&renewed, 1, 0) == values(&block, 1, 0), "the same seed has the same values");
        for (number, variant) in [(0, 0), (1, 1)] {
            assert!(values(&renewed, number, variant).iter().all(|&it| it == 1), "the rest stays as it was");
        }
    }
}
