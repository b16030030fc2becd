//! `host provider list | inspect`: what plugins there are, said without running any of them.

use std::{
    io::{self, Write},
    path::Path,
};

use comfy_table::Table;
use engine_provider_api::Mode;
use schemars::JsonSchema;
use serde::Serialize;

use super::columns::{columns, printed};
use crate::provider::{
    Catalog, Entry, Found, Outcome, ProviderFault, Search, Tier, Trust, inspect as inspect_file,
};

/// Schema number of both documents.
const SCHEMA: u32 = 1;

/// What `host provider list --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProviderList {
    /// Schema number of this document.
    pub schema: u32,
    /// Every candidate, in the order of the search.
    pub providers: Vec<ProviderEntry>,
    /// Directories that exist but could not be read.
    pub unreadable: Vec<Unreadable>,
}

/// One candidate.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProviderEntry {
    /// Name: its manifest's, else what its file name says.
    pub name: String,
    /// Whether it is what its name stands for.
    pub state: State,
    /// Why it is not; one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Version (semver).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Contract version it was built against.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract: Option<String>,
    /// One sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Modes it offers, its default first.
    pub modes: Vec<Mode>,
    /// Where it was found.
    pub tier: Tier,
    /// Its file.
    pub path: String,
}

/// What became of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Its name stands for it.
    Chosen,
    /// Usable, but another one is chosen.
    Shadowed,
    /// Not usable.
    Refused,
}

/// A directory that could not be read.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Unreadable {
    /// The directory.
    pub path: String,
    /// Why not.
    pub reason: String,
}

/// What `host provider inspect --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProviderReport {
    /// Schema number of this document.
    pub schema: u32,
    /// Name.
    pub name: String,
    /// Version (semver).
    pub version: String,
    /// Contract version it was built against.
    pub contract: String,
    /// One sentence.
    pub description: String,
    /// Modes it offers, its default first.
    pub modes: Vec<Mode>,
    /// Operations beyond the contract's own.
    pub ops: Vec<String>,
    /// Where it was found.
    pub tier: Tier,
    /// Its file.
    pub path: String,
    /// Digest of the file, 64 hexadecimal digits.
    pub sha256: String,
    /// Whether it came with the host.
    pub trust: Trust,
    /// Whether it is refused where the worker's sandbox does not hold.
    pub sandbox_required: bool,
    /// Newest glibc it takes symbols from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs_glibc: Option<String>,
}

/// Names of the providers that are found, also of those that cannot be used, sorted.
#[must_use]
pub fn names(search: &Search) -> Vec<String> {
    let entries = Catalog::search(search).entries;
    let mut names: Vec<String> = entries.iter().map(Entry::name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Lists every provider found.
#[must_use]
pub fn list(search: &Search) -> ProviderList {
    let catalog = Catalog::search(search);
    ProviderList {
        schema: SCHEMA,
        providers: catalog.entries.iter().map(entry).collect(),
        unreadable: catalog
            .unreadable
            .into_iter()
            .map(|(path, reason)| Unreadable {
                path: shown(&path),
                reason,
            })
            .collect(),
    }
}

/// Looks at one provider: a path where it has a slash, a name otherwise.
pub fn inspect(name_or_path: &str, search: &Search) -> Result<ProviderReport, ProviderFault> {
    let found = if name_or_path.contains('/') {
        inspect_file(Path::new(name_or_path), search)?
    } else {
        Catalog::search(search).select(name_or_path, None)?.clone()
    };
    report(found)
}

fn entry(entry: &Entry) -> ProviderEntry {
    let manifest = entry.manifest();
    ProviderEntry {
        name: entry.name(),
        state: match entry.outcome {
            Outcome::Chosen(_) => State::Chosen,
            Outcome::Shadowed { .. } => State::Shadowed,
            Outcome::Refused(_) => State::Refused,
        },
        reason: entry.reason().map(|reason| printable(&reason)),
        version: manifest.map(|manifest| manifest.version.clone()),
        contract: manifest.map(|manifest| manifest.contract.clone()),
        description: manifest.map(|manifest| manifest.description.clone()),
        modes: manifest
            .map(|manifest| manifest.modes.clone())
            .unwrap_or_default(),
        tier: entry.tier,
        path: shown(&entry.path),
    }
}

fn report(found: Found) -> Result<ProviderReport, ProviderFault> {
    Ok(ProviderReport {
        schema: SCHEMA,
        sha256: found.sha256()?,
        name: found.manifest.name,
        version: found.manifest.version,
        contract: found.manifest.contract,
        description: found.manifest.description,
        modes: found.manifest.modes,
        ops: found.manifest.ops,
        tier: found.tier,
        path: shown(&found.path),
        trust: found.trust,
        sandbox_required: found.trust.requires_sandbox(),
        needs_glibc: found.needs_glibc.map(|version| version.to_string()),
    })
}

impl ProviderList {
    /// Writes it for people: a table of what can be used, then what cannot and why.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let of_state = |state| self.providers.iter().filter(move |one| one.state == state);
        if of_state(State::Chosen).next().is_none() {
            writeln!(out, "No provider can be used.")?;
        } else {
            out.write_all(printed(table(of_state(State::Chosen))).as_bytes())?;
        }
        for (state, title) in [
            (State::Shadowed, "Not used"),
            (State::Refused, "Cannot be used"),
        ] {
            if of_state(state).next().is_some() {
                writeln!(out, "\n{title}:")?;
            }
            for one in of_state(state) {
                writeln!(out, "  {}", one.path)?;
                let version = one.version.as_deref().unwrap_or_default();
                let title = format!("{} {version}", one.name);
                let reason = one.reason.as_deref().unwrap_or_default();
                writeln!(out, "      {}: {reason}", title.trim_end())?;
            }
        }
        for directory in &self.unreadable {
            writeln!(
                out,
                "\nNot searched: {}: {}",
                directory.path, directory.reason
            )?;
        }
        Ok(())
    }
}

fn table<'a>(providers: impl Iterator<Item = &'a ProviderEntry>) -> Table {
    let mut table = columns();
    table.set_header(["NAME", "VERSION", "MODES", "FOUND", "PATH"]);
    for one in providers {
        table.add_row([
            one.name.clone(),
            one.version.clone().unwrap_or_default(),
            words(&one.modes),
            one.tier.to_string(),
            one.path.clone(),
        ]);
    }
    table
}

impl ProviderReport {
    /// Writes it for people.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let sandbox = match self.trust {
            Trust::Host => "as far as this machine can; it came with this program",
            Trust::ThirdParty => "required; it did not come with this program",
        };
        let mut line = |label: &str, text: &str| writeln!(out, "{label:>12}  {text}");
        line("name", &self.name)?;
        line("version", &self.version)?;
        line("about", &self.description)?;
        line("modes", &words(&self.modes))?;
        if !self.ops.is_empty() {
            line("operations", &self.ops.join(", "))?;
        }
        line("contract", &self.contract)?;
        line("path", &self.path)?;
        line("found", &self.tier.to_string())?;
        line("sha256", &self.sha256)?;
        line("sandbox", sandbox)?;
        if let Some(version) = &self.needs_glibc {
            line("needs glibc", version)?;
        }
        Ok(())
    }
}

fn words(modes: &[Mode]) -> String {
    let words: Vec<&str> = modes.iter().map(|mode| mode.as_str()).collect();
    words.join(", ")
}

/// A path as text that cannot steer a terminal, whoever named the file.
fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}
