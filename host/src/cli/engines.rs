//! `host engine`: the engines that are here, and their sources.

mod view;

use std::collections::BTreeSet;

use super::{
    arguments::{CollectArguments, EngineArguments, EngineCommand},
    context::Context,
    signals,
};
use crate::{
    fault::{Exit, Failure},
    store::{
        Limits, Store,
        results::{Kept, Removal, ResultError, Results, Swept},
    },
};

/// Schema of the JSON forms.
const SCHEMA: u32 = 1;

pub(super) async fn run(context: &Context, arguments: &EngineArguments) -> Result<Exit, Failure> {
    let received = signals::cancel_on_signal(context.host.cancel.clone());
    let engines = Engines {
        context,
        results: Results::of(&Store::open(&context.host.home)),
    };
    let done = match &arguments.command {
        EngineCommand::List => engines.list(),
        EngineCommand::Remove {
            engines: names,
            dry_run,
        } => engines.remove(names, *dry_run).await,
        EngineCommand::Gc(limits) => engines.collect(*limits).await,
    };
    match done {
        Ok(()) => Ok(Exit::Success),
        Err(failure) => received.or(failure),
    }
}

/// Deletes elsewhere, so that a signal is heard meanwhile.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.expect("removing files does not panic")
}

struct Engines<'a> {
    context: &'a Context,
    results: Results,
}

impl Engines<'_> {
    fn list(&self) -> Result<(), Failure> {
        let in_use = self.context.host.paths_in_use()?;
        let mut engines = Vec::new();
        // What a program printed takes no space that is worth a line.
        for kept in self.results.all().iter().filter(|it| it.manifest.has_tree) {
            let user = self.results.user_of(&kept.manifest.key, &in_use);
            engines.push(view::Engine::of(kept, user.map_err(ResultError::from)?));
        }
        let list = view::List {
            schema: SCHEMA,
            engines,
        };
        self.context.show(&list, |out| list.write(out))
    }

    /// Whoever is named wrongly, or is in use, keeps the others from being removed.
    async fn remove(&self, names: &[String], dry_run: bool) -> Result<(), Failure> {
        let in_use = self.context.host.paths_in_use()?;
        let chosen = names.iter().map(|name| self.results.select(name));
        let mut chosen = chosen.collect::<Result<Vec<Kept>, ResultError>>()?;
        let mut seen = BTreeSet::new();
        chosen.retain(|kept| seen.insert(kept.manifest.key.hex.clone()));
        let (results, cancel) = (self.results.clone(), self.context.host.cancel.clone());
        let removed = blocking(move || {
            let all = |dry| {
                let removed = chosen
                    .iter()
                    .map(|kept| results.remove(kept, &in_use, dry, &cancel));
                removed.collect::<Result<Vec<Removal>, ResultError>>()
            };
            let would = all(true)?;
            if dry_run { Ok(would) } else { all(false) }
        });
        let swept = Swept {
            removed: removed.await?,
            ..Swept::default()
        };
        self.show_swept(swept, dry_run)
    }

    async fn collect(&self, arguments: CollectArguments) -> Result<(), Failure> {
        let limits = Limits::from(arguments);
        let in_use = self.context.host.paths_in_use()?;
        let (results, cancel) = (self.results.clone(), self.context.host.cancel.clone());
        let dry = arguments.dry_run;
        let swept = blocking(move || results.sweep(limits, &in_use, dry, &cancel)).await?;
        self.show_swept(swept, dry)
    }

    fn show_swept(&self, swept: Swept, dry_run: bool) -> Result<(), Failure> {
        let report = view::Collected::of(SCHEMA, swept, dry_run);
        self.context.show(&report, |out| report.write(out))
    }
}
