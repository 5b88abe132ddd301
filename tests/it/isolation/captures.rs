//! Markers, by which tests notice that a candidate has read what it must not see. A marker is a byte string taken from
//! the expected outputs or from a part of a capture that is not a tensor. The scanner, a kernel that searches all
//! memory that it can read, looks for the markers. One more marker, from an input, shows that the scanner works.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use opt_shared::capture::CaptureFile;
use opt_tests::binary;

/// The length of a marker. A marker of this length does not occur anywhere by chance.
pub(super) const MARKER_BYTES: usize = 24;
/// The byte with which the scanner masks its markers, so that it does not find them in its own data.
const HIDDEN: u8 = 0xA5;
/// The smallest number of distinct bytes in a marker. Strings with fewer distinct bytes may be padding, which occurs
/// anywhere.
const MIN_DISTINCT: usize = 10;
/// The number of markers taken from each expected output: from its start, from its end, and evenly in between.
const MARKERS_PER_OUTPUT: usize = 40;

pub(super) struct Markers {
    /// The markers that no candidate may see.
    forbidden: Vec<[u8; MARKER_BYTES]>,
    /// A marker from the input of the first capture.
    in_input: [u8; MARKER_BYTES],
    files: Vec<PathBuf>,
}

impl Markers {
    /// Takes markers from captures whose first storage is their input.
    pub(super) fn of_captures(folder: &Path) -> Self {
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        files.sort();
        let mut forbidden = Vec::new();
        let mut in_input = None;
        for file in &files {
            let capture = CaptureFile::open(file).expect("a capture");
            let contents = std::fs::read(file).expect("the capture can be read");
            let ranges: Vec<_> = capture
                .storages()
                .iter()
                .map(|storage| {
                    let from = usize::try_from(storage.file_offset).expect("an offset");
                    from..from + storage.bytes.to_usize()
                })
                .collect();
            let [input, output] = ranges.as_slice() else { panic!("{} storages", ranges.len()) };
            in_input.get_or_insert(window(&contents, input.start + input.len() / 2));
            let step = (output.len() - MARKER_BYTES) / (MARKERS_PER_OUTPUT - 1);
            let of_output = (0..MARKERS_PER_OUTPUT).map(|number| output.start + number * step);
            let elsewhere = (0..contents.len() - MARKER_BYTES)
                .step_by(MARKER_BYTES)
                .filter(|at| ranges.iter().all(|range| at + MARKER_BYTES <= range.start || range.end <= *at));
            for at in of_output.chain(elsewhere) {
                let marker = window(&contents, at);
                // The scanner searches for the first two bytes. Two equal bytes in a row are common, and would slow it
                // down.
                let begins_rarely = marker[0] != marker[1];
                if begins_rarely && MIN_DISTINCT <= distinct(&marker) {
                    forbidden.push(marker);
                }
            }
        }
        // Leave out markers that also occur in the executable.
        let executable = std::fs::read(binary()).expect("the executable can be read");
        let known = found_in(&executable, &forbidden);
        forbidden.retain(|marker| !known.contains(marker));
        Self { forbidden, in_input: in_input.expect("a capture"), files }
    }

    pub(super) fn count(&self) -> usize {
        self.forbidden.len()
    }

    /// The contents of the scanner's `markers.h`.
    pub(super) fn header(&self) -> String {
        let mut text = format!("#define MARKER_BYTES {MARKER_BYTES}\n#define MARKERS");
        for (number, marker) in self.forbidden.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(text, "{comma} \\\n    {{ {} }}", hidden(marker)).expect("text");
        }
        let paths: Vec<String> = self.files.iter().map(|file| format!("{:?}", file.display())).collect();
        write!(text, "\n#define IN_INPUT {}\n", hidden(&self.in_input)).expect("text");
        writeln!(text, "#define CAPTURE_PATHS {}", paths.join(", ")).expect("text");
        text
    }
}

fn window(contents: &[u8], at: usize) -> [u8; MARKER_BYTES] {
    contents[at..at + MARKER_BYTES].try_into().expect("the slice has the length of a marker")
}

fn distinct(marker: &[u8]) -> usize {
    let mut bytes = marker.to_vec();
    bytes.sort_unstable();
    bytes.dedup();
    bytes.len()
}

/// Returns the markers that occur in the text. The text is long, so it is searched once for all of them.
fn found_in(text: &[u8], markers: &[[u8; MARKER_BYTES]]) -> BTreeSet<[u8; MARKER_BYTES]> {
    let pair = |bytes: &[u8]| usize::from(bytes[0]) << 8 | usize::from(bytes[1]);
    let mut begins = vec![false; 1 << 16];
    markers.iter().for_each(|marker| begins[pair(marker)] = true);
    let windows = text.windows(MARKER_BYTES).filter(|window| begins[pair(window)]);
    windows.filter_map(|window| markers.iter().find(|marker| marker.as_slice() == window)).copied().collect()
}

fn hidden(marker: &[u8]) -> String {
    let bytes: Vec<String> = marker.iter().map(|byte| format!("{}", byte ^ HIDDEN)).collect();
    bytes.join(", ")
}
