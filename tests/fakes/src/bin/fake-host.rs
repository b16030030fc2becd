//! A host with nothing but an engine room: starts one job, says what happens, stops on `stop`.
//!
//! `fake-host JOB.json` prints `ready URL`, then `end stopped`, `end crashed` or `end asked`; with
//! `detach` it prints `kept URL` and ends. `fake-host step HOME SCRIPT` runs a shell script as a step
//! instead. `fake-host keep MS JOB.json` starts an engine that outlives it for so long, prints
//! `kept URL` and stays; `fake-host swap MS take-over|leave ONE.json OTHER.json` starts another one beside
//! it, which takes over or does not, and prints `kept URL URL`. It is its own keeper.

use std::{collections::BTreeMap, io::BufRead, path::PathBuf, process::ExitCode, time::Duration};

use engine_host::{
    config::paths::Home,
    engine::{self, EngineEnd, Outcome, RunningEngine, StartRequest},
    narrate::Narrator,
    process::{Child, Keeper, KeeperOptions, LogFile, Network, Output, Privileges, Spec},
};
use fakes::Job;
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    if let Some(code) = engine_host::become_helper() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    match arguments.as_slice() {
        [step, home, script] if step == "step" => runtime.block_on(run_step(home.into(), script)),
        [keep, limit, path] if keep == "keep" => runtime.block_on(keep_for(limit, &read(path))),
        [swap, limit, how, one, other] if swap == "swap" => {
            let takes_over = how == "take-over";
            runtime.block_on(swap_for(limit, takes_over, &read(one), &read(other)))
        }
        [path] => runtime.block_on(host(&read(path))),
        _ => ExitCode::from(2),
    }
}

fn read(path: &str) -> Job {
    let text = std::fs::read_to_string(path).expect("a readable job");
    serde_json::from_str(&text).expect("a job")
}

fn time(limit: &str) -> Duration {
    Duration::from_millis(limit.parse().expect("milliseconds"))
}

/// An engine that is ready.
async fn started(job: &Job, keeper: &Keeper, beside: bool) -> Box<RunningEngine> {
    let parts = job.parts();
    let (narrator, cancel) = (Narrator::silent(), CancellationToken::new());
    let request = StartRequest {
        beside,
        ..parts.request(job, keeper, &narrator, &cancel)
    };
    match engine::start(request).await {
        Ok(Outcome::Started(engine)) => engine,
        other => panic!("{other:?}"),
    }
}

async fn keep_for(limit: &str, job: &Job) -> ExitCode {
    let keeper = Keeper::new(&job.parts().home, KeeperOptions::default());
    let mut engine = started(job, &keeper, false).await;
    engine.keep_for(time(limit)).await.expect("a keeper");
    println!("kept {}", engine.url());
    engine.wait_exit().await;
    ExitCode::SUCCESS
}

async fn swap_for(limit: &str, takes_over: bool, one: &Job, other: &Job) -> ExitCode {
    let keeper = Keeper::new(&one.parts().home, KeeperOptions::default());
    let mut old = started(one, &keeper, false).await;
    old.keep_for(time(limit)).await.expect("a keeper");
    let mut new = started(other, &keeper, true).await;
    new.keep_for(time(limit)).await.expect("a keeper");
    if takes_over {
        new.take_over().expect("a handoff");
    }
    println!("kept {} {}", old.url(), new.url());
    tokio::join!(old.wait_exit(), new.wait_exit());
    ExitCode::SUCCESS
}

async fn run_step(home: PathBuf, script: &str) -> ExitCode {
    let spec = Spec {
        program: "/bin/sh".into(),
        args: vec!["-c".to_owned(), script.to_owned()],
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        directory: home.clone(),
        identity: None,
        network: Network::Host,
        privileges: Privileges::Fixed,
        output: Output::Together(LogFile {
            path: home.join("log"),
            limit_bytes: 1 << 20,
        }),
        child: Child::Step,
    };
    let keeper = Keeper::new(&Home::at(home), KeeperOptions::default());
    let ended = keeper.run(spec, &CancellationToken::new()).await;
    println!("{ended:?}");
    ExitCode::SUCCESS
}

async fn host(job: &Job) -> ExitCode {
    let parts = job.parts();
    let keeper = Keeper::new(&parts.home, KeeperOptions::default());
    let (narrator, cancel) = (Narrator::silent(), CancellationToken::new());
    let request = parts.request(job, &keeper, &narrator, &cancel);
    let engine = match engine::start(request).await {
        Ok(Outcome::Started(engine)) => engine,
        Ok(Outcome::AlreadyRunning(instance)) => {
            println!("runs {}", instance.url);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            println!("failed {error}");
            return ExitCode::FAILURE;
        }
    };
    if job.detach {
        let instance = engine.keep().await.expect("a keeper that keeps");
        println!("kept {}", instance.url);
        return ExitCode::SUCCESS;
    }
    println!("ready {}", engine.url());
    let asked = tokio::task::spawn_blocking(|| {
        let mut lines = std::io::stdin().lock().lines();
        lines.find(|line| line.as_deref().is_ok_and(|line| line == "stop"))
    });
    tokio::select! {
        end = engine.wait_exit() => match end {
            EngineEnd::Stopped => println!("end stopped"),
            EngineEnd::Crashed(error) => println!("end crashed: {error}"),
        },
        Ok(Some(_)) = asked => {
            engine.stop(&cancel).await.expect("an engine that can be stopped");
            println!("end asked");
        }
    }
    // The thread that reads standard input may still wait for a line.
    std::process::exit(0)
}
