//! Every limit of the capture reader, with its reason.
//!
//! The limits bound what a hostile file can cost. They do not restrict real captures, which contain a few dozen tensors
//! and a few KiB of pickle. A file that exceeds a limit gets an error of kind `limit`.

/// Bytes of a pickle. Tensors are stored outside it, so only a capture with huge numpy arrays comes close.
pub(super) const MAX_PICKLE_BYTES: u64 = 64 << 20;

/// Bytes of a string or bytes object. This is half a pickle, far more than any name or small numpy array needs.
pub(super) const MAX_STRING_BYTES: u64 = 32 << 20;

/// Bytes of a text opcode's line: the module of a global, an integer in decimal, or a string in protocol 0.
pub(super) const MAX_LINE_BYTES: usize = 64 << 10;

/// Bytes of an integer. Conversion to decimal is quadratic, and Python itself stops at 4300 digits.
pub(super) const MAX_INTEGER_BYTES: usize = 1786;

/// Digits of an integer written in decimal. The reason is the same.
pub(super) const MAX_INTEGER_DIGITS: usize = 4300;

/// Objects created while a pickle is read. Each takes some 50 bytes, and the same again when it is converted to a
/// value.
pub(super) const MAX_NODES: usize = 1 << 18;

/// Slots charged for a dict or set in addition to its items, for the size of its hash table.
pub(super) const TABLE_SLOTS: usize = 8;

/// Slots charged for a tensor or array in addition to its shape.
pub(super) const TENSOR_SLOTS: usize = 16;

/// Slots in all containers of a pickle. A shared object counts once for each container that it is in.
pub(super) const MAX_SLOTS: usize = 1 << 20;

/// Slots on the stack. A container collects all of its items there before it is closed.
pub(super) const MAX_STACK: usize = MAX_SLOTS;

/// Open marks, that is, nested containers that are not closed yet.
pub(super) const MAX_MARKS: usize = 1 << 12;

/// Entries of the memo; the pickler makes one for each object.
pub(super) const MAX_MEMO: usize = MAX_NODES;

/// Nesting of containers. Values are visited and dropped by recursion, which must fit into the smallest stack of our
/// threads.
pub(super) const MAX_DEPTH: usize = 200;

/// Bytes that calls such as `_codecs.encode` may create beyond the size of the pickle. An honest pickle encodes
/// each string once.
pub(super) const MAX_DERIVED_SLACK_BYTES: u64 = 1 << 20;

/// Axes of a tensor or array; torch and numpy both stop at 64.
pub(super) const MAX_RANK: usize = 64;

/// Storages in a capture.
pub(super) const MAX_STORAGES: usize = 1 << 16;

/// Records in the zip directory: one for each storage, and a few more.
pub(super) const MAX_RECORDS: u64 = MAX_STORAGES as u64 + 64;

/// Bytes of the zip directory. Each record has 46 bytes and its name.
pub(super) const MAX_DIRECTORY_BYTES: u64 = 16 << 20;

/// Bytes at the end of a file in which the end of the directory is searched: the longest comment and the 22 bytes
/// before it.
pub(super) const DIRECTORY_SEARCH_BYTES: u64 = (64 << 10) + 22;

/// False end-of-directory signatures that are skipped. A zip's comment may contain one.
pub(super) const MAX_FALSE_DIRECTORIES: usize = 16;

/// Size of the first read of a file in torch's old format. It is doubled until the pickles are complete.
pub(super) const FIRST_LEGACY_READ_BYTES: u64 = 64 << 10;

/// Values, counted at each occurrence, because code that visits them does not remember which ones it has seen. A list
/// of ten lists of ten lists … is small in a file and in memory, but visiting it takes forever.
pub(super) const MAX_UNFOLDED: u64 = 1 << 22;

/// Containers found inside themselves. Their contents cannot be shared, and are written out at each occurrence.
pub(super) const MAX_CYCLES: usize = 1 << 12;

/// Bytes of the path of a container that contains itself.
pub(super) const MAX_CYCLE_PATH_BYTES: usize = 4 << 10;

/// Nodes of a JSON rendering, which writes shared values out at each occurrence.
pub(super) const MAX_JSON_NODES: usize = 1 << 17;

/// Bytes of text and hexadecimal digits in a JSON rendering. The reason is the same.
pub(super) const MAX_JSON_TEXT_BYTES: usize = 64 << 20;

/// Largest tensor with digests. A tensor with stride 0 can have more logical bytes than any disk.
pub(super) const MAX_DIGESTED_TENSOR_BYTES: u64 = 64 << 20;

/// Bytes of values digested for a document, in addition to four times the file's size. A storage may well have many
/// views, but not a million.
pub(super) const MAX_DIGESTED_SLACK_BYTES: u64 = 512 << 20;

/// Bytes read at a time while values or records are streamed.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// Bytes of values gathered at a time from a tensor that is not contiguous. When a transposed matrix is read row by
/// row, larger blocks make longer reads possible.
pub(super) const GATHER_BYTES: u64 = 4 << 20;

/// Distance between elements, in bytes, above which separate reads are cheaper than reading the gap. It is about the
/// amount that a memory copy moves during one system call.
pub(super) const FAR_APART_BYTES: u64 = 1 << 10;

/// Elements read one by one for the digests of a document. They take a second or two.
pub(super) const MAX_DIGESTED_READS: u64 = 1 << 20;
