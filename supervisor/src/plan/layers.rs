//! Merges layers of settings into final settings. From weak to strong, the layers are `configs/default.toml`, the
//! plan's top-level tables, the tables of the job, the tables of the candidate, and `--set`.
//!
//! `profile.parity` names a set of rules, which is one more layer. It comes directly below the tables of the level that
//! sets `parity`: these tables override the rules, and the rules override weaker layers.
//!
//! Each table is checked once, before it is merged. A mistake at the top is therefore reported once, not once per job.

use std::sync::Arc;

use opt_shared::settings::{
    BuildSettings, LimitSettings, Parity, ProfileSettings, RecycleSettings, VerifySettings,
};
use toml::de::DeTable;

use super::error::{Findings, Spot};
use super::schema::{
    BuildLayer, LimitLayer, MemoryLayer, ProfileLayer, RecycleLayer, RunLayer, Section, VerifyLayer,
    read_section, table_of_key,
};
use super::syntax;
use super::table::TableReader;

/// The tables of settings that are allowed on every level: at the top of a plan, in a job and in a candidate.
#[derive(Clone, Debug, Default)]
pub(super) struct Layers {
    recycle: RecycleLayer,
    build: BuildLayer,
    verify: VerifyLayer,
    profile: ProfileLayer,
    limits: LimitLayer,
}

/// The tables of settings that are allowed at the top of a plan.
#[derive(Clone, Debug, Default)]
pub(super) struct TopLayers {
    pub(super) run: RunLayer,
    pub(super) memory: MemoryLayer,
    pub(super) shared: Layers,
}

/// The final settings of the plan, a job or a candidate. A table that a level does not change is shared with the level
/// above, because a plan can have a hundred thousand candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub recycle: Arc<RecycleSettings>,
    pub build: Arc<BuildSettings>,
    pub verify: Arc<VerifySettings>,
    pub profile: Arc<ProfileSettings>,
    pub limits: Arc<LimitSettings>,
}

impl Layers {
    pub(super) fn read(parent: &mut TableReader<'_, '_>, findings: &mut Findings) -> Self {
        let own = Self {
            recycle: read_section(parent, findings),
            build: read_section(parent, findings),
            verify: read_section(parent, findings),
            profile: read_section(parent, findings),
            limits: read_section(parent, findings),
        };
        match own.profile.parity {
            Some(Parity::Kernelforge) => {
                read_compiled_in("configs/kernelforge.toml", KERNELFORGE, findings).shared.under(&own)
            }
            Some(Parity::None) | None => own,
        }
    }

    /// Merges these layers with `stronger`. If both set a key, the value of `stronger` is used.
    pub(super) fn under(&self, stronger: &Self) -> Self {
        Self {
            recycle: merged(&self.recycle, &stronger.recycle),
            build: merged(&self.build, &stronger.build),
            verify: merged(&self.verify, &stronger.verify),
            profile: merged(&self.profile, &stronger.profile),
            limits: merged(&self.limits, &stronger.limits),
        }
    }

    /// Applies the layers of `--set` to these layers, last.
    fn overridden(&self, set: &Self) -> Self {
        let mut merged = self.under(set);
        if let Some(appended) = &set.build.extra_flags {
            // The flags of `--set` must be appended last, because the compiler obeys the last flag. Flags that other
            // layers appended are therefore moved to `flags`. They cannot stay in `extra_flags`, before those of
            // `--set`, because in a printed plan a level can only append to the flags of the level above.
            let appended_before = self.build.extra_flags.clone().unwrap_or_default();
            merged.build.flags.get_or_insert_default().extend(appended_before);
            merged.build.extra_flags = Some(appended.clone());
        }
        merged
    }

    /// Returns the final settings, with `--set` applied. `None` if a key has no value because its value had a mistake.
    pub(super) fn settle(&self, set: &Self, findings: &mut Findings, spot: &Spot) -> Option<Settings> {
        let merged = self.overridden(set);
        Some(Settings {
            recycle: Arc::new(complete(merged.recycle, findings, spot)?),
            build: Arc::new(complete(merged.build, findings, spot)?),
            verify: Arc::new(complete(merged.verify, findings, spot)?),
            profile: Arc::new(complete(merged.profile, findings, spot)?),
            limits: Arc::new(complete(merged.limits, findings, spot)?),
        })
    }

