//! Reads and writes the index of a store, which lists the store's entries and says where they come from. The index is
//! JSON, and a second file contains its digest.
//!
//! A run does not read the index, because each manifest is self-contained. It only tests whether the index exists,
//! because only a finished store has one. `pack`, `unpack` and `check` read the index.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{BlobId, INDEX, INDEX_DIGEST, MAX_NAME_BYTES, MAX_NAME_DEPTH, MAX_STORE_ENTRIES, open_plain};

const FORMAT: &str = "opt-supervisor capture store";
const VERSION: u32 = 1;
/// Largest size of the index, in bytes. Half of this size is enough for 100,000 entries with names of a hundred bytes.
pub const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Largest size of the file with the digest, in bytes. The file is one line, as `b3sum` prints it.
const MAX_DIGEST_LINE_BYTES: u64 = 256;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    format: String,
    version: u32,
    pub provenance: Provenance,
    pub entries: Vec<IndexEntry>,
}

/// The origin of a store: who packed it, when, and with which program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    pub tool: String,
    /// The user who packed the store, and the machine: `user@host`.
    pub packed_by: String,
    /// Start of packing, in RFC 3339, UTC.
    pub started: String,
    /// The folder that was packed.
    pub source: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexEntry {
    /// The entry's path below the folder that was packed. The manifest has the same path below the store's folder
    /// `entries`.
    pub name: String,
    /// Size of the packed file.
    pub bytes: u64,
    /// BLAKE3 of the packed file.
    pub blake3: BlobId,
    /// BLAKE3 of the whole manifest.
    pub manifest: BlobId,
}

#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error(
        "could not read {file} (every finished store has this file; if it is missing, pack the captures again)"
    )]
    Read { file: &'static str, source: io::Error },
    #[error(
        "{INDEX} has more than {MAX_INDEX_BYTES} bytes, or {INDEX_DIGEST} more than {MAX_DIGEST_LINE_BYTES} (pack \
         the captures again, in several stores if there are very many)"
    )]
    TooLong,
    #[error(
        "{INDEX_DIGEST} is damaged: it must be one line, as `b3sum {INDEX}` prints it (restore it, or pack the \
         captures again)"
    )]
    NoDigest,
    #[error(
        "the digest of {INDEX} is not the one in {INDEX_DIGEST}, so one of the files is damaged (restore both, or \
         pack the captures again)"
    )]
    Digest,
    #[error("{INDEX} is not the index of a capture store")]
    Json(#[source] serde_json::Error),
    #[error(
        "{INDEX} is of format `{format}`, version {version}; this program reads `{FORMAT}`, version {VERSION}"
    )]
    Version { format: String, version: u32 },
    #[error("{INDEX} lists too many entries (the limit is {MAX_STORE_ENTRIES})")]
    TooMany,
    #[error("{INDEX} lists {0:?}, which is not a valid name of an entry")]
    Name(String),
    #[error("{INDEX} lists entry {0:?} twice")]
    Twice(String),
}

impl Index {
    pub fn new(provenance: Provenance, entries: Vec<IndexEntry>) -> Self {
        Self { format: FORMAT.to_owned(), version: VERSION, provenance, entries }
    }

    pub fn read(root: &Path) -> Result<Self, IndexError> {
        let text = read_bounded(root, INDEX, MAX_INDEX_BYTES)?;
        let line = read_bounded(root, INDEX_DIGEST, MAX_DIGEST_LINE_BYTES)?;
        Self::parse(&text, &line)
    }

    /// Parses the bytes of the index and of the file with its digest.
    pub fn parse(text: &[u8], digest_line: &[u8]) -> Result<Self, IndexError> {
        let line = std::str::from_utf8(digest_line).map_err(|_| IndexError::NoDigest)?;
        let digest: BlobId = line
            .strip_suffix(&format!("  {INDEX}\n"))
            .and_then(|digest| digest.parse().ok())
            .ok_or(IndexError::NoDigest)?;
        if BlobId::from(blake3::hash(text)) != digest {
            return Err(IndexError::Digest);
        }
        let index: Self = serde_json::from_slice(text).map_err(IndexError::Json)?;
        if index.format != FORMAT || index.version != VERSION {
            return Err(IndexError::Version { format: index.format, version: index.version });
        }
        if MAX_STORE_ENTRIES < index.entries.len() {
            return Err(IndexError::TooMany);
        }
        let mut seen = BTreeSet::new();
        for entry in &index.entries {
            if !is_entry_name(&entry.name) {
                return Err(IndexError::Name(entry.name.clone()));
            }
            if !seen.insert(entry.name.as_str()) {
                return Err(IndexError::Twice(entry.name.clone()));
            }
        }
        Ok(index)
    }

