//! Turns the tables, patterns and baseline of a job into its list of candidates, each with a name.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use opt_shared::language::{Language, Toolchain};
use opt_shared::launch::Launch;
use opt_shared::settings::CandidateSource;

use super::error::{Findings, Located, Spot, list, nearest, quote};
use super::glob::{check_file, expand, tail};
use super::job::{RawCandidate, RawJob};
use super::layers::Layers;
use super::names::{NameOf, objection};
use super::render::label;

/// A candidate whose settings have not been resolved yet.
pub(super) struct Draft {
    pub(super) name: String,
    pub(super) source: CandidateSource,
    pub(super) partial: Option<bool>,
    pub(super) launch: Arc<Launch>,
    /// The settings in the candidate's table. They are boxed, because most candidates come from patterns and have none.
    pub(super) layers: Option<Box<Layers>>,
    pub(super) spot: Rc<Spot>,
    naming: Naming,
}

/// How a candidate gets its name.
#[derive(Clone, Copy)]
enum Naming {
    /// The name is final. It comes from the candidate's table, from its first source, or from a language without
    /// sources.
    Given,
    /// The name consists of the last `length` bytes of the file's path. The suffix is left out, unless another
    /// candidate would then have the same name.
    File { length: usize },
}

impl Draft {
    /// The name with the suffix, if the candidate is named after its file.
    fn long_name(&self) -> Option<&str> {
        let Naming::File { length } = self.naming else { return None };
        tail(self.source.sources.first()?, length)
    }

    /// The name that the candidate gets if no other candidate has the same short name.
    fn short_name(&self) -> &str {
        self.long_name().map_or(&self.name, without_suffix)
    }
}

fn without_suffix(name: &str) -> &str {
    let suffix = Path::new(name).extension().map_or(0, |suffix| suffix.len() + ".".len());
    &name[..name.len() - suffix]
}

/// The candidates of a job, and the index of the baseline among them.
pub(super) struct CandidateList {
    pub(super) drafts: Vec<Draft>,
    pub(super) baseline: Option<usize>,
}

/// Lists the candidates of a job. It is a mistake if a pattern raises their number above `max`.
pub(super) fn list_candidates(job: &RawJob, max: usize, findings: &mut Findings) -> CandidateList {
    let before = findings.count();
    let mut drafts: Vec<Draft> = job.candidates.iter().filter_map(|raw| from_table(raw, findings)).collect();
    // Patterns skip files that a table already names.
    let mut seen: HashSet<PathDigest> = drafts
        .iter()
        .flat_map(|draft| draft.source.sources.iter().map(|path| digest_of_path(&identity(path))))
        .collect();
    for pattern in &job.patterns {
        let limit = max.saturating_sub(drafts.len());
        from_pattern(pattern, limit, &mut seen, &mut drafts, findings);
    }
    assign_names(&mut drafts);
    let no_mistakes = findings.count() == before;
    let baseline = job.baseline.as_ref().and_then(|baseline| {
        let index = find_baseline(baseline, &mut drafts, no_mistakes, findings)?;
        if let Some(why) = drafts[index].source.language.not_timed() {
            findings
                .report(&baseline.spot, format!("a baseline must be timed, but this one cannot be: {why}"))
                .help("use another baseline, such as `torch`, the recorded function in eager mode");
        }
        Some(index)
    });
    if no_mistakes {
        report_duplicates(&drafts, findings);
    }
    CandidateList { drafts, baseline }
}

