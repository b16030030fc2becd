//! Engines and sources as they are shown, to people and as JSON; the shapes are described in `docs/cli.md`.

use std::io::{self, Write};

use comfy_table::CellAlignment;
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    act::{Described, described},
    cli::{
        columns::{columns, printed},
        terminal::size,
    },
    model::catalog::moment,
    store::{
        Counted, Kind,
        results::{Kept, Swept, User},
    },
};

/// First digits of a key, which name a result.
const DIGITS: usize = 12;

/// An engine, or the source of one.
#[derive(Debug, Serialize)]
pub(super) struct Engine {
    key: String,
    kind: Kind,
    name: String,
    version: Option<String>,
    from: Option<String>,
    path: String,
    size_bytes: u64,
    in_use_by: Option<String>,
    created: Timestamp,
    last_used: Timestamp,
    last_used_by: Option<String>,
    #[serde(skip)]
    user: Option<User>,
}

impl Engine {
    pub(super) fn of(kept: &Kept, user: Option<User>) -> Self {
        let manifest = &kept.manifest;
        let Described { version, from } = described(manifest);
        Self {
            key: manifest.key.hex.clone(),
            kind: manifest.key.kind,
            name: manifest.name.clone(),
            version,
            from,
            path: kept.path.to_string_lossy().into_owned(),
            size_bytes: Counted::default().bytes(&kept.path),
            in_use_by: user.as_ref().map(User::to_string),
            created: manifest.created,
            last_used: kept.last_used,
            last_used_by: kept.last_used_by.clone(),
            user,
        }
    }

    /// Who uses it, in a word or two.
    fn used_by(&self) -> String {
        match &self.user {
            Some(User::Pools(pools)) => pools.join(", "),
            Some(User::Run) => "(a run)".to_owned(),
            None => "-".to_owned(),
        }
    }
}

/// `host engine list`.
#[derive(Debug, Serialize)]
pub(super) struct List {
    pub(super) schema: u32,
    pub(super) engines: Vec<Engine>,
}

impl List {
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        const SIZE: usize = 4;
        if self.engines.is_empty() {
            return writeln!(out, "no engine is here");
        }
        let mut table = columns();
        table.set_header([
            "NAME",
            "KEY",
            "KIND",
            "VERSION",
            "SIZE",
            "LAST USED",
            "IN USE BY",
        ]);
        for engine in &self.engines {
            table.add_row([
                engine.name.clone(),
                engine.key[..DIGITS].to_owned(),
                engine.kind.as_str().to_owned(),
                engine.version.clone().unwrap_or_else(|| "-".to_owned()),
                size(engine.size_bytes),
                moment(engine.last_used),
                engine.used_by(),
            ]);
        }
        if let Some(column) = table.column_mut(SIZE) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        out.write_all(printed(table).as_bytes())
    }
}

/// `host engine remove`, `host engine gc`.
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
        for one in &self.swept.removed {
            let (kind, name, key) = (one.kind.as_str(), &one.name, &one.key[..DIGITS]);
            let (why, bytes) = (one.reason.as_str(), size(one.size_bytes));
            writeln!(out, "{removed} {kind} {name} {key} ({bytes}; {why})")?;
        }
        if self.swept.rubbish_bytes > 0 {
            let bytes = size(self.swept.rubbish_bytes);
            writeln!(out, "{removed} what crashes have left ({bytes})")?;
        }
        writeln!(out, "{freed} {}", size(self.freed_bytes))
    }
}
