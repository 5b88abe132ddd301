//! Defines the limits of the capture reader, with their reasons.
//!
//! The limits bound the time and memory that a hostile file can cost, and are far above what real captures need. Unless
//! a limit says otherwise, a file that exceeds it gets an error of kind `limit`.

/// The maximum number of bytes of a pickle. Tensors are stored outside it, so only a capture with huge numpy arrays
/// comes close.
pub(super) const MAX_PICKLE_BYTES: u64 = 64 << 20;

/// The maximum number of bytes of a string, bytes or bytearray object: half of the largest pickle.
pub(super) const MAX_STRING_BYTES: u64 = 32 << 20;

/// The maximum number of bytes of a text opcode's line: for example, the module of a global, an integer in decimal, or
/// a string in protocol 0.
pub(super) const MAX_LINE_BYTES: usize = 64 << 10;

/// The maximum number of bytes of an integer. Conversion to decimal is quadratic, and Python itself stops at 4300
/// digits.
pub(super) const MAX_INTEGER_BYTES: usize = 1786;

/// The maximum number of characters of an integer written in decimal, for the same reason as `MAX_INTEGER_BYTES`.
pub(super) const MAX_INTEGER_DIGITS: usize = 4300;

/// The maximum number of objects created while a pickle is read. Each takes some 50 bytes, and the same again when it
/// is converted to a value.
pub(super) const MAX_NODES: usize = 1 << 18;

/// The number of slots that are charged for a dict or set in addition to its items, because its hash table takes memory
/// too. (A slot is the memory for one item of a container.)
pub(super) const TABLE_SLOTS: usize = 8;

/// The number of slots charged for a tensor or array in addition to its shape.
pub(super) const TENSOR_SLOTS: usize = 16;

/// The maximum number of slots in all containers of a pickle. An object that several containers share takes a slot in
/// each of them.
pub(super) const MAX_SLOTS: usize = 1 << 20;

/// The maximum number of slots on the stack. It must be this large because all items of a container are on the stack
/// before the container is closed.
pub(super) const MAX_STACK: usize = MAX_SLOTS;

/// The maximum number of open marks, that is, of nested containers that are not closed yet.
pub(super) const MAX_MARKS: usize = 1 << 12;

/// The maximum number of entries of the memo. The pickler makes at most one for each object.
pub(super) const MAX_MEMO: usize = MAX_NODES;

/// The maximum depth of nested containers. Values are visited and dropped by recursion, which must fit into the
/// smallest stack of our threads.
pub(super) const MAX_DEPTH: usize = 200;

/// The maximum number of bytes that calls such as `_codecs.encode` may create in addition to the size of the pickle. A
/// normal pickle encodes each string only once.
pub(super) const MAX_DERIVED_SLACK_BYTES: u64 = 1 << 20;

/// The maximum number of axes of a tensor or array. Torch and numpy both stop at 64.
pub(super) const MAX_RANK: usize = 64;

/// The maximum number of storages in a capture.
pub(super) const MAX_STORAGES: usize = 1 << 16;

/// The maximum number of records in the zip directory: one for each storage, and a few more.
pub(super) const MAX_RECORDS: u64 = MAX_STORAGES as u64 + 64;

/// The maximum number of bytes of the zip directory. Each record has 46 bytes and its name.
pub(super) const MAX_DIRECTORY_BYTES: u64 = 16 << 20;

/// The number of bytes at the end of a file that are searched for the end of the directory. They include the longest
/// possible comment and the 22 bytes before it.
pub(super) const DIRECTORY_SEARCH_BYTES: u64 = (64 << 10) + 22;

/// The maximum number of end-of-directory signatures that are tried. A zip's comment may contain false ones. Further
/// signatures are ignored.
pub(super) const MAX_TRIED_DIRECTORIES: usize = 16;

/// The size of the first read of a file in torch's old format. It is doubled until the pickles are complete.
pub(super) const FIRST_LEGACY_READ_BYTES: u64 = 64 << 10;

/// The maximum number of values, where a shared value is counted at each occurrence, because code that visits values
/// does not remember which ones it has seen. Without this limit, a list that contains one list ten times, which again
/// contains one list ten times, and so on, would be small in a file and in memory, but would take forever to visit.
pub(super) const MAX_UNFOLDED: u64 = 1 << 22;

/// The maximum number of occurrences of containers inside themselves. The contents of such containers cannot be shared,
/// so they are written out at each occurrence.
pub(super) const MAX_CYCLES: usize = 1 << 12;

/// The maximum number of bytes of the path of a container that contains itself.
pub(super) const MAX_CYCLE_PATH_BYTES: usize = 4 << 10;

/// The maximum number of nodes of a JSON rendering, which writes shared values out at each occurrence.
pub(super) const MAX_JSON_NODES: usize = 1 << 17;

/// The maximum number of bytes of text and hexadecimal digits in a JSON rendering, for the same reason.
pub(super) const MAX_JSON_TEXT_BYTES: usize = 64 << 20;

/// The maximum number of bytes of a tensor whose digests are computed. A larger tensor gets no digests, which is not an
/// error. The limit is needed because a tensor with stride 0 can have more logical bytes than any disk.
pub(super) const MAX_DIGESTED_TENSOR_BYTES: u64 = 64 << 20;

/// The maximum number of bytes of values digested for a document, in addition to four times the file's size. The limit
/// allows a storage to have many views, but not a million.
pub(super) const MAX_DIGESTED_SLACK_BYTES: u64 = 512 << 20;

/// The number of bytes read at a time while values or records are streamed.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// The number of bytes of values gathered at a time from a tensor that is not contiguous. Larger blocks allow longer
/// reads, for example from a transposed matrix.
pub(super) const GATHER_BYTES: u64 = 4 << 20;

/// The distance between elements, in bytes, above which each element is treated as a separate read. A system call takes
/// about as long as copying this many bytes in memory.
pub(super) const FAR_APART_BYTES: u64 = 1 << 10;

/// The maximum number of elements read one by one for the digests of a document. Reading them takes a second or two.
pub(super) const MAX_DIGESTED_READS: u64 = 1 << 20;

/// The maximum number of bytes read for the digests of a document's tensors. If the rows of a view are interleaved,
/// parts of its storage are read many times. From the page cache, reading this many takes about 15 seconds.
pub(super) const MAX_DIGESTED_READ_BYTES: u64 = 64 << 30;
