//! The frames that a worker and its runner exchange over a `SOCK_SEQPACKET` pair.
//!
//! Frames to the runner are trusted. They are encoded with postcard and may carry descriptors. Replies have a fixed
//! size, and every field is checked, because a candidate may have written them. A reply cannot carry descriptors,
//! because the receiver offers no room for them.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use opt_shared::capture::store::MAX_BLOBS;
use opt_shared::language::Launcher;
use opt_shared::wait::readable;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The largest size of a frame to a runner, in bytes. An entry with a thousand tensors of rank 8 fits.
pub const MAX_FRAME: usize = 128 * 1024;
/// The largest number of libraries that are loaded before an artifact, and of the graphs in one artifact.
pub const MAX_LIBRARIES: usize = 32;
/// The largest number of descriptors with one frame, which is also the limit of Linux. An entry needs at most four
/// (outputs, capture, materialised values, variants), and another one for each blob if its capture is in a store.
pub const MAX_DESCRIPTORS: usize = 253;
const _: () = assert!(MAX_LIBRARIES < MAX_DESCRIPTORS && MAX_BLOBS + 4 <= MAX_DESCRIPTORS);
/// The largest size of the text in a reply, in bytes.
pub const MAX_REPLY_TEXT: usize = 2048;
/// The text of a `Loaded` reply which says that the candidate returns its outputs.
const RETURNED: &str = "returned";
const REPLY_BYTES: usize = 8 + MAX_REPLY_TEXT;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToRunner {
    /// The first frame to a runner. Descriptor 0 is the artifact, and the others are its libraries.
    Setup(Setup),
    /// One entry. Descriptor 0 is the outputs' memory file. It is followed by the files with inputs, and then by the
    /// files with materialised values and with variants, if there are any.
    Entry(EntrySetup),
    /// Makes the process become a compiler. No other frame is sent to it.
    Compile(crate::runner::compile_order::CompileOrder),
    /// Says that everything is mapped, so that the runner must lock down.
    Begin,
    /// Says that the locked-down runner is watched, so that it must load the candidate and serve calls.
    Load,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    pub launcher: Launcher,
    pub symbol: String,
    /// The names of the libraries among the descriptors, in the order in which they are loaded.
    pub libraries: Vec<String>,
    pub confinement: crate::sandbox::confine::Confinement,
    /// The CPUs to which the runner pins itself.
    pub cpus: Vec<u32>,
    pub threads: u32,
    pub env: BTreeMap<String, String>,
    /// The interpreter, if the artifact needs one.
    pub python: Option<Python>,
    /// The artifact's name in tracebacks. It is `None` if a function of torch is called, because no artifact is loaded
    /// then.
    pub module: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Python {
    pub executable: PathBuf,
    /// The path of the interpreter's shared library.
    pub library: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntrySetup {
    pub inputs: Vec<InputRange>,
    pub arguments: Vec<WireArgument>,
    pub outputs: Vec<WireOutput>,
    /// True if inputs are mapped without read-ahead, so that a page fault reads only its own page.
    pub page_by_page: bool,
    /// True if all pages of the inputs are mapped before the first call. These pages are already in memory, and their
    /// size is accounted for.
    pub resident: bool,
    /// True if inputs lie in slots of a pool. Whole pages of the pool are then mapped in place, and each input starts
    /// at its phase.
    pub pooled: bool,
    /// The variants of each input that has variants.
    pub variants: Vec<VariantRange>,
    /// The call, for entries whose calls an interpreter makes.
    pub call: Option<WireCall>,
}

/// The call of an entry, in the form that an interpreter needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireCall {
    /// JSON: `call` (an `opt_shared::arguments::Call`), `tensors` as below, `outputs` with `path`, `dtype` and `shape`,
    /// and `state` (the arguments that are the state of a recorded model).
    pub text: String,
    /// The indices of the arguments that are tensors of the capture.
    pub tensors: Vec<u32>,
}

/// The variants of one input. They lie side by side in the worker's memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariantRange {
    /// The index of the input's range.
    pub range: u32,
    /// The offset of the region in the memory file. It is a multiple of the page size.
    pub file_offset: u64,
    /// The size of the region, which is a multiple of the page size.
    pub bytes: u64,
    /// The offset of the first variant in the region.
    pub data_offset: u64,
    /// The distance from one variant to the next.
    pub stride: u64,
    pub count: u32,
}

/// A range of a file that the runner maps as an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InputRange {
    /// The index of the file among the frame's descriptors, not counting the outputs' memory file.
    pub source: u8,
    pub file_offset: u64,
    pub bytes: u64,
    /// The address of the first byte modulo 64. It is the same as it was in PyTorch.
    pub address_phase: u8,
}

