//! Writes the zip container of a `.pt` file, byte for byte like PyTorch's writer.
//!
//! This module writes headers, alignment, CRCs and the directory. `capture.rs` decides what the records contain.
//!
//! Every real file has the following peculiarities of PyTorch's writer (a modified miniz), so this writer reproduces
//! them:
//!
//! - Records are stored, not compressed.
//! - The sizes and the CRC follow the payload, in a data descriptor (flag bit 3). The local header has zeros in their
//!   place.
//! - An extra field `FB` in the local header, filled with `Z`, aligns the payload to a multiple of 64.
//! - "Version needed" and all dates are 0.
//! - Sizes and offsets of 2^32 − 1 or more are in a Zip64 extra field, in the local header too, and make the sizes in
//!   the descriptor 8 bytes wide.
//! - The directory ends with both a Zip64 end record and an ordinary end record.

use std::io::{self, Write};

use opt_shared::units::to_index;

/// The alignment of payloads, in bytes. It makes it possible to map a storage and read it with aligned vector loads.
const PAYLOAD_ALIGNMENT: u64 = 64;
/// The smallest size or offset that needs Zip64. The plain fields use their highest value to say that Zip64 applies.
const ZIP64_FROM: u64 = u32::MAX as u64;
/// Bit 3: a data descriptor follows; bit 11: names are UTF-8.
const FLAGS: u16 = 0x0808;
/// The two version fields of the Zip64 end record, as miniz writes them: "Unix, 3.0" and "needs Zip64".
const ZIP64_MADE_BY: u16 = 0x031e;
const ZIP64_NEEDED: u16 = 45;
/// The size of a local header up to the record's name: the signature and the fixed fields.
const LOCAL_HEADER_BYTES: u64 = 30;
/// The size of the identifier and the length of an extra field.
const EXTRA_FIELD_HEAD_BYTES: u64 = 4;

/// A record's entry in the directory.
#[derive(Clone, Debug)]
struct Record {
    name: String,
    size: u64,
    offset: u64,
    crc32: u32,
}

impl Record {
    /// Returns the Zip64 extra field, with the sizes and the offset that are too large for the header. It is empty if
    /// all of them fit.
    fn zip64_field(&self) -> Vec<u8> {
        let mut values = Vec::new();
        if self.size >= ZIP64_FROM {
            values.extend([self.size, self.size]);
        }
        if self.offset >= ZIP64_FROM {
            values.push(self.offset);
        }
        let mut field = Vec::new();
        if !values.is_empty() {
            field.extend(1_u16.to_le_bytes());
            field.extend(in_16_bits(8 * values.len()));
            field.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        field
    }

    fn local_header(&self) -> Vec<u8> {
        let mut extra = self.zip64_field();
        let unpadded = self.offset
            + LOCAL_HEADER_BYTES
            + self.name.len() as u64
            + extra.len() as u64
            + EXTRA_FIELD_HEAD_BYTES;
        let padding = unpadded.next_multiple_of(PAYLOAD_ALIGNMENT) - unpadded;
        extra.extend(b"FB");
        extra.extend(in_16_bits(to_index(padding)));
        extra.extend((0..padding).map(|_| b'Z'));

        let mut header = b"PK\x03\x04\0\0".to_vec();
        header.extend(FLAGS.to_le_bytes());
        header.extend([0; 18]); // method, time, date, CRC and sizes
        header.extend(in_16_bits(self.name.len()));
        header.extend(in_16_bits(extra.len()));
        header.extend(self.name.as_bytes());
        header.extend(extra);
        header
    }

    fn descriptor(&self) -> Vec<u8> {
        let mut descriptor = b"PK\x07\x08".to_vec();
        descriptor.extend(self.crc32.to_le_bytes());
        // These are the compressed and the uncompressed size, which are equal.
        for _ in 0..2 {
            if self.zip64_field().is_empty() {
                descriptor.extend(at_most_32_bits(self.size));
            } else {
                descriptor.extend(self.size.to_le_bytes());
            }
        }
        descriptor
    }

    fn central_header(&self) -> Vec<u8> {
        let extra = self.zip64_field();
        let mut header = b"PK\x01\x02\0\0\0\0".to_vec();
        header.extend(FLAGS.to_le_bytes());
        header.extend([0; 6]); // method, time, date
        header.extend(self.crc32.to_le_bytes());
        header.extend(at_most_32_bits(self.size));
        header.extend(at_most_32_bits(self.size));
        header.extend(in_16_bits(self.name.len()));
        header.extend(in_16_bits(extra.len()));
        header.extend([0; 10]); // comment, disk, attributes
        header.extend(at_most_32_bits(self.offset));
        header.extend(self.name.as_bytes());
        header.extend(extra);
        header
    }
}

/// Encodes a length in a record's header. Lengths of names, and of extra fields with their padding, always fit.
fn in_16_bits(length: usize) -> [u8; 2] {
    u16::try_from(length).expect("a name and its padding are far shorter").to_le_bytes()
}

/// Encodes a 32-bit field of a header: the value, or all ones if the value is in a Zip64 field.
fn at_most_32_bits(value: u64) -> [u8; 4] {
    u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes()
}

/// Encodes the end of the directory: the Zip64 end record, which PyTorch always writes, and the ordinary end record.
fn end_of_directory(records: u64, directory_offset: u64, directory_size: u64) -> Vec<u8> {
    let mut end = b"PK\x06\x06".to_vec();
    end.extend(44_u64.to_le_bytes()); // bytes of this record from here on
    end.extend(ZIP64_MADE_BY.to_le_bytes());
    end.extend(ZIP64_NEEDED.to_le_bytes());
    end.extend([0; 8]); // disks
    for value in [records, records, directory_size, directory_offset] {
        end.extend(value.to_le_bytes());
    }
    end.extend(b"PK\x06\x07\0\0\0\0");
    end.extend((directory_offset + directory_size).to_le_bytes());
    end.extend(1_u32.to_le_bytes()); // disks
    end.extend(b"PK\x05\x06\0\0\0\0");
    let short_count = u16::try_from(records).unwrap_or(u16::MAX).to_le_bytes();
    end.extend(short_count);
    end.extend(short_count);
    end.extend(at_most_32_bits(directory_size));
    end.extend(at_most_32_bits(directory_offset));
    end.extend([0; 2]); // comment
    end
}

/// A writer of records, one after the other. It keeps only their directory entries in memory.
pub(crate) struct Archive<W> {
    sink: W,
    position: u64,
    folder: String,
    records: Vec<Record>,
}

impl<W: Write> Archive<W> {
    /// Creates a writer. The name of every record starts with `folder`, which PyTorch derives from the name of the
    /// file.
    pub(crate) fn new(sink: W, folder: &str) -> Self {
        Self { sink, position: 0, folder: folder.to_owned(), records: Vec::new() }
    }

