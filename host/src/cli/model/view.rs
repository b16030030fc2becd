//! Models as they are shown, to people and as JSON; the shapes are described in `docs/cli.md`.

use std::io::{self, Write};

use comfy_table::CellAlignment;
use engine_provider_api::{ModelFacts, ModelShape};
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    cli::{
        columns::{columns, printed},
        terminal::size,
    },
    model::catalog::{Catalog, Entry, EntryFile, Name, Provenance, State, Swept, moment},
};

/// A model.
#[derive(Debug, Serialize)]
pub(super) struct Model {
    id: String,
    references: Vec<Reference>,
    path: String,
    shape: ModelShape,
    digest: String,
    size_bytes: u64,
    files: Vec<EntryFile>,
    revision: Option<String>,
    licence: Option<String>,
    facts: Option<ModelFacts>,
    state: State,
    in_use_by: Option<String>,
    added: Timestamp,
    last_used: Timestamp,
    last_verified: Option<Timestamp>,
    provenance: Provenance,
}

/// A reference that a model was asked for by.
#[derive(Debug, Serialize)]
struct Reference {
    reference: String,
    pinned: String,
    resolved: Timestamp,
}

impl From<&Name> for Reference {
    fn from(name: &Name) -> Self {
        Self {
            reference: name.reference.clone(),
            pinned: name.pinned.clone(),
            resolved: name.resolved,
        }
    }
}

impl Model {
    pub(super) fn of(catalog: &Catalog, entry: &Entry, in_use_by: Option<String>) -> Self {
        Self {
            id: entry.id.clone(),
            references: entry.names.iter().map(Reference::from).collect(),
            path: entry.path.to_string_lossy().into_owned(),
            shape: entry.shape,
            digest: entry.digest.clone(),
            size_bytes: entry.size_bytes,
            files: entry.files.clone(),
            revision: entry.revision.clone(),
            licence: entry.licence.clone(),
            facts: entry.facts.clone(),
            state: entry.state,
            in_use_by,
            added: entry.added,
            last_used: catalog.last_used(entry),
            last_verified: catalog.last_verified(entry),
            provenance: entry.provenance.clone(),
        }
    }

    /// `active`, `retired`, and whether it is in use.
    fn state(&self) -> String {
        match self.in_use_by {
            Some(_) => format!("{}, in use", self.state.as_str()),
            None => self.state.as_str().to_owned(),
        }
    }
}

/// `host model list`.
#[derive(Debug, Serialize)]
pub(super) struct List {
    pub(super) schema: u32,
    pub(super) models: Vec<Model>,
}

impl List {
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.models.is_empty() {
            return writeln!(out, "no model is here");
        }
        let mut table = columns();
        table.set_header(["ID", "SIZE", "STATE", "LAST USED", "REFERENCE"]);
        for model in &self.models {
            let references = model.references.iter().map(|name| name.reference.as_str());
            table.add_row([
                model.id.clone(),
                size(model.size_bytes),
                model.state(),
                moment(model.last_used),
                references.collect::<Vec<_>>().join(", "),
            ]);
        }
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        out.write_all(printed(table).as_bytes())
    }
}

/// `host model show`.
#[derive(Debug, Serialize)]
pub(super) struct One {
    pub(super) schema: u32,
    #[serde(flatten)]
    pub(super) model: Model,
}

impl One {
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let lines = self.lines();
        let labels = lines.iter().map(|(label, _)| label.len());
        let width = labels.max().unwrap_or_default();
        lines.iter().try_for_each(|(label, text)| {
            // What a file says of itself must not pass for a line of ours.
            writeln!(out, "{label:<width$} {}", text.replace('\n', " "))
        })
    }

    fn lines(&self) -> Vec<(String, String)> {
        let model = &self.model;
        let mut lines = Vec::new();
        let mut line = |label: &str, text: &str| lines.push((label.to_owned(), text.to_owned()));
        line("id", &model.id);
        line("path", &model.path);
        line("digest", &model.digest);
        line("size", &size(model.size_bytes));
        line("state", &model.state());
        if let Some(by) = &model.in_use_by {
            line("used by", by);
        }
        for name in &model.references {
            line("reference", &name.reference);
            if name.pinned != name.reference {
                let day = moment(name.resolved);
                line("", &format!("{}, as resolved on {day}", name.pinned));
            }
        }
        for from in &model.provenance.from {
            line("from", from);
        }
        line("trusted by", trust(&model.provenance));
        if let Some(revision) = &model.revision {
            line("revision", revision);
        }
        if let Some(licence) = &model.licence {
            line("licence", licence);
        }
        for (label, text) in model.facts.iter().flat_map(known) {
            line(&label, &text);
        }
        line("added", &moment(model.added));
        line("last used", &moment(model.last_used));
        let verified = model
            .last_verified
            .map_or_else(|| "never".to_owned(), moment);
        line("last verified", &verified);
        if model.files.len() > 1 {
            for file in &model.files {
                line(
                    "file",
                    &format!("{} ({})", file.name, size(file.size_bytes)),
                );
            }
        }
        lines
    }
}

