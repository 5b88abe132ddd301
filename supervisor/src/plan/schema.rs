//! Defines every table of settings with its keys, and the kind of value that each key takes.
//!
//! From this one description, a macro derives the layers, how layers are merged, and how final values are printed. A
//! layer contains the keys that one table sets at one level: defaults, plan, job, candidate or `--set`. The keys of
//! `[[job]]` that are not in such tables are read in `job`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use opt_shared::capture::DType;
use opt_shared::device::Device;
use opt_shared::language::{KINDS, Language};
use opt_shared::settings::{
    BeforeProfile, BuildSettings, CacheState, InputMemory, LimitSettings, Nonfinite, Parity, Priority,
    ProfileEntries, ProfileSettings, Protocol, RecycleSettings, ToleranceOverride, ToleranceProfile, Vary,
    VerifySettings,
};
use opt_shared::stage::Stage;
use toml::Spanned;
use toml::de::DeValue;

use super::amounts::{ABOVE_ZERO, Ceiling, FROM_ZERO, FloorExpression, Kibibytes, Percentage, Size, Time};
use super::codec::{
    AutoWord, Codec, CoresWord, Flag, NonEmptyText, NonNegative, Number, OrWord, Ratio, Seed, Word, Words,
    string, unknown_word,
};
use super::error::{Findings, Spot, nearest, quote};
use super::lists::{Appended, Environment, Flags, Folder, List, Program, located_list};
use super::names::{NameOf, objection};
use super::print;
use super::table::{TableReader, TomlValue};
use super::{DeviceChoice, MemorySettings, ReplayCandidates, RunSettings, Stages, SwapUse, Unified};

/// The smallest `build.memory`, in bytes. With less, a compiler can crash instead of reporting that it lacks memory.
const MIN_COMPILER_MEMORY: u64 = 4 << 20;