    /// Returns the bytes of the index, and the line with its digest.
    pub fn encode(&self) -> Result<(Vec<u8>, Vec<u8>), IndexError> {
        let mut text = serde_json::to_vec_pretty(self).map_err(IndexError::Json)?;
        text.push(b'\n');
        if text.len() as u64 > MAX_INDEX_BYTES {
            return Err(IndexError::TooLong);
        }
        let line = format!("{}  {INDEX}\n", blake3::hash(&text).to_hex());
        Ok((text, line.into_bytes()))
    }
}

fn read_bounded(root: &Path, file: &'static str, limit: u64) -> Result<Vec<u8>, IndexError> {
    let failed = |source| IndexError::Read { file, source };
    let mut bytes = Vec::new();
    open_plain(&root.join(file))
        .and_then(|opened| opened.take(limit + 1).read_to_end(&mut bytes))
        .map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(IndexError::TooLong);
    }
    Ok(bytes)
}

/// True if `name` is a normalised relative path that ends in `.pt` and is short enough for a store. It has no `..`, no
/// empty part and no control characters.
pub fn is_entry_name(name: &str) -> bool {
    let parts = name.split('/');
    name.len() <= MAX_NAME_BYTES
        && name.strip_suffix(".pt").is_some_and(|stem| !stem.is_empty() && !stem.ends_with('/'))
        && !name.contains(|c: char| c.is_control())
        && parts.clone().count() <= MAX_NAME_DEPTH
        && parts.clone().all(|part| !matches!(part, "" | "." | "..") && part.len() <= 255)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(names: &[&str]) -> Index {
        let digest = BlobId([3; 32]);
        let entry =
            |name: &&str| IndexEntry { name: (*name).to_owned(), bytes: 9, blake3: digest, manifest: digest };
        let provenance = Provenance {
            tool: "t".to_owned(),
            packed_by: "u@h".to_owned(),
            started: "now".to_owned(),
            source: "there".to_owned(),
        };
        Index::new(provenance, names.iter().map(entry).collect())
    }

    #[test]
    fn entry_name_cannot_leave_the_store() {
        for good in ["entry_000000.pt", "op/entry_1.pt", "a b.pt", "…é.pt"] {
            assert!(is_entry_name(good), "{good}");
        }
        for bad in [
            "",
            ".pt",
            "/.pt",
            "/etc/x.pt",
            "../x.pt",
            "a/../x.pt",
            "a//x.pt",
            "./x.pt",
            "a/.pt",
            "x.pt/",
            "x.txt",
            "a\n.pt",
            "a\0.pt",
        ] {
            assert!(!is_entry_name(bad), "{bad:?}");
            let (text, line) = sample(&[bad]).encode().expect("encoded");
            assert!(matches!(Index::parse(&text, &line), Err(IndexError::Name(_))), "{bad:?}");
        }
        assert!(!is_entry_name(&format!("{}x.pt", "a/".repeat(MAX_NAME_DEPTH))));
        assert!(!is_entry_name(&format!("{}.pt", "a".repeat(253))));
    }

    #[test]
    fn repeated_entry_is_refused() {
        let (text, line) = sample(&["a.pt", "a.pt"]).encode().expect("encoded");
        assert!(matches!(Index::parse(&text, &line), Err(IndexError::Twice(_))));
    }

    proptest! {
        #[test]
        fn any_changed_bit_is_detected(at in any::<prop::sample::Index>(), bit in 0u8..8, of_line: bool) {
            let index = sample(&["a.pt", "b/c.pt"]);
            let (mut text, mut line) = index.encode().expect("encoded");
            prop_assert_eq!(&Index::parse(&text, &line).expect("good"), &index);
            let changed = if of_line { &mut line } else { &mut text };
            let at = at.index(changed.len());
            changed[at] ^= 1 << bit;
            prop_assert!(Index::parse(&text, &line).is_err());
        }

        #[test]
        fn parser_never_panics(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let line = format!("{}  {INDEX}\n", blake3::hash(&text).to_hex());
            prop_assert!(Index::parse(&text, line.as_bytes()).is_err());
            let _ = Index::parse(&text, &text);
        }
    }
}