fn from_table(raw: &RawCandidate, findings: &mut Findings) -> Option<Draft> {
    let before = findings.count();
    let mut paths = Vec::with_capacity(raw.sources.len());
    let mut files = HashSet::new();
    for source in &raw.sources {
        let path = findings.absolute(&source.value);
        if let Err(error) = check_file(&path) {
            findings.report(&source.spot, error.to_string());
        } else if files.insert(identity(&path)) {
            paths.push(path);
        } else {
            findings.report(&source.spot, format!("this names the file `{}` again", label(&path)));
        }
    }
    let language = match &raw.language {
        Some(language) => {
            if let Some(why) = language.value.kind().missing {
                findings.report(&language.spot, why);
            }
            Some(language.value)
        }
        None => language_of_all(&raw.sources, findings),
    };
    if findings.count() > before {
        return None;
    }
    if let Some(language) = language.filter(|language| !language.has_sources()) {
        let spot = raw.name.as_ref().map_or(&raw.spot, |name| &name.spot);
        let mut draft = draft_of_function(language, spot.clone());
        if let Some(name) = &raw.name {
            draft.name.clone_from(&name.value);
        }
        (draft.partial, draft.layers) = (raw.partial, layers_of(raw));
        return Some(draft);
    }
    let (first, language) = (raw.sources.first()?, language?);
    check_launch(raw, language, findings)?;
    let refused = |source: &Located<String>| {
        language.refuses(Path::new(&source.value)).map(|why| (source.spot.clone(), why))
    };
    if let Some((spot, why)) = raw.sources.iter().find_map(refused) {
        findings.report(&spot, why);
        return None;
    }
    if is_prebuilt(language) && raw.sources.len() > 1 {
        findings
            .report(&raw.sources[1].spot, "a prebuilt file must be the only source of its candidate")
            .expected("one source");
        return None;
    }
    let stem = Path::new(&first.value).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = raw.name.as_ref().map_or(stem, |name| name.value.clone());
    if let Some(objection) = objection(&name, NameOf::Candidate) {
        findings
            .report(&first.spot, format!("the name of this file {objection}"))
            .help("give the candidate a `name`");
        return None;
    }
    Some(Draft {
        name,
        source: CandidateSource {
            sources: paths,
            language,
            symbol: raw.symbol.clone().map_or(Cow::Borrowed(language.kind().symbol), Cow::Owned),
        },
        partial: raw.partial,
        launch: raw.launch.clone().map(Arc::new)?,
        layers: layers_of(raw),
        spot: Rc::new(raw.name.as_ref().map_or(&raw.spot, |name| &name.spot).clone()),
        naming: Naming::Given,
    })
}

/// Checks that a candidate has launches if and only if it has no host code. Otherwise reports the mistake and returns
/// `None`.
fn check_launch(raw: &RawCandidate, language: Language, findings: &mut Findings) -> Option<()> {
    let launch = raw.launch.as_ref()?;
    let has_launches = !launch.steps.is_empty() || !launch.workspaces.is_empty();
    if !language.needs_launches() && has_launches {
        findings
            .report(&raw.spot, format!("`{}` has host code and cannot have launches", language.name()))
            .help("for a file that has only `__global__` functions, write `language = \"cuda-device\"`");
        return None;
    }
    if language.needs_launches() && launch.steps.is_empty() {
        findings
            .report(&raw.spot, format!("`{}` has no host code and needs launches", language.name()))
            .expected("a `[[job.candidate.launch]]` with `symbol`, `grid`, `block` and `args`");
        return None;
    }
    Some(())
}

fn layers_of(raw: &RawCandidate) -> Option<Box<Layers>> {
    (!raw.layers.is_empty()).then(|| Box::new(raw.layers.clone()))
}

/// Returns a draft of the candidate that is the recorded function itself.
fn draft_of_function(language: Language, spot: Spot) -> Draft {
    Draft {
        name: language.name().to_owned(),
        source: CandidateSource { sources: Vec::new(), language, symbol: language.kind().symbol.into() },
        partial: None,
        launch: Arc::default(),
        layers: None,
        spot: Rc::new(spot),
        naming: Naming::Given,
    }
}

/// Infers the language of a candidate from the suffixes of its sources, which must all agree.
fn language_of_all(sources: &[Located<String>], findings: &mut Findings) -> Option<Language> {
    let mut common: Option<Language> = None;
    for source in sources {
        let Some(language) = Language::of_path(Path::new(&source.value)) else {
            findings
                .report(&source.spot, "the language of this file is not clear from its suffix")
                .expected(suffixes())
                .help("or give the candidate a `language`");
            return None;
        };
        if let Some(why) = language.kind().missing {
            findings.report(&source.spot, why);
            return None;
        }
        if common.is_some_and(|common| common != language) {
            findings
                .report(&source.spot, "the sources of this candidate are in two languages")
                .help("give the candidate a `language`");
            return None;
        }
        common = Some(language);
    }
    common
}