/// An argument of a call. A `Tensor` refers to its input range. An `Array` is a list of numbers, and contains their
/// bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum WireArgument {
    None,
    Int(i64),
    Bool(bool),
    Float(f64),
    Str(String),
    DType(WireType),
    Device { kind: i32, index: i32 },
    Tensor { range: u32, dtype: WireType, shape: Vec<i64>, stride: Vec<i64> },
    Array { dtype: WireType, elements: u64, bytes: Vec<u8> },
}

/// `DLDataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u8,
}

/// An output tensor of a call, and the memory of its slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WireOutput {
    pub dtype: WireType,
    pub shape: Vec<i64>,
    pub stride: Vec<i64>,
    /// The indices of the arguments that the call changes in place and whose new value is this output. Empty if the
    /// output is passed as a separate argument.
    pub arguments: Vec<u32>,
    /// The regions that contain the output's slots, which are numbered across all regions. Two regions may map the same
    /// bytes at different addresses.
    pub regions: Vec<OutputRegion>,
}

/// A part of the outputs' memfd, mapped between two guard pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRegion {
    /// The offset of the region in the memfd. It is a multiple of the page size.
    pub file_offset: u64,
    /// The size of the region, which is a multiple of the page size.
    pub bytes: u64,
    /// The offset of slot 0 in the region.
    pub data_offset: u64,
    pub slot_stride: u64,
    pub slots: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("sending a frame")]
    Send(#[source] rustix::io::Errno),
    #[error("receiving a frame")]
    Receive(#[source] rustix::io::Errno),
    #[error("the other process closed the socket")]
    Closed,
    #[error("a frame of {bytes} bytes is over the limit of {MAX_FRAME} bytes")]
    TooLong { bytes: usize },
    #[error("encoding or decoding a frame")]
    Encoding(#[source] postcard::Error),
    #[error("the frame is malformed: {what}")]
    Malformed { what: &'static str },
}

pub fn send_to_runner(
    socket: BorrowedFd<'_>,
    frame: &ToRunner,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), FrameError> {
    send_frame(socket, frame, descriptors)
}

/// Receives a frame from the worker. Called in a runner, or in a process that becomes a compiler.
pub fn receive_from_worker(socket: BorrowedFd<'_>) -> Result<(ToRunner, Vec<OwnedFd>), FrameError> {
    receive_frame(socket)
}

/// Sends a message with descriptors from one trusted process to another.
pub(crate) fn send_frame<T: Serialize>(
    socket: BorrowedFd<'_>,
    frame: &T,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), FrameError> {
    let bytes = postcard::to_stdvec(frame).map_err(FrameError::Encoding)?;
    if MAX_FRAME < bytes.len() {
        return Err(FrameError::TooLong { bytes: bytes.len() });
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(FrameError::Malformed { what: "it has too many descriptors" });
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).map(drop).map_err(|errno| {
        match errno {
            rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => FrameError::Closed,
            other => FrameError::Send(other),
        }
    })
}

/// Receives a message from a trusted process.
pub(crate) fn receive_frame<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> Result<(T, Vec<OwnedFd>), FrameError> {
    let mut bytes = vec![0u8; MAX_FRAME];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(FrameError::Receive(error)),
        }
    };
    if received.bytes == 0 {
        return Err(FrameError::Closed);
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let frame = postcard::from_bytes(&bytes[..received.bytes]).map_err(FrameError::Encoding)?;
    Ok((frame, descriptors))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The runner has locked down, before any code of the candidate ran. The text lists protections that are enforced
    /// (`+name: detail`) and protections that are missing (`-name: detail`).
    Locked { protections: String },
    Loaded {
        has_plan: bool,
        /// True if the candidate returns its outputs instead of writing them.
        returned: bool,
    },
    /// The candidate could not be loaded. The text says why.
    LoadFailed { text: String },
    /// The runner's own code failed, and not the candidate. A process that could not become a compiler sends this too.
    Failed { text: String },
}

pub fn send_reply(socket: BorrowedFd<'_>, reply: &Reply) -> Result<(), FrameError> {
    let (kind, text) = match reply {
        Reply::Loaded { has_plan, returned } => {
            (if *has_plan { 2u32 } else { 1 }, if *returned { RETURNED } else { "" })
        }
        Reply::LoadFailed { text } => (3, text.as_str()),
        Reply::Failed { text } => (4, text.as_str()),
        Reply::Locked { protections } => (5, protections.as_str()),
    };
    let mut frame = [0u8; REPLY_BYTES];
    let length = floor_char_boundary(text, MAX_REPLY_TEXT);
    frame[..4].copy_from_slice(&kind.to_le_bytes());
    #[expect(clippy::cast_possible_truncation, reason = "at most MAX_REPLY_TEXT")]
    frame[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    frame[8..8 + length].copy_from_slice(&text.as_bytes()[..length]);
    send(socket, &frame, SendFlags::NOSIGNAL).map(drop).map_err(FrameError::Send)
}

/// Receives a reply from a runner, which may be hostile. Returns `None` if nothing arrives within `timeout`.
pub fn receive_reply(socket: BorrowedFd<'_>, timeout: Duration) -> Result<Option<Reply>, FrameError> {
    if !readable(socket, timeout).map_err(FrameError::Receive)? {
        return Ok(None);
    }
    // The buffer is one byte longer than a frame, so that longer frames can be detected. It has no room for
    // descriptors, so none can arrive.
    let mut bytes = [0u8; REPLY_BYTES + 1];
    let length = match recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((length, _)) => length,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
        // The runner closed the socket before it had read all that was sent to it.
        Err(rustix::io::Errno::CONNRESET) => return Err(FrameError::Closed),
        Err(error) => return Err(FrameError::Receive(error)),
    };
    if length == 0 {
        return Err(FrameError::Closed);
    }
    parse_reply(&bytes[..length]).map(Some)
}

fn parse_reply(frame: &[u8]) -> Result<Reply, FrameError> {
    let malformed = |what| FrameError::Malformed { what };
    if frame.len() != REPLY_BYTES {
        return Err(malformed("its length is wrong"));
    }
    let word = |at: usize| u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
    let length = usize::try_from(word(4)).unwrap_or(usize::MAX);
    if MAX_REPLY_TEXT < length {
        return Err(malformed("its text is too long"));
    }
    let text = String::from_utf8_lossy(&frame[8..8 + length]).into_owned();
    match word(0) {
        kind @ (1 | 2) => Ok(Reply::Loaded { has_plan: kind == 2, returned: text == RETURNED }),
        3 => Ok(Reply::LoadFailed { text }),
        4 => Ok(Reply::Failed { text }),
        5 => Ok(Reply::Locked { protections: text }),
        _ => Err(malformed("its kind is unknown")),
    }
}

fn floor_char_boundary(text: &str, at_most: usize) -> usize {
    let mut length = text.len().min(at_most);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    length
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair")
    }

    #[test]
    fn replies_round_trip() {
        let (worker, runner) = pair();
        for reply in [
            Reply::Locked { protections: "+landlock: ABI 7".into() },
            Reply::Loaded { has_plan: true, returned: false },
            Reply::Loaded { has_plan: false, returned: true },
            Reply::LoadFailed { text: "undefined symbol: run".into() },
            Reply::Failed { text: "é".repeat(2000) },
        ] {
            send_reply(runner.as_fd(), &reply).expect("sent");
            let got =
                receive_reply(worker.as_fd(), Duration::from_secs(5)).expect("well formed").expect("in time");
            match (&reply, &got) {
                (Reply::Failed { .. }, Reply::Failed { text }) => {
                    assert_eq!(text, &"é".repeat(MAX_REPLY_TEXT / 2));
                }
                _ => assert_eq!(reply, got),
            }
        }
    }

    #[test]
    fn closed_socket_is_an_error() {
        let (worker, runner) = pair();
        drop(runner);
        assert!(matches!(receive_reply(worker.as_fd(), Duration::ZERO), Err(FrameError::Closed)));
        let (worker, runner) = pair();
        send_to_runner(worker.as_fd(), &ToRunner::Begin, &[]).expect("sent");
        drop(runner);
        assert!(matches!(receive_reply(worker.as_fd(), Duration::ZERO), Err(FrameError::Closed)), "unread");
    }

    proptest! {
        #[test]
        fn malformed_replies_never_panic(
            frame in proptest::collection::vec(any::<u8>(), 1..REPLY_BYTES + 200)
        ) {
            let (worker, runner) = pair();
            send(runner.as_fd(), &frame, SendFlags::NOSIGNAL).expect("sent");
            match receive_reply(worker.as_fd(), Duration::from_secs(5)) {
                Ok(Some(Reply::Loaded { .. })) => {}
                Ok(Some(Reply::Locked { protections: text } | Reply::LoadFailed { text } | Reply::Failed { text })) => {
                    prop_assert!(text.len() <= 3 * MAX_REPLY_TEXT);
                }
                Ok(None) => prop_assert!(false, "a frame was there"),
                Err(_) => {}
            }
        }
    }
}