/// What a model's own files say, a line each.
fn known(facts: &ModelFacts) -> Vec<(String, String)> {
    let facts = serde_json::to_value(facts).expect("facts are plain data");
    let line = |(name, value): (&String, &serde_json::Value)| {
        let text = match value {
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Number(number) => number.to_string(),
            serde_json::Value::Bool(flag) => flag.to_string(),
            _ => return None,
        };
        Some((name.replace('_', " "), text))
    };
    facts
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(line)
        .collect()
}

fn trust(provenance: &Provenance) -> &'static str {
    use crate::model::catalog::Trust;
    match provenance.trust {
        Trust::Checksum => "the checksum that was given",
        Trust::Source => "the digest that its source publishes",
        Trust::FirstUse => "first use: nobody said what it must be",
    }
}

/// `host model add`.
#[derive(Debug, Serialize)]
pub(super) struct Added {
    schema: u32,
    id: String,
    path: String,
    digest: String,
    size_bytes: u64,
}

impl Added {
    pub(super) fn of(schema: u32, entry: &Entry) -> Self {
        Self {
            schema,
            id: entry.id.clone(),
            path: entry.path.to_string_lossy().into_owned(),
            digest: entry.digest.clone(),
            size_bytes: entry.size_bytes,
        }
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "id      {}", self.id)?;
        writeln!(out, "path    {}", self.path)?;
        writeln!(out, "digest  {}", self.digest)?;
        writeln!(out, "size    {}", size(self.size_bytes))
    }
}

/// `host model verify`.
#[derive(Debug, Serialize)]
pub(super) struct Verified {
    schema: u32,
    verified: Vec<Checked>,
}

#[derive(Debug, Serialize)]
struct Checked {
    id: String,
    digest: String,
    sound: bool,
    damaged: Vec<String>,
}

impl Verified {
    pub(super) fn of(schema: u32, all: &[(Entry, Vec<String>)]) -> Self {
        let checked = |(entry, damaged): &(Entry, Vec<String>)| Checked {
            id: entry.id.clone(),
            digest: entry.digest.clone(),
            sound: damaged.is_empty(),
            damaged: damaged.clone(),
        };
        Self {
            schema,
            verified: all.iter().map(checked).collect(),
        }
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        for checked in &self.verified {
            match checked.sound {
                true => writeln!(out, "{}: sound", checked.id)?,
                false => writeln!(out, "{}: damaged", checked.id)?,
            }
        }
        if self.verified.is_empty() {
            writeln!(out, "no model is here")?;
        }
        Ok(())
    }
}

/// `host model retire`.
#[derive(Debug, Serialize)]
pub(super) struct Ids {
    pub(super) schema: u32,
    pub(super) retired: Vec<String>,
}

impl Ids {
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.retired
            .iter()
            .try_for_each(|id| writeln!(out, "retired {id}"))
    }
}

/// `host model remove`, `host model gc`.
#[derive(Debug, Serialize)]
pub(super) struct Collected {
    schema: u32,
    dry_run: bool,
    #[serde(flatten)]
    swept: Swept,
    freed_bytes: u64,
}

impl Collected {
    pub(super) fn of(schema: u32, swept: Swept, dry_run: bool) -> Self {
        Self {
            schema,
            dry_run,
            freed_bytes: swept.freed_bytes(),
            swept,
        }
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let (removed, freed) = match self.dry_run {
            true => ("would remove", "would free"),
            false => ("removed", "freed"),
        };
        for model in &self.swept.removed {
            let (id, why, bytes) = (&model.id, model.reason.as_str(), size(model.size_bytes));
            writeln!(out, "{removed} {id} ({bytes}; {why})")?;
        }
        writeln!(out, "{freed} {}", size(self.freed_bytes))?;
        if self.swept.postponed {
            writeln!(
                out,
                "note: a model is being staged, so files that no model needs stay until the next clean-up"
            )?;
        }
        Ok(())
    }
}