fn from_pattern(
    pattern: &Located<String>,
    limit: usize,
    seen: &mut HashSet<PathDigest>,
    drafts: &mut Vec<Draft>,
    findings: &mut Findings,
) {
    let matches = match expand(&pattern.value, findings.base_dir(), limit) {
        Ok(matches) => matches,
        Err(error) => {
            findings.report(&pattern.spot, error.to_string()).help_if(hint(&error));
            return;
        }
    };
    let total = matches.len();
    drafts.reserve_exact(total);
    let spot = Rc::new(pattern.spot.clone());
    let mut unknown: Vec<String> = Vec::new();
    let mut missing: Vec<(&'static str, String)> = Vec::new();
    // All candidates share one value, because there can be a hundred thousand of them.
    let no_launch = Arc::default();
    for found in matches {
        if !seen.insert(digest_of_path(&identity(&found.path))) {
            continue;
        }
        let relative = found.relative();
        match Language::of_path(&found.path) {
            None => unknown.push(relative.to_owned()),
            Some(language) => {
                if let Some(why) = unusable_file(language) {
                    missing.push((why, relative.to_owned()));
                    continue;
                }
                if let Some(objection) = objection(relative, NameOf::Candidate) {
                    findings
                        .report(
                            &pattern.spot,
                            format!("the name of the file `{}` {objection}", quote(relative)),
                        )
                        .help("give it a name in a `[[job.candidate]]`");
                    return;
                }
                let length = relative.len();
                drafts.push(draft_of_file(found.path, length, language, &no_launch, Rc::clone(&spot)));
            }
        }
    }
    // There is one message for each pattern and kind of mistake, however many files the pattern matched.
    if let Some((why, first)) = missing.first() {
        let which = format!("{} of {total} matching files, such as `{}`", missing.len(), quote(first));
        findings
            .report(&pattern.spot, format!("{which}, cannot be candidates: {why}"))
            .help("narrow the pattern");
    }
    if let Some(first) = unknown.first() {
        let which = format!("{} of {total} matching files, such as `{}`", unknown.len(), quote(first));
        findings
            .report(&pattern.spot, format!("the language of {which}, is not clear from the suffix"))
            .expected(suffixes())
            .help("narrow the pattern, for example to `**/*.{c,cpp}`");
    }
}

/// The reason why a file of this language cannot be a candidate by itself.
fn unusable_file(language: Language) -> Option<&'static str> {
    let no_launch = "device code needs launches, which only a `[[job.candidate]]` can have";
    language.kind().missing.or_else(|| language.needs_launches().then_some(no_launch))
}

fn hint(error: &super::glob::GlobError) -> Option<String> {
    use super::glob::GlobError;
    match error {
        GlobError::Empty => {
            Some("patterns are relative to the plan; `**` matches folders at any depth".to_owned())
        }
        GlobError::NoFolder(_) | GlobError::NoFile(_) => Some("paths are relative to the plan".to_owned()),
        GlobError::TooMany(_) | GlobError::TooManyMatches { .. } => Some("narrow the pattern".to_owned()),
        _ => None,
    }
}

/// Returns a draft of the candidate whose long name is the last `length` bytes of `path`.
fn draft_of_file(
    path: PathBuf,
    length: usize,
    language: Language,
    no_launch: &Arc<Launch>,
    spot: Rc<Spot>,
) -> Draft {
    Draft {
        name: String::new(),
        source: CandidateSource { sources: vec![path], language, symbol: language.kind().symbol.into() },
        partial: None,
        launch: Arc::clone(no_launch),
        layers: None,
        spot,
        naming: Naming::File { length },
    }
}

/// Names candidates after their files. The suffix is left out if no other candidate has the same short name.
fn assign_names(drafts: &mut [Draft]) {
    let mut uses: HashMap<&str, usize> = HashMap::with_capacity(drafts.len());
    for draft in drafts.iter() {
        *uses.entry(draft.short_name()).or_default() += 1;
    }
    let is_unique: Vec<bool> =
        drafts.iter().map(|draft| uses.get(draft.short_name()).is_none_or(|&count| count == 1)).collect();
    for (draft, is_unique) in drafts.iter_mut().zip(is_unique) {
        if let Some(long) = draft.long_name() {
            draft.name = if is_unique { without_suffix(long) } else { long }.to_owned();
        }
    }
}

