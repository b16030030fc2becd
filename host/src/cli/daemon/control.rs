//! `host up`, `down`, `drain`, `reload`, `restart`.

use jiff::Timestamp;

use super::{events::told_until, reach, table};
use crate::{
    api::{
        Question,
        client::{Client, ClientError},
        documents::{Draining, Waiting},
        operations::{
            DOWN_POOL, DRAIN_POOL, RELOAD_CONFIG, RELOAD_POOL, RESTART_POOL, SHUT_DOWN, UP_POOL,
        },
    },
    cli::{
        arguments::{
            DownArguments, DrainArguments, ReloadArguments, RestartArguments, UpArguments,
        },
        context::Context,
    },
    fault::{Exit, Failure},
    pool::PoolStatus,
};

/// Brings a pool up, or all of them, starting a daemon where none runs.
pub(in crate::cli) async fn up(
    context: &Context,
    arguments: &UpArguments,
) -> Result<Exit, Failure> {
    // A daemon that is started begins at once.
    let since = Timestamp::now();
    let client = reach::or_start(context, &arguments.pools).await?;
    let pools = match &arguments.pool {
        Some(pool) => vec![pool.clone()],
        None => all(&client).await?,
    };
    let waiting = Waiting {
        wait: arguments.no_wait.then_some(false),
    };
    // Side by side; each failure is the answer.
    let asked = pools.iter().map(|pool| {
        let (client, question) = (&client, UP_POOL.of(&[pool]).with(&waiting));
        async move { client.ask(&question).await }
    });
    let mut statuses = Vec::new();
    let mut failed = None;
    let asked = futures_util::future::join_all(asked);
    for answer in told_until(&*context.retold(), &client, &pools, since, asked).await {
        match answer {
            Ok(status) => statuses.push(status),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    if let Some(error) = failed {
        return Err(error.into());
    }
    table::show(context, &statuses)?;
    Ok(Exit::Success)
}

/// Pools that do not wait for demand.
async fn all(client: &Client) -> Result<Vec<String>, Failure> {
    let pools = table::fetch(client, None).await?;
    let now = pools
        .into_iter()
        .filter(|pool| pool.want != crate::pool::Want::OnDemand);
    Ok(now.map(|pool| pool.pool_id).collect())
}

/// Stops a pool, or the daemon.
pub(in crate::cli) async fn down(
    context: &Context,
    arguments: &DownArguments,
) -> Result<Exit, Failure> {
    let client = reach::client(context);
    match &arguments.pool {
        Some(pool) => act(context, &client, pool, &DOWN_POOL.of(&[pool])).await,
        None => {
            client.ask(&SHUT_DOWN.of(&[])).await?;
            reach::until_gone(&client, &reach::socket(context)).await?;
            context.print("the daemon has stopped its engines and has ended\n");
            Ok(Exit::Success)
        }
    }
}

/// Stops a pool once its leases have run out.
pub(in crate::cli) async fn drain(
    context: &Context,
    arguments: &DrainArguments,
) -> Result<Exit, Failure> {
    let deadline = arguments.deadline.map(|it| it.as_millis());
    let draining = Draining {
        deadline_ms: deadline.map(|it| u64::try_from(it).unwrap_or(u64::MAX)),
        ..Draining::default()
    };
    let question = DRAIN_POOL.of(&[&arguments.pool]).with(&draining);
    act(context, &reach::client(context), &arguments.pool, &question).await
}

/// Swaps a pool's engines, or applies what differs in the pool file.
pub(in crate::cli) async fn reload(
    context: &Context,
    arguments: &ReloadArguments,
) -> Result<Exit, Failure> {
    let client = reach::client(context);
    if let Some(pool) = &arguments.pool {
        return act(context, &client, pool, &RELOAD_POOL.of(&[pool])).await;
    }
    let changes = client.ask(&RELOAD_CONFIG.of(&[])).await?;
    let failed = changes.failed.iter().map(|it| it.pool_id.clone()).collect();
    context.show(&changes, |out| {
        let lists = [
            ("added", &changes.added),
            ("removed", &changes.removed),
            ("changed", &changes.changed),
            ("failed", &failed),
        ];
        let some = lists.iter().filter(|(_, names)| !names.is_empty());
        let mut none = true;
        for (word, names) in some {
            none = false;
            writeln!(out, "{word:<8} {}", names.join(", "))?;
        }
        if changes.notify {
            none = false;
            writeln!(out, "{:<8} notify", "changed")?;
        }
        match none {
            true => writeln!(out, "nothing differs"),
            false => Ok(()),
        }
    })?;
    match changes.failed.into_iter().next().map(Box::new) {
        Some(failed) => Err(ClientError::NotApplied { failed }.into()),
        None => Ok(Exit::Success),
    }
}

/// Stops and starts a pool's engines.
pub(in crate::cli) async fn restart(
    context: &Context,
    arguments: &RestartArguments,
) -> Result<Exit, Failure> {
    let question = RESTART_POOL.of(&[&arguments.pool]);
    act(context, &reach::client(context), &arguments.pool, &question).await
}

async fn act<Q>(
    context: &Context,
    client: &Client,
    pool: &str,
    question: &Question<Q, PoolStatus>,
) -> Result<Exit, Failure> {
    let pools = [pool.to_owned()];
    let asked = client.ask(question);
    let status = told_until(&*context.retold(), client, &pools, Timestamp::now(), asked).await?;
    table::show(context, &[status])?;
    Ok(Exit::Success)
}