/// One table as it is read from one source. Keys that are not set here get their values from weaker layers.
pub(super) trait Section: Clone + Default {
    type Settings: Clone + PartialEq;
    const TABLE: &'static str;
    const KEYS: &'static [&'static str];

    fn read(table: &mut TableReader<'_, '_>, findings: &mut Findings) -> Self;
    fn is_empty(&self) -> bool;
    fn merge(&mut self, stronger: &Self);
    /// Returns the settings, in which every key has a value. The error is the first key that has none.
    fn settle(self) -> Result<Self::Settings, &'static str>;
    /// Returns the keys with their values as TOML.
    fn print(settings: &Self::Settings) -> Vec<(&'static str, String)>;
    /// Returns the keys that must be written over `weaker` to get `settings`, with their values as TOML.
    fn difference(weaker: &Self::Settings, settings: &Self::Settings) -> Vec<(&'static str, String)>;
}

macro_rules! sections {
    ($($(#[$doc:meta])* $layer:ident => $settings:ident, $table:literal {
        $($key:literal => $field:ident: $codec:ty,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub(super) struct $layer {
            $(pub(super) $field: Option<<$codec as Codec>::Value>,)*
        }

        impl Section for $layer {
            type Settings = $settings;
            const TABLE: &'static str = $table;
            const KEYS: &'static [&'static str] = &[$($key,)*];

            fn read(table: &mut TableReader<'_, '_>, findings: &mut Findings) -> Self {
                Self {$(
                    $field: table.take($key).and_then(|(value, spot)| <$codec>::read(value, &spot, findings)),
                )*}
            }

            fn is_empty(&self) -> bool {
                true $(&& self.$field.is_none())*
            }

            fn merge(&mut self, stronger: &Self) {
                $(match (&mut self.$field, &stronger.$field) {
                    (Some(weaker), Some(stronger)) => <$codec>::merge(weaker, stronger),
                    (weaker @ None, Some(stronger)) => *weaker = Some(stronger.clone()),
                    (_, None) => {}
                })*
            }

            fn settle(self) -> Result<$settings, &'static str> {
                Ok($settings {$(
                    $field: self.$field.ok_or($key)?,
                )*})
            }

            fn print(settings: &$settings) -> Vec<(&'static str, String)> {
                vec![$(($key, <$codec>::print(&settings.$field)),)*]
            }

            fn difference(weaker: &$settings, settings: &$settings) -> Vec<(&'static str, String)> {
                let mut lines = Vec::new();
                $(if let Some(value) = <$codec>::difference(&weaker.$field, &settings.$field) {
                    lines.push(($key, <$codec>::print(&value)));
                })*
                lines
            }
        }
    )*

        /// All tables of settings with their keys. A message about a misplaced key says where the key belongs.
        pub(super) const TABLES: &[(&str, &[&str])] = &[$(($table, $layer::KEYS),)*];
    };
}

sections! {
    RunLayer => RunSettings, "run" {
        "name" => name: RunName,
        "device" => device: DeviceName,
        "verifiers" => verifiers: Verifiers,
        "stages" => stages: StageList,
        "max_artifacts" => max_artifacts: Size<1>,
    }
    MemoryLayer => MemorySettings, "memory" {
        "host_ceiling" => host_ceiling: Ceiling,
        "host_floor" => host_floor: FloorExpression,
        "device_ceiling" => device_ceiling: Ceiling,
        "swap" => swap: Word<SwapUse>,
        "unified" => unified: Word<Unified>,
        "spare" => spare: Flag,
    }
    RecycleLayer => RecycleSettings, "recycle" {
        "before_profile" => before_profile: Word<BeforeProfile>,
        "large_job" => large_job: Size<0>,
        "after_leases" => after_leases: Number<1, 1_000_000>,
        "growth" => growth: Size<1>,
        "max_age" => max_age: Time,
    }
    BuildLayer => BuildSettings, "build" {
        "cc" => cc: NonEmptyText,
        "cxx" => cxx: NonEmptyText,
        "python" => python: Program,
        "flags" => flags: Flags,
        "extra_flags" => extra_flags: Appended,
        "include" => include: List<Folder>,
        "link_flags" => link_flags: Flags,
        "libraries" => libraries: List<NonEmptyText>,
        "library_path" => library_path: List<Folder>,
        "toolchain" => toolchain: List<Folder>,
        "env" => env: Environment,
        "memory" => memory: OrWord<AutoWord, Size<MIN_COMPILER_MEMORY>>,
        "timeout" => timeout: OrWord<AutoWord, Time>,
        "max_artifact" => max_artifact: Size<1>,
    }
    VerifyLayer => VerifySettings, "verify" {
        "tolerance" => tolerance: Word<ToleranceProfile>,
        "required_matched_ratio" => required_matched_ratio: Ratio,
        "nonfinite" => nonfinite: Word<Nonfinite>,
        // A single call cannot show that a kernel depends on the previous content of its output.
        "repeats" => repeats: Number<2, 1000>,
        "stop_after" => stop_after: Number<0, 1_000_000>,
        "call_timeout" => call_timeout: Time,
        "seed" => seed: Seed,
        "dtype" => dtype: DTypeOverrides,
    }
    ProfileLayer => ProfileSettings, "profile" {
        "parity" => parity: Word<Parity>,
        "protocol" => protocol: Word<Protocol>,
        "entries" => entries: Word<ProfileEntries>,
        "batch_bytes" => batch_bytes: Size<1>,
        "cache_state" => cache_state: Word<CacheState>,
        "inputs" => inputs: Word<InputMemory>,
        "max_noise" => max_noise: Percentage<ABOVE_ZERO>,
        "entry_timeout" => entry_timeout: Time,
        "budget" => budget: Time,
        "min_improvement" => min_improvement: Percentage<FROM_ZERO>,
        "vary" => vary: VaryChoice,
        "priority" => priority: Word<Priority>,
    }
    LimitLayer => LimitSettings, "limits" {
        "memory" => memory: OrWord<AutoWord, Size<1>>,
        "threads" => threads: OrWord<CoresWord, Number<1, 4096>>,
        // The highest value that the Linux kernel allows (`PID_MAX_LIMIT`).
        "processes" => processes: OrWord<AutoWord, Number<1, 4_194_304>>,
        // With fewer than 16, the dynamic loader cannot open its libraries.
        "open_files" => open_files: Number<16, 1_048_576>,
        "output_kib" => output: Kibibytes<65_536>,
        "env" => env: Environment,
    }
}

macro_rules! words {
    ($($enum:ident { $($variant:ident = $name:literal),* })*) => {$(
        impl Words for $enum {
            const ALL: &'static [(&'static str, Self)] = &[$(($name, Self::$variant)),*];
        }
    )*};
}

words! {
    SwapUse { Own = "own", Any = "any" }
    Unified { Auto = "auto", Yes = "yes", No = "no" }
    BeforeProfile { Always = "always", Large = "large", Never = "never" }
    ToleranceProfile { Standard = "standard", Gpu = "gpu", Torch = "torch", Kernelforge = "kernelforge" }
    Nonfinite { Match = "match", Reject = "reject" }
    Parity { None = "none", Kernelforge = "kernelforge" }
    Protocol { Paired = "paired", Kernelforge = "kernelforge" }
    Priority { None = "none", Realtime = "realtime" }
    ProfileEntries { Distinct = "distinct", All = "all" }
    CacheState { Auto = "auto", Warm = "warm", Cold = "cold", Rotate = "rotate" }
    InputMemory { Mapped = "mapped", Copied = "copied" }
    ReplayCandidates { Winners = "winners", Baseline = "baseline" }
    Stage { Build = "build", Verify = "verify", Profile = "profile" }
}

