//! `host status`: what the daemon knows of its pools.

use std::{
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

use jiff::Timestamp;
use serde_json::json;

use super::reach;
use crate::{
    api::{
        client::{Client, ClientError},
        operations::{GET_POOL, LIST_POOLS},
    },
    cli::{
        arguments::StatusArguments,
        columns::{columns, printed},
        context::Context,
        report::Called,
        signals,
    },
    fault::{Exit, Failure},
    pool::{BreakerState, PoolStatus, ReplicaState, ReplicaStatus},
    store::human_bytes,
};

/// How often a watched status is asked for.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Schema of the JSON form.
const SCHEMA: u32 = 1;

/// Shows one pool or all, once or until interrupted.
pub(in crate::cli) async fn run(
    context: &Context,
    arguments: &StatusArguments,
) -> Result<Exit, Failure> {
    let client = reach::client(context);
    let pool = arguments.pool.as_deref();
    if !arguments.watch {
        let pools = fetch(&client, pool).await?;
        show(context, &pools)?;
        return Ok(Exit::Success);
    }
    let stop = context.host.cancel.clone();
    let received = signals::cancel_on_signal(stop.clone());
    let mut last = None;
    loop {
        let pools = fetch(&client, pool).await?;
        redraw(context, &pools, &mut last)?;
        if context.cannot_print() {
            return Ok(Exit::Success);
        }
        tokio::select! {
            () = tokio::time::sleep(WATCH_INTERVAL) => {}
            () = stop.cancelled() => return Ok(received.exit().unwrap_or(Exit::Success)),
        }
    }
}

/// One pool or all.
pub(super) async fn fetch(
    client: &Client,
    pool: Option<&str>,
) -> Result<Vec<PoolStatus>, ClientError> {
    match pool {
        Some(pool) => Ok(vec![client.ask(&GET_POOL.of(&[pool])).await?]),
        None => Ok(client.ask(&LIST_POOLS.of(&[])).await?.pools),
    }
}

/// On a terminal the table is drawn over itself; elsewhere a changed one follows the last.
fn redraw(
    context: &Context,
    pools: &[PoolStatus],
    last: &mut Option<String>,
) -> Result<(), Failure> {
    if context.output.json {
        let text = json!(pools).to_string();
        if last.as_ref() != Some(&text) {
            show(context, pools)?;
            *last = Some(text);
        }
        return Ok(());
    }
    let text = table(pools, &context.called, Timestamp::now());
    if std::io::stdout().is_terminal() {
        // From the top, what is below cleared: no flicker, nothing left of a longer table.
        context.print_raw("\x1b[H\x1b[J");
        context.print(&text);
        let _ = std::io::stdout().flush();
    } else if last.as_ref() != Some(&text) {
        context.print(&text);
    }
    *last = Some(text);
    Ok(())
}

/// Prints pools: a table for people or one document.
pub(super) fn show(context: &Context, pools: &[PoolStatus]) -> Result<(), Failure> {
    let document = json!({"schema": SCHEMA, "pools": pools});
    context.show(&document, |out| {
        out.write_all(table(pools, &context.called, Timestamp::now()).as_bytes())
    })
}

fn table(pools: &[PoolStatus], called: &Called, now: Timestamp) -> String {
    if pools.is_empty() {
        return "no pool is configured\n".to_owned();
    }
    let mut table = columns();
    table.set_header([
        "POOL", "REPLICA", "ENGINE", "STATE", "AGE", "RESTARTS", "SLOTS", "VRAM", "URL",
    ]);
    let mut notes = String::new();
    for pool in pools {
        for replica in &pool.replicas {
            table.add_row(row(pool, replica, now));
            note(pool, replica, called, now, &mut notes);
        }
        if let Some(error) = &pool.last_error {
            notes.push_str(&format!("{}: {}\n", pool.pool_id, error.message));
        }
    }
    let rows = printed(table);
    match notes.is_empty() {
        true => rows,
        false => format!("{rows}\n{notes}"),
    }
}

fn row(pool: &PoolStatus, replica: &ReplicaStatus, now: Timestamp) -> [String; 9] {
    let slots = match replica.slots.total {
        0 => "-".to_owned(),
        total => format!("{}/{total}", replica.slots.free),
    };
    [
        pool.pool_id.clone(),
        replica.replica_id.clone(),
        pool.engine.clone(),
        replica.state.as_str().to_owned(),
        age(now.duration_since(begun(replica)).unsigned_abs()),
        replica.restarts.to_string(),
        slots,
        replica
            .vram_bytes
            .map_or_else(|| "-".to_owned(), human_bytes),
        replica.url.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

/// Since when it is what it is: of one that serves the engine's own age, which may have taken the place of
/// another one a moment ago, or have served an earlier daemon.
fn begun(replica: &ReplicaStatus) -> Timestamp {
    let started = replica.started_at.filter(|_| replica.health.ready);
    started.unwrap_or(replica.since)
}

/// Why something does not serve, below the table.
fn note(
    pool: &PoolStatus,
    replica: &ReplicaStatus,
    called: &Called,
    now: Timestamp,
    notes: &mut String,
) {
    let name = format!("{} {}", pool.pool_id, replica.replica_id);
    let troubled = matches!(
        replica.state,
        ReplicaState::BackingOff | ReplicaState::Broken | ReplicaState::Failed
    );
    if !troubled {
        if replica.breaker == BreakerState::HalfOpen {
            notes.push_str(&format!("{name}: on trial after several failures\n"));
        }
        return;
    }
    notes.push_str(&format!("{name}: {}\n", replica.reason));
    if let Some(next) = replica.next_start {
        let pause = next.duration_since(now);
        let pause = match pause.is_negative() {
            true => "now".to_owned(),
            false => format!("in {}", age(pause.unsigned_abs())),
        };
        notes.push_str(&format!("  next start {pause}\n"));
    }
    for fix in replica.last_error.iter().flat_map(|error| &error.fixes) {
        notes.push_str(&format!("  fix: {}\n", fix.text));
        if let Some(command) = &fix.command {
            notes.push_str(&format!("       {}\n", called.fill(command)));
        }
    }
    if let Some(log) = &replica.log {
        notes.push_str(&format!("  log: {}\n", log.display()));
    }
}

/// A duration as a table has room for it.
fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 86_400, seconds / 3600, seconds / 60) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m{:02}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h{:02}m", minutes % 60),
        (days, hours, _) => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serves_is_as_old_as_its_engine_and_what_does_not_as_its_state() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut replica: ReplicaStatus = serde_json::from_value(json!({
            "replica_id": "r0", "state": "ready", "since": at(100), "reason": "answers",
            "health": {"live": true, "ready": true}, "slots": {"total": 1, "free": 1},
            "started_at": at(200), "leases": 0, "restarts": 0, "breaker": "closed",
        }))
        .unwrap();
        assert_eq!(begun(&replica), at(200));
        replica.health.ready = false;
        assert_eq!(begun(&replica), at(100));
    }

    #[test]
    fn ages_are_short() {
        for (seconds, expected) in [
            (0, "0s"),
            (59, "59s"),
            (61, "1m01s"),
            (3_661, "1h01m"),
            (90_000, "1d01h"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), expected);
        }
    }
}
