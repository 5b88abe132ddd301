//! Tests how little opening a capture reads: of a zip, only the directory, the local headers and small records.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use opt_shared::capture::{CaptureFile, Value};

/// The number of bytes that this thread has read, as Linux counts them.
fn bytes_read() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/io").expect("Linux counts reads");
    let line = text.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.and_then(|count| count.parse().ok()).expect("rchar is a number")
}

/// The most bytes that opening may read from a file with a few records.
const MAX_READ: u64 = 64 << 10;

fn opened(path: &Path) -> (CaptureFile, u64) {
    let before = bytes_read();
    let capture = CaptureFile::open(path).unwrap_or_else(|error| panic!("{error}"));
    (capture, bytes_read() - before)
}

#[test]
fn opening_a_fixture_reads_at_most_80_kib() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    for (name, most) in [
        ("formats/slice_of_large_storage.pt", 8 << 10),
        ("formats/page_aligned.pt", 8 << 10),
        ("captures/torch_nn_functional_embedding/entry_000001.pt", 8 << 10),
        ("captures/torch_nn_functional_linear/entry_000000.pt", 8 << 10),
        // The old format has no directory, so its beginning is read in one piece.
        ("formats/legacy_views.pt", 80 << 10),
    ] {
        let (capture, read) = opened(&data.join(name));
        assert!(read < most, "{name}: {read} bytes of {}", capture.file_bytes());
    }
}

const GIB: u64 = 1 << 30;

/// Makes a directory entry of the sparse file below, with its sizes and offset in a zip64 field.
fn entry(name: &str, bytes: u64, offset: u64, crc32: u32) -> Vec<u8> {
    let mut entry = b"PK\x01\x02\x2d\x00\x2d\x00\x08\x08\0\0\0\0\0\0".to_vec();
    entry.extend(crc32.to_le_bytes());
    entry.extend([0xff; 8]);
    entry.extend(u16::try_from(name.len()).expect("small").to_le_bytes());
    entry.extend(28u16.to_le_bytes());
    entry.extend([0; 10]);
    entry.extend([0xff; 4]);
    entry.extend(name.as_bytes());
    entry.extend([1, 0, 24, 0]);
    entry.extend([bytes, bytes, offset].iter().flat_map(|field| field.to_le_bytes()));
    entry
}

/// Makes a header as torch writes it: the sizes follow the data, and padding aligns the data.
fn local_header(name: &str, padding: u16) -> Vec<u8> {
    let mut header = b"PK\x03\x04\x2d\x00\x08\x08\0\0\0\0\0\0".to_vec();
    header.extend([0; 12]);
    header.extend(u16::try_from(name.len()).expect("small").to_le_bytes());
    header.extend((padding + 4).to_le_bytes());
    header.extend(name.as_bytes());
    header.extend(b"FB");
    header.extend(padding.to_le_bytes());
    header.extend(vec![b'Z'; usize::from(padding)]);
    header
}

/// Writes two storages: one of 5 GiB, and one of 16 bytes after it. They have no CRCs, as with
/// `set_crc32_options(False)`.
fn write_sparse(path: &Path) -> u64 {
    let large = 5 * GIB;
    let storage = |key: &str, elements: &[u8]| {
        [
            &b"((U\x07storagectorch\nFloatStorage\nU\x01"[..],
            key.as_bytes(),
            b"U\x03cpu",
            elements,
            b"tQK\0K\x04\x85K\x01\x85\x89}t",
        ]
        .concat()
    };
    // 5 GiB of float32 are 0x5000_0000 elements.
    let pickle = [
        &b"\x80\x02(ctorch._utils\n_rebuild_tensor_v2\nq\0"[..],
        &storage("0", b"J\0\0\0\x50"),
        b"Rh\0",
        &storage("1", b"K\x04"),
        b"Rt.",
    ]
    .concat();
    let file = File::create(path).expect("a file");
    let mut at = 0;
    let mut directory = Vec::new();
    let mut write = |name: &str, data: &[u8], bytes: u64, padding: u16| {
        let header = local_header(name, padding);
        file.write_all_at(&header, at).expect("written");
        let start = at + header.len() as u64;
        file.write_all_at(data, start).expect("written");
        directory.extend(entry(name, bytes, at, 0));
        at = start + bytes + 24;
        start
    };
    write("big/data.pkl", &pickle, pickle.len() as u64, 11);
    write("big/data/0", &[], large, 100);
    let data_offset = write("big/data/1", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], 16, 63);
    let size = directory.len() as u64;
    let mut end = directory;
    let zip64_at = at + size;
    end.extend(b"PK\x06\x06");
    end.extend(44u64.to_le_bytes());
    end.extend(b"\x2d\x00\x2d\x00\0\0\0\0\0\0\0\0");
    end.extend([3, 3, size, at].iter().flat_map(|field: &u64| field.to_le_bytes()));
    end.extend(b"PK\x06\x07\0\0\0\0");
    end.extend(zip64_at.to_le_bytes());
    end.extend(1u32.to_le_bytes());
    end.extend(b"PK\x05\x06\0\0\0\0\x03\0\x03\0");
    end.extend([0xff; 8]);
    end.extend([0, 0]);
    file.write_all_at(&end, at).expect("written");
    data_offset
}

#[test]
fn zip64_file_of_5_gib_is_opened_by_reading_a_few_kib() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("big.pt");
    let data_offset = write_sparse(&path);
    assert!(data_offset > 4 * GIB);
    let (capture, read) = opened(&path);
    assert!(read < MAX_READ, "{read} bytes");
    assert_eq!(capture.storages().len(), 2);
    assert_eq!(capture.storages()[0].bytes.get(), 5 * GIB);
    assert_eq!(capture.storages()[1].file_offset, data_offset);
    let Value::Sequence { items, .. } = capture.root() else { panic!("no tuple") };
    let Value::Tensor(last) = &items[1] else { panic!("no tensor") };
    let mut values = [0; 16];
    capture.read_range(last.storage, 0, &mut values).expect("the values");
    assert_eq!(values, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
    let beyond = capture.read_range(last.storage, 1, &mut values).expect_err("it leaves the storage");
    assert_eq!(beyond.kind.name(), "out_of_bounds");
    let overflow =
        capture.read_range(last.storage, u64::MAX, &mut values).expect_err("it leaves the storage");
    assert_eq!(overflow.kind.name(), "out_of_bounds");
}

#[test]
fn file_that_becomes_shorter_is_truncated() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("big.pt");
    write_sparse(&path);
    let capture = CaptureFile::open(&path).expect("a capture");
    File::options().write(true).open(&path).expect("the file").set_len(GIB).expect("shorter");
    let error = capture.read_range(capture.storages()[1].id, 0, &mut [0; 4]).expect_err("it is gone");
    assert_eq!(error.kind.name(), "truncated");
}
