//! A host with nothing but an engine room: starts one job, says what happens, stops on `stop`.
//!
//! `fake-host JOB.json` prints `ready URL`, then `end stopped`, `end crashed` or `end asked`; with
//! `detach` it prints `kept URL` and ends. `fake-host step HOME SCRIPT` runs a shell script as a step
//! instead. It is its own keeper.

use std::{collections::BTreeMap, io::BufRead, path::PathBuf, process::ExitCode};

use engine_host::{
    config::paths::Home,
    engine::{self, EngineEnd, Outcome},
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
        [path] => {
            let text = std::fs::read_to_string(path).expect("a readable job");
            let job: Job = serde_json::from_str(&text).expect("a job");
            runtime.block_on(host(&job))
        }
        _ => ExitCode::from(2),
    }
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
