//! Every limit of the capture reader, each with its reason.
//!
//! They bound what a hostile file can cost, not what a format allows: a real capture holds a few dozen tensors
//! and a few KiB of pickle. Whoever breaks one gets an error of kind `limit`.

/// Bytes of one pickle. Tensors lie outside it, so only a capture that holds huge numpy arrays comes near.
pub(super) const MAX_PICKLE_BYTES: u64 = 64 << 20;

/// Bytes of one string or bytes object: half a pickle, far above any name or small numpy array.
pub(super) const MAX_STRING_BYTES: u64 = 32 << 20;

/// Bytes of one line of a text opcode (a global's module, an int in decimal, a protocol-0 string).
pub(super) const MAX_LINE_BYTES: usize = 64 << 10;

/// Bytes of one integer. Conversion to decimal is quadratic, and Python itself stops at 4300 digits.
pub(super) const MAX_INTEGER_BYTES: usize = 1786;

/// Digits of one integer written in decimal, for the same reason.
pub(super) const MAX_INTEGER_DIGITS: usize = 4300;

/// Objects made while one pickle is read: some 50 bytes each, and as many again once they are values.
pub(super) const MAX_NODES: usize = 1 << 18;

/// What a dict or set costs beside its items, in places: a hash table can take as much as so many.
pub(super) const TABLE_SLOTS: usize = 8;

/// What a tensor or array costs beside its shape, in places.
pub(super) const TENSOR_SLOTS: usize = 16;

/// Places in containers, over all containers of one pickle: a shared object counts in each place.
pub(super) const MAX_SLOTS: usize = 1 << 20;

/// Places on the stack: what one container may hold before it is closed.
pub(super) const MAX_STACK: usize = MAX_SLOTS;

/// Open marks: nesting of a pickle that has not been closed yet.
pub(super) const MAX_MARKS: usize = 1 << 12;

/// Entries of the memo: the pickler makes one for each object.
pub(super) const MAX_MEMO: usize = MAX_NODES;

/// Levels of containers in containers. Values are walked and dropped by recursion, which has to fit in the
/// smallest stack a thread here gets.
pub(super) const MAX_DEPTH: usize = 200;

/// Bytes that calls such as `_codecs.encode` may make beyond the size of the pickle they stand in: each string of a
/// pickle is encoded once by an honest writer.
pub(super) const MAX_DERIVED_SLACK_BYTES: u64 = 1 << 20;

/// Axes of a tensor or array: torch and numpy both stop at 64.
pub(super) const MAX_RANK: usize = 64;

/// Storages named by one capture.
pub(super) const MAX_STORAGES: usize = 1 << 16;

/// Records in the zip directory: one for each storage and a handful more.
pub(super) const MAX_RECORDS: u64 = MAX_STORAGES as u64 + 64;

/// Bytes of the zip directory: 46 and a name for each record.
pub(super) const MAX_DIRECTORY_BYTES: u64 = 16 << 20;

/// Where the end of the directory is looked for: the longest comment, and the 22 bytes before it.
pub(super) const DIRECTORY_SEARCH_BYTES: u64 = (64 << 10) + 22;

/// False end-of-directory signatures looked past: a zip's comment may hold one.
pub(super) const MAX_FALSE_DIRECTORIES: usize = 16;

/// First read of a file in torch's old format; doubled until its pickles are in.
pub(super) const FIRST_LEGACY_READ_BYTES: u64 = 64 << 10;

/// Values counted in each place where they stand, as whoever walks them without a memory will meet them: a list of
/// ten lists of ten lists … is small in a file and in memory, and endless to walk.
pub(super) const MAX_UNFOLDED: u64 = 1 << 22;

/// Containers found inside themselves: what hangs on them cannot be shared and is written out in each place.
pub(super) const MAX_CYCLES: usize = 1 << 12;

/// Text of the path of a container that holds itself.
pub(super) const MAX_CYCLE_PATH_BYTES: usize = 4 << 10;

/// Nodes of a JSON rendering, where shared values are written out in each place.
pub(super) const MAX_JSON_NODES: usize = 1 << 17;

/// Bytes of text and hexadecimal digits in a JSON rendering, for the same reason.
pub(super) const MAX_JSON_TEXT_BYTES: usize = 64 << 20;

/// Values above this get no digests: a stride-0 tensor can have more logical bytes than any disk.
pub(super) const MAX_DIGESTED_TENSOR_BYTES: u64 = 64 << 20;

/// Bytes of values digested for one document beyond four times the file: many views of one storage are honest,
/// a million of them are not.
pub(super) const MAX_DIGESTED_SLACK_BYTES: u64 = 512 << 20;

/// Bytes read at a time while values or records are streamed.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// Bytes of values gathered at a time from a tensor that is not contiguous. Larger blocks make for longer reads
/// when a transposed matrix is read row by row.
pub(super) const GATHER_BYTES: u64 = 4 << 20;

/// Bytes from one element to the next above which a read of its own is cheaper than reading over the gap: about what
/// memory copies during one system call.
pub(super) const FAR_APART_BYTES: u64 = 1 << 10;

/// Elements digested for one document that are a read of their own each: a second or two.
pub(super) const MAX_DIGESTED_READS: u64 = 1 << 20;
