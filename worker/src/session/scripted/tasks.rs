//! Tasks over the captures in `tests/data`: entries, callees and settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use opt_shared::arguments::{Entry, Form, Signature, SignatureBuilder};
use opt_shared::capture::CaptureFile;
use opt_shared::ids::EntryId;
use opt_shared::language::Launcher;
use opt_shared::launch::Launch;
use opt_shared::message::{Callee, EntryRef, HiddenPaths};
use opt_shared::numbers::EntryNumbers;
use opt_shared::outcome::Artifact;
use opt_shared::settings::{LimitSettings, Nonfinite, ToleranceProfile, VerifySettings};
use opt_shared::units::Bytes;

/// The recorded calls of an op in `tests/data`, as tasks refer to them.
pub(crate) fn entries_of(op: &str, numbers: &[u32]) -> (Vec<EntryRef>, Signature) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/captures").join(op);
    let mut builder = SignatureBuilder::new(None, BTreeMap::new());
    let mut entries = Vec::new();
    for (id, number) in numbers.iter().enumerate() {
        let name = format!("entry_{number:06}");
        let path: PathBuf = folder.join(format!("{name}.pt"));
        let capture = CaptureFile::open(&path).expect("a capture of tests/data");
        builder.observe(&name, &Entry::from_value(capture.root()).expect("an entry"));
        entries.push(EntryRef {
            id: EntryId(u32::try_from(id).expect("few")),
            name,
            path,
            identity: None,
            weight: 3,
            repeated: Vec::new(),
            numbers: EntryNumbers {
                file: capture.file_bytes(),
                inputs: Bytes::new(64),
                ..EntryNumbers::default()
            },
        });
    }
    (entries, builder.finish().expect("a signature"))
}

pub(crate) fn callee(candidate: &str, signature: Signature) -> Callee {
    Callee {
        candidate: candidate.to_owned(),
        artifact: Artifact { digest: String::new(), path: PathBuf::new(), bytes: Bytes::ZERO },
        launcher: Launcher::Dlopen,
        symbol: "run".to_owned(),
        launch: Launch::default(),
        signature,
        limits: LimitSettings {
            memory: None,
            threads: None,
            processes: None,
            open_files: 16,
            output: Bytes::kib(64),
            env: BTreeMap::new(),
        },
        library_path: Vec::new(),
        closed: HiddenPaths::default(),
        python: String::new(),
        form: Form::Settled,
    }
}

pub(crate) fn verify_settings() -> VerifySettings {
    VerifySettings {
        tolerance: ToleranceProfile::Standard,
        dtype: BTreeMap::new(),
        required_matched_ratio: 1.0,
        nonfinite: Nonfinite::Match,
        repeats: 2,
        stop_after: 3,
        call_timeout: Duration::from_secs(60),
        seed: 1,
    }
}
