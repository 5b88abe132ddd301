//! Generates the capture set of the incident that led to this project, at full size: 20 entries, two bfloat16 tables
//! saved ten times each, 51.3 GiB. Plans and kernels are written beside the captures, so that the set can be run
//! immediately.
//!
//! With `--scale`, the tables have fewer rows. `embedding.rs` generates the numbers. If the disk does not have space
//! for everything, nothing is written.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::embedding::EmbeddingSet;

pub(crate) const ENTRIES: u32 = 20;
/// The number of rows of the incident's two tables.
const ROWS: u64 = 262_144;
const WIDTHS: [u64; 2] = [8960, 1536];

const KERNELS: [(&str, &str); 3] = [
    ("naive.c", include_str!("../../../configs/demo/embedding/naive.c")),
    ("fast.c", include_str!("../../../configs/demo/embedding/fast.c")),
    ("ahead.c", include_str!("../../../configs/incident/ahead.c")),
];

/// Creates the set. `scale` is the fraction of each table's rows that the set contains.
pub(crate) fn set(scale: f64, seed: u64) -> Result<EmbeddingSet> {
    ensure!(
        0.0 < scale && scale <= 1.0,
        "--scale {scale} is out of range (pass a number above 0 and up to 1, the incident's own size)"
    );
    let rows = ((ROWS as f64 * scale) as u64).max(1);
    Ok(EmbeddingSet::of_words(ENTRIES, rows, WIDTHS, seed))
}

/// Writes the plans and the kernels to the folder that contains the captures.
pub(crate) fn write_plans(out: &Path) -> Result<()> {
    let kernels = out.join("kernels");
    fs::create_dir_all(&kernels).with_context(|| format!("cannot create `{}`", kernels.display()))?;
    for (name, text) in KERNELS {
        write(&kernels.join(name), text)?;
    }
    let whole = std::path::absolute(out).with_context(|| format!("cannot resolve `{}`", out.display()))?;
    let name = whole.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let store = format!("../{name}.store");
    let files =
        "# The captures as they were recorded: 20 files, in which each of two tables is saved ten times.";
    write(&out.join("incident.toml"), &plan(files, "incident", "."))?;
    let packed = format!(
        "# The same captures from a store, which has each table only once. Create the store first, in this folder:\n\
         #   opt-supervisor captures pack . {store}"
    );
    write(&out.join("incident-packed.toml"), &plan(&packed, "incident-packed", &store))
}

fn plan(comment: &str, name: &str, captures: &str) -> String {
    format!(
        "{comment}\n\n[run]\nname = \"{name}\"\ndevice = \"cpu\"\n\n\
         [memory]\nhost_ceiling = \"1GiB\"       # the verifier of the incident alone owed 53.9 GB\n\n\
         [build]\nmemory = \"512MiB\"           # enough for one small C file; the default, 4 GiB, is more than the ceiling\n\n\
         [limits]\nmemory = \"128MiB\"          # a gather needs no memory except for its output; the default is more than the size of its inputs\n\n\
         [profile]\nentry_timeout = \"2s\"      # twenty entries of different lengths; this plan is about memory, not about times\n\n\
         [[job]]\nname = \"embedding\"\ncaptures = '{captures}'\nentries = [\"entry_*.pt\"]\n\
         baseline = \"kernels/naive.c\"\ncandidates = [\"kernels/fast.c\", \"kernels/ahead.c\"]\n"
    )
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use opt_shared::units::Bytes;

    use super::*;

    #[test]
    fn incident_set_has_its_original_size_and_refuses_invalid_scales() {
        let total = |scale| -> Bytes {
            let set = set(scale, 0).unwrap();
            (0..set.entries).map(|entry| set.capture(entry).estimate()).sum()
        };
        let gib = 1u64 << 30;
        assert!((51 * gib..52 * gib).contains(&total(1.0).get()), "{}", total(1.0));
        assert!(total(0.01) < Bytes::gib(1));
        assert!(set(0.0, 0).is_err() && set(1.5, 0).is_err());
    }
}