    /// Writes one record, which consists of exactly `size` bytes that `fill` writes.
    pub(crate) fn record(
        &mut self,
        name: &str,
        size: u64,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let name = format!("{}/{name}", self.folder);
        let mut record = Record { name, size, offset: self.position, crc32: 0 };
        self.put(&record.local_header())?;
        let mut payload = Payload { sink: &mut self.sink, hasher: crc32fast::Hasher::new(), written: 0 };
        fill(&mut payload)?;
        let Payload { hasher, written, .. } = payload;
        self.position += written;
        if written != size {
            let text = format!("record `{}` was announced with {size} bytes and has {written}", record.name);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        record.crc32 = hasher.finalize();
        self.put(&record.descriptor())?;
        self.records.push(record);
        Ok(())
    }

    pub(crate) fn bytes(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.record(name, bytes.len() as u64, |sink| sink.write_all(bytes))
    }

    pub(crate) fn checksums(&self) -> impl Iterator<Item = (&str, u32)> {
        self.records.iter().map(|record| (record.name.as_str(), record.crc32))
    }

    pub(crate) fn finish(mut self) -> io::Result<W> {
        let directory_offset = self.position;
        let records = std::mem::take(&mut self.records);
        for record in &records {
            self.put(&record.central_header())?;
        }
        let directory_size = self.position - directory_offset;
        self.put(&end_of_directory(records.len() as u64, directory_offset, directory_size))?;
        Ok(self.sink)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sink.write_all(bytes)?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}

struct Payload<'sink, W> {
    sink: &'sink mut W,
    hasher: crc32fast::Hasher,
    written: u64,
}

impl<W: Write> Write for Payload<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.sink.write(bytes)?;
        self.hasher.update(&bytes[..taken]);
        self.written += taken as u64;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn record(name: &str, size: u64, offset: u64, crc32: u32) -> Record {
        Record { name: name.to_owned(), size, offset, crc32 }
    }

    /// The expected bytes come from a file that torch 2.15 saved. It has one storage of 4.4 GB, so sizes and offsets
    /// need Zip64.
    #[test]
    fn zip64_headers_equal_torchs() {
        let storage = record("big/data/0", 4_400_000_000, 598, 0x1e7e_8ae2);
        let version = record("big/version", 2, 4_400_000_728, 0x5567_9ed1);

        let local = storage.local_header();
        assert!(hex(&local).starts_with(concat!(
            "504b0304000008080000000000000000000000000000000000000a004200",
            "6269672f646174612f30",
            "0100100000ac42060100000000ac420601000000",
            "46422a005a5a"
        )));
        assert_eq!(598 + local.len(), 704);
        let local = version.local_header();
        assert!(hex(&local).starts_with(concat!(
            "504b0304000008080000000000000000000000000000000000000b003f00",
            "6269672f76657273696f6e",
            "01000800d8ae420601000000",
            "46422f005a5a"
        )));
        assert_eq!(4_400_000_728 + local.len() as u64, 4_400_000_832);
        assert_eq!(hex(&storage.descriptor()), "504b0708e28a7e1e00ac42060100000000ac420601000000");
        assert_eq!(hex(&version.descriptor()), "504b0708d19e675502000000000000000200000000000000");
        assert_eq!(
            hex(&storage.central_header()),
            concat!(
                "504b0102000000000808000000000000e28a7e1effffffffffffffff0a00140000000000000000000000",
                "560200006269672f646174612f300100100000ac42060100000000ac420601000000"
            )
        );
        assert_eq!(
            hex(&version.central_header()),
            concat!(
                "504b0102000000000808000000000000d19e675502000000020000000b000c0000000000000000000000",
                "ffffffff6269672f76657273696f6e01000800d8ae420601000000"
            )
        );
        assert_eq!(
            hex(&end_of_directory(7, 0x1_0642_b000, 0x1df)),
            concat!(
                "504b06062c000000000000001e032d00000000000000000007000000000000000700000000000000df01",
                "00000000000000b0420601000000504b060700000000dfb142060100000001000000504b050600000000",
                "07000700df010000ffffffff0000"
            )
        );
    }

    #[test]
    fn record_of_another_size_than_announced_is_refused() {
        let mut archive = Archive::new(Vec::new(), "entry");
        let error = archive.record("data/0", 5, |sink| sink.write_all(b"four")).unwrap_err();
        assert_eq!(error.to_string(), "record `entry/data/0` was announced with 5 bytes and has 4");
    }
}