fn report_duplicates(drafts: &[Draft], findings: &mut Findings) {
    let mut first_of: HashMap<&str, &Draft> = HashMap::with_capacity(drafts.len());
    for draft in drafts {
        if let Some(first) = first_of.get(draft.name.as_str()) {
            let files = [first, &draft].map(|draft| draft.source.sources.first().map(|path| label(path)));
            let [one, other] = files.map(Option::unwrap_or_default);
            findings
                .report(
                    &draft.spot,
                    format!("two candidates are named `{}`: `{one}` and `{other}`", quote(&draft.name)),
                )
                .help("name one of them in a `[[job.candidate]]`, or use one pattern over both folders");
        } else {
            first_of.insert(&draft.name, draft);
        }
    }
}

/// Looks up the baseline. It is the candidate with this name, or else the recorded function, or else a file. The
/// recorded function, or a file that no candidate uses, is added to the candidates.
fn find_baseline(
    baseline: &Located<String>,
    drafts: &mut Vec<Draft>,
    no_mistakes: bool,
    findings: &mut Findings,
) -> Option<usize> {
    if let Some(index) = drafts.iter().position(|draft| draft.name == baseline.value) {
        return Some(index);
    }
    let mut functions = [Language::Torch, Language::TorchCompile].into_iter();
    if let Some(language) = functions.find(|it| it.name() == baseline.value) {
        drafts.push(draft_of_function(language, baseline.spot.clone()));
        return Some(drafts.len() - 1);
    }
    let path = findings.absolute(&baseline.value);
    if !path.is_file() {
        // If a candidate was dropped because of another mistake, the baseline may have been that candidate.
        if no_mistakes {
            let near = nearest(&baseline.value, drafts.iter().map(|draft| draft.name.as_str()));
            let help = near.map(|near| format!("did you mean the candidate `{near}`?"));
            let why = match path.metadata() {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => format!(": {error}"),
                Ok(_) | Err(_) => String::new(),
            };
            findings
                .report(
                    &baseline.spot,
                    format!("`{}` is neither a candidate nor a file{why}", quote(&baseline.value)),
                )
                .expected("the name of a candidate, a file, `torch`, or `torch.compile`")
                .help_if(help);
        }
        return None;
    }
    let wanted = identity(&path);
    let using_file: Vec<usize> = (0..drafts.len())
        .filter(
            |&index| matches!(drafts[index].source.sources.as_slice(), [only] if identity(only) == wanted),
        )
        .collect();
    match using_file.as_slice() {
        [] => {}
        [index] => return Some(*index),
        [first, second, ..] => {
            findings
                .report(&baseline.spot, "several candidates use this file")
                .help(format!("name one of them: `{}` or `{}`", drafts[*first].name, drafts[*second].name));
            return None;
        }
    }
    let Some(language) = Language::of_path(&path) else {
        findings
            .report(&baseline.spot, "the language of this file is not clear from its suffix")
            .expected(suffixes())
            .help("describe it in a `[[job.candidate]]` with a `language`, and name that candidate");
        return None;
    };
    if let Some(why) = unusable_file(language) {
        findings.report(&baseline.spot, why);
        return None;
    }
    let file_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if let Some(objection) = objection(&file_name, NameOf::Candidate) {
        findings.report(&baseline.spot, format!("the name of this file {objection}"));
        return None;
    }
    let spot = Rc::new(baseline.spot.clone());
    drafts.push(draft_of_file(path, file_name.len(), language, &Arc::default(), spot));
    assign_names(drafts);
    Some(drafts.len() - 1)
}

/// The first 128 bits of the digest of a file's canonical path. Digests are kept because a plan can have a hundred
/// thousand files, whose paths would take more memory.
type PathDigest = [u8; 16];

fn digest_of_path(path: &Path) -> PathDigest {
    let mut first = PathDigest::default();
    let digest = blake3::hash(path.as_os_str().as_bytes());
    first.copy_from_slice(&digest.as_bytes()[..size_of::<PathDigest>()]);
    first
}

/// The canonical path of a file, which is the same for all paths to the file.
fn identity(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The list of known suffixes, for messages.
fn suffixes() -> String {
    format!("one of the suffixes {}", list(&Language::suffixes().collect::<Vec<_>>()))
}

/// Returns whether candidates of this language need no build, because their only source is the artifact.
pub(super) fn is_prebuilt(language: Language) -> bool {
    language.kind().toolchain == Toolchain::Prebuilt
}