    /// Returns the final settings of a job or candidate. `self` contains the merged layers of the level above, and
    /// `own` the layers of the job or candidate itself. Tables that `own` does not change are shared with `above`,
    /// which are the final settings of the level above.
    pub(super) fn settle_below(
        &self,
        own: &Self,
        set: &Self,
        above: &Settings,
        findings: &mut Findings,
        spot: &Spot,
    ) -> Option<Settings> {
        let fresh = self.under(own).settle(set, findings, spot)?;
        Some(Settings {
            recycle: shared(&above.recycle, fresh.recycle),
            build: shared(&above.build, fresh.build),
            verify: shared(&above.verify, fresh.verify),
            profile: shared(&above.profile, fresh.profile),
            limits: shared(&above.limits, fresh.limits),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.recycle.is_empty()
            && self.build.is_empty()
            && self.verify.is_empty()
            && self.profile.is_empty()
            && self.limits.is_empty()
    }
}

impl TopLayers {
    pub(super) fn read(root: &mut TableReader<'_, '_>, findings: &mut Findings) -> Self {
        Self {
            run: read_section(root, findings),
            memory: read_section(root, findings),
            shared: Layers::read(root, findings),
        }
    }

    pub(super) fn under(&self, stronger: &Self) -> Self {
        Self {
            run: merged(&self.run, &stronger.run),
            memory: merged(&self.memory, &stronger.memory),
            shared: self.shared.under(&stronger.shared),
        }
    }
}

fn merged<S: Section>(weaker: &S, stronger: &S) -> S {
    let mut result = weaker.clone();
    result.merge(stronger);
    result
}

fn shared<T: PartialEq>(above: &Arc<T>, fresh: Arc<T>) -> Arc<T> {
    if **above == *fresh { Arc::clone(above) } else { fresh }
}

pub(super) fn complete<S: Section>(layer: S, findings: &mut Findings, spot: &Spot) -> Option<S::Settings> {
    match layer.settle() {
        Ok(settings) => Some(settings),
        Err(key) => {
            // Every key has a default (a test ensures this) or gets a value from `resolve`. A value is therefore
            // missing only if a mistake was reported.
            if findings.count() == 0 {
                findings.report(spot, format!("`{}.{key}` has no value and no default", S::TABLE));
            }
            None
        }
    }
}

/// The default settings, which are compiled into the program.
pub(super) const DEFAULTS: &str = include_str!("../../../configs/default.toml");

/// The settings of `profile.parity = "kernelforge"`.
const KERNELFORGE: &str = include_str!("../../../configs/kernelforge.toml");

pub(super) fn read_defaults(findings: &mut Findings) -> TopLayers {
    read_compiled_in("configs/default.toml", DEFAULTS, findings)
}

fn read_compiled_in(name: &str, text: &str, findings: &mut Findings) -> TopLayers {
    let source = findings.add_source(name, text);
    let table = syntax::parse(text, source, findings);
    read_top(table.as_ref(), source, findings)
}

/// Reads a text that contains only top-level settings.
fn read_top(table: Option<&DeTable<'_>>, source: usize, findings: &mut Findings) -> TopLayers {
    let Some(table) = table else { return TopLayers::default() };
    let mut root = TableReader::new(table, Spot { source, span: 0..0, key: String::new() });
    let layers = TopLayers::read(&mut root, findings);
    root.finish(findings, &[], table_of_key);
    layers
}

/// Reads the arguments of `--set`. Each argument is a stronger layer than those before it.
pub(super) fn read_set(arguments: &[String], findings: &mut Findings) -> TopLayers {
    let mut layers = TopLayers::default();
    for argument in arguments {
        layers = layers.under(&read_one_set(argument, findings));
    }
    layers
}

/// Reads one `KEY=VALUE`. If it is not TOML, or if the key does not take this value, the value is read as a string
/// instead.
fn read_one_set(argument: &str, findings: &mut Findings) -> TopLayers {
    let source = findings.add_source(&format!("--set {}", super::error::quote(argument)), argument);
    let whole_argument = Spot { source, span: 0..argument.len(), key: String::new() };
    let Some((key, value)) = argument.split_once('=').filter(|_| !argument.contains(['\n', '\r'])) else {
        findings
            .report(&whole_argument, "this argument is not a setting")
            .expected("KEY=VALUE on one line, such as verify.repeats=3");
        return TopLayers::default();
    };
    let before = findings.count();
    let read = |text: &str, findings: &mut Findings| {
        let table = syntax::parse(text, source, findings);
        read_top(table.as_ref(), source, findings)
    };
    let as_toml = read(argument, findings);
    let as_toml_errors = findings.split_off(before);
    if as_toml_errors.is_empty() {
        return as_toml;
    }
    // A quoted value that the key does not take is an error. If it were read as a string, the quotes would become part
    // of it.
    let is_toml = toml::de::DeTable::parse(argument).is_ok();
    if is_toml && value.trim_start().starts_with(['"', '\'']) {
        findings.put_back(as_toml_errors);
        return TopLayers::default();
    }
    let as_string = read(&format!("{key}={}", super::print::string(value.trim())), findings);
    let as_string_errors = findings.split_off(before);
    if as_string_errors.is_empty() {
        return as_string;
    }
    // Errors of the first reading are reported if it was TOML, because their positions fit the argument. Otherwise, the
    // errors of the second reading explain more. The key is at the same position in both.
    findings.put_back(if is_toml { as_toml_errors } else { as_string_errors });
    TopLayers::default()
}
