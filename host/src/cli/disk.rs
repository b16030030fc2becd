//! `host disk`: what takes space, and what a clean-up would free.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    path::Path,
};

use comfy_table::CellAlignment;
use serde::Serialize;

use super::{
    columns::{columns, printed},
    context::Context,
    terminal::size,
};
use crate::{
    container::Images,
    fault::{Exit, Failure},
    model::catalog::{Catalog, CatalogError},
    store::{self, Counted, Kind, Limits, Store, results::Results},
};

/// Schema of the JSON form.
const SCHEMA: u32 = 1;

/// What takes space in one installation.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    home: String,
    free_bytes: Option<u64>,
    parts: Vec<Part>,
    total_bytes: u64,
    gc_frees_bytes: u64,
    #[serde(skip)]
    gc: Gc,
}

/// What clean-ups without limits would free.
#[derive(Debug, Default)]
struct Gc {
    models_bytes: u64,
    engines_bytes: u64,
}

/// One kind of things.
#[derive(Debug, Serialize)]
struct Part {
    kind: &'static str,
    size_bytes: u64,
    /// Whether it lies below `home`: images are kept by their runtimes.
    here: bool,
    items: Vec<Item>,
}

/// One thing.
#[derive(Debug, Serialize)]
struct Item {
    name: String,
    size_bytes: u64,
}

pub(super) async fn run(context: &Context) -> Result<Exit, Failure> {
    let home = &context.host.home;
    let store = Store::open(home);
    let catalog = Catalog::of_home(home);
    let gc = match home.store().exists() {
        true => gc(context, &store, &catalog).await?,
        false => Gc::default(),
    };
    let mut seen = Counted::default();
    let mut parts = vec![
        models(&catalog, &mut seen)?,
        results(
            "engines",
            &store,
            &[Kind::Build, Kind::Observe, Kind::Archive],
            &mut seen,
        ),
        results("sources", &store, &[Kind::Source], &mut seen),
        plain(
            "partial downloads",
            &store.root().join("partial"),
            &mut seen,
        ),
        plain("logs", &home.logs(), &mut seen),
        plain("caches", &home.root().join("cache"), &mut seen),
    ];
    parts.push(plain("other", home.root(), &mut seen));
    let total_bytes = parts.iter().map(|part| part.size_bytes).sum();
    parts.push(images(&store));
    let report = Report {
        schema: SCHEMA,
        home: home.root().display().to_string(),
        free_bytes: store::free_bytes(home.root()),
        parts,
        total_bytes,
        gc_frees_bytes: gc.models_bytes + gc.engines_bytes,
        gc,
    };
    context.show(&report, |out| report.write(out))?;
    Ok(Exit::Success)
}

async fn gc(context: &Context, store: &Store, catalog: &Catalog) -> Result<Gc, Failure> {
    let (limits, cancel) = (Limits::default(), &context.host.cancel);
    let engines = context.host.paths_in_use()?;
    let models = catalog.sweep(limits, &engines, true, cancel).await?;
    let results = Results::of(store).sweep(limits, &engines, true, cancel)?;
    Ok(Gc {
        models_bytes: models.freed_bytes(),
        engines_bytes: results.freed_bytes(),
    })
}

fn models(catalog: &Catalog, seen: &mut Counted) -> Result<Part, CatalogError> {
    let mut items = Vec::new();
    for entry in catalog.entries()? {
        let own = entry.files.iter().filter(|file| file.place.is_none());
        let blobs = own.map(|file| {
            let blob = catalog.store().blob_path(&file.sha256);
            seen.bytes(&blob) + seen.bytes(&blob.with_extension("json"))
        });
        items.push(Item {
            size_bytes: blobs.sum(),
            name: entry.id,
        });
    }
    let rest = seen.bytes(&catalog.store().blobs());
    if rest > 0 {
        items.push(Item {
            name: "no model's".to_owned(),
            size_bytes: rest,
        });
    }
    Ok(part("models", items))
}

/// Results by the name that they keep across rebuilds.
fn results(kind: &'static str, store: &Store, kinds: &[Kind], seen: &mut Counted) -> Part {
    let mut items: Vec<Item> = Vec::new();
    for manifest in kinds.iter().flat_map(|kind| store.entries(*kind)) {
        let path = store.path_of(&manifest.key);
        let size_bytes = seen.bytes(path.parent().unwrap_or(&path));
        match items.iter_mut().find(|item| item.name == manifest.name) {
            Some(item) => item.size_bytes += size_bytes,
            None => items.push(Item {
                name: manifest.name,
                size_bytes,
            }),
        }
    }
    part(kind, items)
}

fn plain(kind: &'static str, path: &Path, seen: &mut Counted) -> Part {
    let size_bytes = seen.bytes(path);
    Part {
        kind,
        size_bytes,
        here: true,
        items: Vec::new(),
    }
}

fn part(kind: &'static str, mut items: Vec<Item>) -> Part {
    items.sort_by(|a, b| {
        b.size_bytes
            .cmp(&a.size_bytes)
            .then_with(|| a.name.cmp(&b.name))
    });
    Part {
        kind,
        size_bytes: items.iter().map(|item| item.size_bytes).sum(),
        here: true,
        items,
    }
}

/// Images that were pulled, by what they were asked for, at what was fetched of them.
fn images(store: &Store) -> Part {
    let mut seen = BTreeSet::new();
    let images = Images::of(store);
    let items = images
        .records()
        .filter(|record| seen.insert(record.configuration_digest.clone()))
        .map(|record| Item {
            name: record.asked,
            size_bytes: record.size_bytes,
        });
    Part {
        here: false,
        ..part("images", items.collect())
    }
}

impl Report {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = columns();
        for part in self.parts.iter().filter(|part| part.size_bytes > 0) {
            let kind = match part.here {
                true => part.kind.to_owned(),
                false => format!("{} (kept by their runtime)", part.kind),
            };
            table.add_row([kind, size(part.size_bytes)]);
            for item in part.items.iter().filter(|item| item.size_bytes > 0) {
                table.add_row([format!("  {}", item.name), size(item.size_bytes)]);
            }
        }
        table.add_row(["total".to_owned(), size(self.total_bytes)]);
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        out.write_all(printed(table).as_bytes())?;
        let free = self.free_bytes.map_or_else(|| "?".to_owned(), size);
        writeln!(out, "\n{free} free where {} lies", self.home)?;
        let (models, engines) = (self.gc.models_bytes, self.gc.engines_bytes);
        for (bytes, why, command) in [
            (models, "nobody's or retired", "model gc"),
            (engines, "superseded or left by crashes", "engine gc"),
        ] {
            if bytes > 0 {
                let bytes = size(bytes);
                writeln!(out, "{bytes} are {why}: `host {command}` frees them")?;
            }
        }
        Ok(())
    }
}