impl Words for Language {
    const ALL: &'static [(&'static str, Self)] = &{
        let mut all = [("", Self::C); KINDS.len()];
        let mut at = 0;
        while at < KINDS.len() {
            all[at] = (KINDS[at].name, KINDS[at].language);
            at += 1;
        }
        all
    };
}

/// Returns the table that a key belongs in. `None` if no table or several tables have such a key.
pub(super) fn table_of_key(key: &str) -> Option<&'static str> {
    let mut tables = TABLES.iter().filter(|(_, keys)| keys.contains(&key)).map(|(table, _)| *table);
    // If several tables have the key, it is unclear which one was meant.
    tables.next().filter(|_| tables.next().is_none())
}

pub(super) struct RunName;

impl Codec for RunName {
    type Value = String;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<String> {
        let name = string(value, spot, "a name", findings)?;
        if let Some(objection) = objection(&name, NameOf::Run) {
            findings.report(spot, format!("this name {objection}")).expected("a valid name for a folder");
            return None;
        }
        Some(name)
    }

    fn print(value: &String) -> String {
        print::string(value)
    }
}

pub(super) struct DeviceName;

impl Codec for DeviceName {
    type Value = DeviceChoice;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<DeviceChoice> {
        const FORM: &str = "`cpu`, `cuda:0`, `emulated` or `auto`";
        const AUTO: &str = "auto";
        let text = string(value, spot, FORM, findings)?;
        if text == AUTO {
            return Some(DeviceChoice::Auto);
        }
        let device = Device::from_name(&text);
        if device.is_none() {
            let device_names = ["cpu", "cuda:0", "emulated", AUTO];
            unknown_word(&text, &device_names, spot, "a device", findings);
        }
        device.map(DeviceChoice::Named)
    }

    fn print(value: &DeviceChoice) -> String {
        print::string(&value.named().map_or_else(|| "auto".to_owned(), |device| device.to_string()))
    }
}

/// Which parameters vary: `auto`, `none`, or an array of names.
pub(super) struct VaryChoice;

impl Codec for VaryChoice {
    type Value = Vary;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Vary> {
        const FORM: &str = "`auto`, `none` or an array of parameters";
        if let DeValue::Array(_) = value.get_ref() {
            return List::<NonEmptyText>::read(value, spot, findings).map(Vary::Only);
        }
        match string(value, spot, FORM, findings)?.as_str() {
            "auto" => Some(Vary::Auto),
            "none" => Some(Vary::None),
            other => {
                let quoted = quote(other);
                let help = nearest(other, ["auto", "none"]).map_or_else(
                    || format!("to vary only this parameter, write [{}]", print::string(other)),
                    |near| format!("did you mean `{near}`?"),
                );
                findings.report(spot, format!("`{quoted}` is neither `auto` nor `none`")).help(help);
                None
            }
        }
    }

    fn print(value: &Vary) -> String {
        match value {
            Vary::Auto => print::string("auto"),
            Vary::None => print::string("none"),
            Vary::Only(names) => List::<NonEmptyText>::print(names),
        }
    }
}

pub(super) struct Verifiers;

/// The largest allowed value of `run.verifiers`. A larger number is probably a mistake.
const MAX_VERIFIERS: u32 = 1024;

impl Codec for Verifiers {
    type Value = NonZeroU32;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<NonZeroU32> {
        Number::<1, MAX_VERIFIERS>::read(value, spot, findings).and_then(NonZeroU32::new)
    }

    fn print(value: &NonZeroU32) -> String {
        value.to_string()
    }
}

/// An array of stages, in any order. `verify` needs `build`, and `profile` needs `verify`.
pub(super) struct StageList;

impl Codec for StageList {
    type Value = Stages;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Stages> {
        let items = located_list::<Word<Stage>>(value, spot, findings)?;
        let mut stages = Stages { build: false, verify: false, profile: false };
        for item in items {
            if stages.flag(item.value).is_some_and(|flag| std::mem::replace(flag, true)) {
                findings.report(&item.spot, "this stage is listed twice");
                return None;
            }
        }
        let missing = match (stages.build, stages.verify, stages.profile) {
            (_, false, true) => Some(("profile", "verify")),
            (false, true, _) => Some(("verify", "build")),
            (false, false, false) => {
                findings
                    .report(spot, "the list names no stage")
                    .expected("at least `build`; `verify` needs `build`, and `profile` needs `verify`");
                return None;
            }
            _ => None,
        };
        if let Some((stage, needed)) = missing {
            findings
                .report(spot, format!("the stage `{stage}` needs the stage `{needed}`"))
                .help(format!("add \"{needed}\""));
            return None;
        }
        Some(stages)
    }

