//! Functions that pass untrusted bytes to the code that reads them. They are used by the fuzzers in `fuzz/`, by
//! `mutate` of `opt-tools`, and by the test that replays the corpora.
//!
//! Each function ignores the reader's result. It is a bug if the reader panics, hangs, or uses too much memory. The
//! caller must detect hangs and the use of memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use opt_shared::arguments::{Entry, SignatureBuilder, bind, outputs};
use opt_shared::capture::CaptureFile;
use opt_shared::capture::inspect::{document, tree};
use opt_shared::capture::store::{INDEX, Index, Manifest};
use opt_shared::replay::Recording;
use opt_supervisor::control::understands;
use opt_supervisor::plan::Plan;
use opt_worker::runner::frame::{receive_from_worker, receive_reply};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use crate::paths::{data, repository};

/// A reader of untrusted bytes, with its name.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

pub const TARGETS: [Target; 8] = [
    Target { name: "archive", run: capture },
    Target { name: "pickle", run: |bytes| capture(&zip_around(bytes)) },
    Target { name: "legacy", run: |bytes| capture(&legacy_around(bytes)) },
    Target { name: "store", run: store },
    Target { name: "recording", run: recording },
    Target { name: "frame", run: frame },
    Target { name: "control", run: |line| _ = understands(line) },
    Target { name: "plan", run: plan },
];

/// Returns the target with this name. Panics if there is none.
pub fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no target is called {name}"))
}

/// Returns the seeds of a target: its corpus in the repository and, if it reads captures, the fixtures too. Small seeds
/// come first.
pub fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let mut inputs = files_of(&repository().join("fuzz/corpus").join(target.name));
    let fixtures = || files_of(&data("formats"));
    match target.name {
        "archive" => inputs.extend(fixtures()),
        "pickle" => inputs.extend(fixtures().iter().filter_map(|file| pickle_of(file))),
        "legacy" => inputs.extend(fixtures().into_iter().filter_map(|file| legacy_rest(&file))),
        _ => {}
    }
    inputs.sort_by_key(Vec::len);
    inputs
}

fn files_of(folder: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|it| it.is_file()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a readable input")).collect()
}

/// Reads a capture up to its tensors, binds its arguments, and computes its digests.
fn capture(bytes: &[u8]) {
    let memory =
        rustix::fs::memfd_create("opt-hostile", rustix::fs::MemfdFlags::CLOEXEC).expect("a memory file");
    let mut file = File::from(memory);
    file.write_all(bytes).expect("room for the input");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = Path::new(&path);
    if let Ok(opened) = CaptureFile::open(path) {
        drop(tree(&opened));
        if let Ok(entry) = Entry::from_value(opened.root()) {
            drop(outputs(&entry));
            let mut builder = SignatureBuilder::new(None, BTreeMap::new());
            builder.observe("entry", &entry);
            if let Ok(signature) = builder.finish() {
                drop(bind(&entry, &signature));
            }
        }
    }
    drop(document(path, true));
}

/// Wraps a pickle in the simplest possible capture. All CRCs are 0, so the reader does not check them.
fn zip_around(pickle: &[u8]) -> Vec<u8> {
    let records: [(&str, &[u8]); 4] =
        [("a/data.pkl", pickle), ("a/data/0", &[7; 256]), ("a/data/1", &[9; 64]), ("a/version", b"3\n")];
    let (mut zip, mut directory) = (Vec::new(), Vec::new());
    let short = |number: usize| u16::try_from(number).expect("a short name").to_le_bytes();
    let long = |number: usize| u32::try_from(number).expect("a small input").to_le_bytes();
    for (name, data) in records {
        let size = long(data.len());
        let fields = [&[0; 8][..], &[0; 4], &size, &size, &short(name.len()), &[0; 2]].concat();
        directory.extend(
            [&b"PK\x01\x02\x14\0\x14\0"[..], &fields, &[0; 10], &long(zip.len()), name.as_bytes()].concat(),
        );
        zip.extend([&b"PK\x03\x04\x14\0"[..], &fields, name.as_bytes(), data].concat());
    }
    let (start, count) = (zip.len(), short(records.len()));
    zip.extend(&directory);
    zip.extend(
        [&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &long(directory.len()), &long(start), &[0; 2]].concat(),
    );
    zip
}

/// The first pickle of a file in torch's old format. The reader refuses a file that does not begin with it.
const LEGACY_MAGIC: &[u8] = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.";

fn legacy_around(rest: &[u8]) -> Vec<u8> {
    [LEGACY_MAGIC, rest].concat()
}

fn legacy_rest(file: &[u8]) -> Option<Vec<u8>> {
    file.strip_prefix(LEGACY_MAGIC).map(<[u8]>::to_vec)
}

/// Returns the pickle of a capture that torch wrote. It is the file's first record, and ends where the record's
/// descriptor begins.
fn pickle_of(file: &[u8]) -> Option<Vec<u8>> {
    let find =
        |what: &[u8], from: usize| Some(from + file[from..].windows(what.len()).position(|it| it == what)?);
    let start = find(b"\x80\x02", find(b"data.pkl", 0)?)?;
    Some(file[start..find(b"PK\x07\x08", start)?].to_vec())
}

/// Reads the bytes as a manifest, and as an index with a valid digest.
fn store(bytes: &[u8]) {
    drop(Manifest::parse(bytes));
    let line = format!("{}  {INDEX}\n", blake3::hash(bytes).to_hex());
    drop(Index::parse(bytes, line.as_bytes()));
}

/// Reads the bytes as a recording, once unchanged and once with a valid digest.
fn recording(bytes: &[u8]) {
    drop(Recording::decode(bytes));
    let sealed = [bytes, blake3::hash(bytes).as_bytes()].concat();
    drop(Recording::decode(&sealed));
}

/// Reads the bytes as a message, once as a runner does and once as a worker does.
fn frame(bytes: &[u8]) {
    let pair = || {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("two sockets")
    };
    for receive in [
        |socket: &std::os::fd::OwnedFd| drop(receive_reply(std::os::fd::AsFd::as_fd(socket), Duration::ZERO)),
        |socket: &std::os::fd::OwnedFd| drop(receive_from_worker(std::os::fd::AsFd::as_fd(socket))),
    ] {
        let (one, other) = pair();
        // An empty packet would be read as the end of the stream, and a packet that is too long cannot be sent.
        if !bytes.is_empty() && send(&one, bytes, SendFlags::NOSIGNAL).is_ok() {
            receive(&other);
        }
    }
}

fn plan(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    // The folder does not exist, so the relative globs of a mutated plan find no files.
    if let Err(errors) = Plan::parse(&text, Path::new("/nonexistent/plan.toml"), &[]) {
        drop(errors.render(false));
    }
}
