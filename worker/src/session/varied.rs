//! Inputs that get new values (*variants*) in every timed call: the memory for the variants, and the location of each
//! call's variants.

use std::io;

/// Memory for inputs that differ in every timed call. Sessions that are started with it can read it, but no candidate
/// on the CPU can write to it.
pub(crate) trait VariantMemory {
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills the memory with zeros. On the CPU, this frees the pages that were written.
    fn clear(&self) -> io::Result<()>;
}

/// The inputs of a session's entries that differ in every timed call.
pub(crate) struct Varied<'b, M> {
    pub(crate) memory: &'b M,
    /// The variants of each entry. All lie in the same memory, because only one entry is called at a time.
    pub(crate) entries: &'b [Variants],
}

impl<M> Clone for Varied<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Varied<'_, M> {}

/// The variants of one entry's inputs. Call k of a block gets variant k.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Variants {
    /// The number of variants; 0 if no input varies.
    pub(crate) count: u32,
    pub(crate) inputs: Vec<VariedInput>,
}

/// The location of the variants of one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VariedInput {
    /// The index among the tensor arguments. A tensor that is passed twice has the same variant in both places.
    pub(crate) tensor: usize,
    /// The page-aligned region that contains the variants.
    pub(crate) region: Range64,
    /// The offset of the first variant in the region.
    pub(crate) data: u64,
    /// The distance between two variants, in bytes.
    pub(crate) stride: u64,
    /// If the call changes the input, the output that is the input's new value. Each call's variant is then copied to
    /// the call's slot of this output, and the call changes the copy.
    pub(crate) output: Option<usize>,
}

impl VariedInput {
    /// Returns the offset in the memory at which a variant is written.
    pub(crate) fn at(&self, variant: u32) -> u64 {
        self.region.start + self.data + self.stride * u64::from(variant)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range64 {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}