    fn print(value: &Stages) -> String {
        let runs: Vec<Stage> = Stage::ALL.into_iter().filter(|&stage| value.runs(stage)).collect();
        List::<Word<Stage>>::print(&runs)
    }
}

/// The tables `[verify.dtype.NAME]`. Layers are merged key by key.
pub(super) struct DTypeOverrides;

impl Codec for DTypeOverrides {
    type Value = BTreeMap<DType, ToleranceOverride>;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Self::Value> {
        let table = TableReader::of(value, spot, findings)?;
        let before = findings.count();
        let mut overrides = BTreeMap::new();
        for (name, value, spot, key_spot) in table.entries() {
            let dtype = DTypeName::find(name, &key_spot, findings);
            let Some(mut table) = TableReader::of(value, &spot, findings) else { continue };
            let mut figure =
                |key| table.take(key).and_then(|(value, spot)| NonNegative::read(value, &spot, findings));
            let figures =
                ToleranceOverride { rtol: figure("rtol"), atol: figure("atol"), rel_l2: figure("rel_l2") };
            table.finish(findings, &[], |_| None);
            overrides.extend(dtype.map(|dtype| (dtype, figures)));
        }
        (findings.count() == before).then_some(overrides)
    }

    fn print(value: &Self::Value) -> String {
        let tables: Vec<String> = value
            .iter()
            .map(|(dtype, figures)| {
                let pairs: Vec<String> =
                    [("rtol", figures.rtol), ("atol", figures.atol), ("rel_l2", figures.rel_l2)]
                        .into_iter()
                        .filter_map(|(key, figure)| {
                            figure.map(|figure| format!("{key} = {}", print::float(figure)))
                        })
                        .collect();
                format!("{} = {}", dtype.name(), print::braces(&pairs))
            })
            .collect();
        print::braces(&tables)
    }

    fn merge(weaker: &mut Self::Value, stronger: &Self::Value) {
        for (dtype, figures) in stronger {
            let slot = weaker.entry(*dtype).or_default();
            slot.rtol = figures.rtol.or(slot.rtol);
            slot.atol = figures.atol.or(slot.atol);
            slot.rel_l2 = figures.rel_l2.or(slot.rel_l2);
        }
    }

    fn difference(weaker: &Self::Value, value: &Self::Value) -> Option<Self::Value> {
        // Layers never remove a figure. If the table of a data type has changed, it is therefore enough to print all
        // its figures.
        let changed: Self::Value = value
            .iter()
            .filter(|(dtype, figures)| weaker.get(dtype) != Some(figures))
            .map(|(dtype, figures)| (*dtype, *figures))
            .collect();
        (!changed.is_empty()).then_some(changed)
    }
}

pub(super) struct DTypeName;

/// Names of common data types in other tools, for suggestions.
const OTHER_NAMES: [(&str, DType); 9] = [
    ("bf16", DType::BFloat16),
    ("f16", DType::Float16),
    ("fp16", DType::Float16),
    ("half", DType::Float16),
    ("f32", DType::Float32),
    ("fp32", DType::Float32),
    ("float", DType::Float32),
    ("f64", DType::Float64),
    ("double", DType::Float64),
];

impl DTypeName {
    fn find(name: &str, spot: &Spot, findings: &mut Findings) -> Option<DType> {
        let dtype = DType::from_name(name.strip_prefix("torch.").unwrap_or(name));
        if dtype.is_none() {
            let dtype_names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
            match OTHER_NAMES.iter().find(|(other, _)| *other == name) {
                Some((_, meant)) => {
                    findings
                        .report(spot, format!("`{name}` is not a data type"))
                        .help(format!("did you mean `{meant}`?"));
                }
                None => unknown_word(name, &dtype_names, spot, "a data type", findings),
            }
        }
        dtype
    }
}

impl Codec for DTypeName {
    type Value = DType;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<DType> {
        let name = string(value, spot, "the name of a data type", findings)?;
        Self::find(&name, spot, findings)
    }

    fn print(value: &DType) -> String {
        print::string(value.name())
    }
}

/// Reads the table of a section. If the table is missing, the result sets no key.
pub(super) fn read_section<S: Section>(parent: &mut TableReader<'_, '_>, findings: &mut Findings) -> S {
    let Some((value, spot)) = parent.take(S::TABLE) else { return S::default() };
    read_section_at(value, &spot, findings)
}

fn read_section_at<S: Section>(
    value: &Spanned<toml::de::DeValue<'_>>,
    spot: &Spot,
    findings: &mut Findings,
) -> S {
    let Some(mut table) = TableReader::of(value, spot, findings) else { return S::default() };
    let section = S::read(&mut table, findings);
    // A later version may have the key `run.jobs`.
    let reserved: &[&str] = if S::TABLE == "run" { &["jobs"] } else { &[] };
    table.finish(findings, reserved, table_of_key);
    section
}
