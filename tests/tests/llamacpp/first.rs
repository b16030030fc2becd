//! The first run: from an empty home to streamed haiku, looked at from all sides, then stopped.

use std::{sync::LazyLock, time::Duration};

use e2e::{
    Built, Run, environment_of, http_get, http_post, pace, processor_time,
    processor_time_of_children, resident_bytes, uid_of, wait_for,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{BUILD_LIMIT, COMMAND_ONE, MACHINE, built};

/// Most bytes that host and keeper occupy while the engine serves.
const MEMORY_LIMIT: u64 = 25_000_000;

/// Most processor time that host and keeper use themselves, in seconds on the machine of
/// docs/measurements.md, where the build takes 500.
const PROCESSOR_LIMIT: f64 = 2.0;

/// How often it is looked how many those are, at most: what a build has taken is given back a little later.
const LOOKS: u32 = 8;

/// What was seen of the first run.
pub(crate) struct First {
    run: Run,
    handoff: Value,
    /// What `/props` of the engine says.
    props: Value,
    completions: [Streamed; 2],
    chats: [Streamed; 2],
    /// Environment of a compiler of the build.
    compiler: Vec<String>,
    engine_uid: u32,
    engine_environment: Vec<String>,
    /// Processor time of host and keeper, their children left out.
    own_time: Duration,
    /// Processor time of their children, the build above all.
    children_time: Duration,
    /// Resident memory of host and keeper while the engine serves, in bytes.
    resident: u64,
}

/// Text of a stream, and in how many pieces it came.
#[derive(Debug, PartialEq, Eq)]
struct Streamed {
    text: String,
    pieces: usize,
}

pub(crate) static FIRST: LazyLock<First> = LazyLock::new(First::see);

impl First {
    fn see() -> Self {
        let machine = &*MACHINE;
        let mut command = machine.command(&COMMAND_ONE);
        command.env("HF_TOKEN", "hf_plantedplanted");
        let mut running = machine.start(command);
        let compiler = wait_for("a compiler of the build", BUILD_LIMIT, || {
            if running.ended().is_some() {
                panic!("it ended:\n{}", running.stderr());
            }
            // Those that only try the compiler out are gone as soon as they are seen.
            let mut all = machine.processes();
            all.retain(|one| one.command.contains("/cc1plus "));
            let mut told = all.iter().filter_map(|one| environment_of(one.pid));
            told.next().ok_or(())
        });
        let url = running.wait_ready_for(BUILD_LIMIT);
        let props = http_get(&format!("{url}/props")).unwrap().1;
        let list = machine.run(&["ps", "--json"]).code(0).json();
        let engine = u32::try_from(list["engines"][0]["pid"].as_u64().unwrap()).unwrap();
        let own: Vec<u32> = machine
            .processes()
            .iter()
            .filter(|one| one.pid == running.pid() || one.command.starts_with("host keeper"))
            .map(|one| one.pid)
            .collect();
        assert!(own.len() >= 2, "host and keeper: {own:?}");
        Self {
            handoff: machine.handoff(),
            props: serde_json::from_str(&props).unwrap(),
            completions: [completion(&url), completion(&url)],
            chats: [chat(&url), chat(&url)],
            compiler,
            engine_uid: uid_of(engine).expect("it serves"),
            engine_environment: environment_of(engine).expect("it serves"),
            own_time: own.iter().map(|pid| processor_time(*pid)).sum(),
            children_time: own.iter().map(|pid| processor_time_of_children(*pid)).sum(),
            resident: resident(&own),
            run: running.end(Signal::INT),
        }
    }
}

/// Bytes that processes occupy together, at the first of a few looks that finds them few enough, else the last.
fn resident(own: &[u32]) -> u64 {
    let mut bytes = resident_bytes(own);
    for _ in 1..LOOKS {
        if bytes <= MEMORY_LIMIT {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        bytes = resident_bytes(own);
    }
    bytes
}

/// Pieces of a stream of server-sent events, joined.
fn streamed(answer: (u16, String), content: impl Fn(&Value) -> Option<&str>) -> Streamed {
    let (status, body) = answer;
    assert_eq!(status, 200, "{body}");
    let mut text = String::new();
    let mut pieces = 0;
    for line in body.lines() {
        let Some(data) = line.strip_prefix("data: ") else {
            continue;
        };
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            continue;
        };
        if let Some(piece) = content(&event) {
            text.push_str(piece);
            pieces += 1;
        }
    }
    Streamed { text, pieces }
}

fn completion(url: &str) -> Streamed {
    let request = json!({
        "prompt": "Write a haiku about autumn rain\n",
        "n_predict": 64, "seed": 42, "temperature": 0.8, "stream": true,
    });
    let answer = http_post(&format!("{url}/completion"), &request.to_string()).unwrap();
    streamed(answer, |event| event["content"].as_str())
}

/// What an engine writes about autumn rain.
pub(crate) fn haiku(url: &str) -> String {
    chat(url).text
}

fn chat(url: &str) -> Streamed {
    let request = json!({
        "messages": [{"role": "user", "content": "Write a haiku about autumn rain"}],
        "max_tokens": 64, "seed": 42, "temperature": 0.8, "stream": true,
    });
    let answer = http_post(&format!("{url}/v1/chat/completions"), &request.to_string()).unwrap();
    streamed(answer, |event| {
        event["choices"][0]["delta"]["content"].as_str()
    })
}

/// What the engine of the first run wrote.
pub(crate) fn first_haiku() -> &'static str {
    &first().chats[0].text
}

fn first() -> &'static First {
    drop(built());
    &FIRST
}

/// Where something was built before, plugins that this command leaves out would still lie beside the
/// program: so it is cargo that is asked.
#[test]
fn the_first_command_builds_the_plugins_beside_the_program() {
    let told = Built::told_by_release();
    for engine in ["llamacpp", "vllm", "tgi", "triton"] {
        let plugin = format!("/libengine_provider_{engine}.so");
        let is_plugin = |file: &Value| file.as_str().unwrap().ends_with(&plugin);
        let files = told.iter().filter_map(|one| one["filenames"].as_array());
        assert!(files.flatten().any(is_plugin), "no {plugin}: {told:#?}");
    }
}

#[test]
fn command_one_streams_a_haiku_and_the_same_seed_gives_the_same_one() {
    let First {
        chats, completions, ..
    } = first();
    for [one, two] in [chats, completions] {
        assert_eq!(one.text, two.text);
        assert!(one.pieces > 3, "it did not stream: {one:?}");
    }
    let haiku = chats[0].text.trim();
    println!("{haiku}");
    assert_eq!(haiku.lines().count(), 3, "{haiku}");
    assert!(haiku.lines().all(|line| line.trim().len() > 3), "{haiku}");
}

#[test]
fn command_one_hands_off_what_it_says() {
    let First { handoff, props, .. } = first();
    let text = |field: &str| handoff[field].as_str().unwrap_or_default().to_owned();
    assert_eq!(text("engine"), "llamacpp");
    assert_eq!(text("engine_version"), "0c1e57098bba-cpu");
    assert_eq!(text("provisioning_mode"), "source");
    assert_eq!(text("pool_id"), "default");
    assert_eq!(text("replica_id"), "r0");
    assert!(text("url").starts_with("http://127.0.0.1:"));
    assert_eq!(handoff["slots_total"], 1);
    assert_eq!(handoff["device_mask"], json!([]));
    assert_eq!(handoff["model"]["id"], "haiku");
    let flags = handoff["flags"].as_array().unwrap();
    for flag in [
        "--parallel",
        "--no-cont-batching",
        "--metrics",
        "--no-webui",
    ] {
        assert!(
            flags.iter().any(|known| known == flag),
            "{flag} in {flags:?}"
        );
    }
    // What the running engine says of itself is the pinned commit.
    let observed = text("observed_version");
    assert_eq!(props["build_info"], observed);
    assert!(observed.contains("0c1e570"), "{observed}");
}

#[test]
fn command_one_tells_every_event_in_order() {
    let run = &first().run;
    assert_eq!(run.code, 130, "{}", run.stderr);
    let seen: Vec<(&str, &str)> = run
        .stderr
        .lines()
        .filter_map(|line| {
            let (side, rest) = line.trim_start().split_once("  ")?;
            Some((side, rest.split(' ').next()?))
        })
        .collect();
    let in_order = |side: &str, chain: &[&str]| {
        let mut rest = seen.iter().filter(|(seen, _)| *seen == side);
        for action in chain {
            assert!(
                rest.any(|(_, seen)| seen == action),
                "`{action}` missing or out of order:\n{}",
                run.stderr
            );
        }
    };
    in_order(
        "engine",
        &[
            "start",
            "preflight",
            "git-clone",
            "git-checkout",
            "cmake-configure",
            "cmake-build",
            "complete",
            "launch",
            "ready",
            "handoff",
            "stop",
        ],
    );
    in_order("model", &["resolve", "ensure", "verified", "complete"]);
    assert!(run.stdout.contains("curl -N http"), "{}", run.stdout);
}

#[test]
fn the_build_and_the_engine_see_no_token_and_the_engine_is_nobody() {
    let First {
        compiler,
        engine_environment,
        engine_uid,
        run,
        ..
    } = first();
    for environment in [compiler, engine_environment] {
        let told = environment.join("\n");
        assert!(
            !told.contains("planted") && !told.contains("HF_TOKEN"),
            "{told}"
        );
    }
    if rustix::process::getuid().is_root() {
        assert_ne!(*engine_uid, 0);
    }
    assert!(!run.stderr.contains("planted") && !run.stdout.contains("planted"));
    let logs = MACHINE.home().join("logs/default");
    for log in MACHINE.files_below(&logs) {
        let text = std::fs::read(logs.join(&log)).unwrap();
        let text = String::from_utf8_lossy(&text);
        assert!(!text.contains("plantedplanted"), "{log}");
        assert!(!text.contains("huggingface.co"), "{log} reached out");
    }
}

#[test]
fn the_host_costs_little_beside_the_build_and_little_memory() {
    let First {
        own_time,
        children_time,
        resident,
        ..
    } = first();
    let (own, children) = (own_time.as_secs_f64(), children_time.as_secs_f64());
    // What slows the machine slows programs that start, and compilers: by the larger of the two, since they
    // were measured at different times.
    let (pace, build_pace) = (pace(), children / 500.0);
    let limit = PROCESSOR_LIMIT * pace.max(build_pace);
    println!(
        "measured: host and keeper used {own:.2} s of processor time, {:.2} % of the {children:.0} s that \
         the real build took, limit {limit:.2} s ({PROCESSOR_LIMIT} s at pace {:.2})",
        own / children * 100.0,
        pace.max(build_pace),
    );
    let mebibytes = *resident as f64 / f64::from(1 << 20);
    println!("measured: host and keeper are {mebibytes:.1} MiB resident, limit 25 MB");
    assert!(own <= limit, "{own} s");
    assert!(*resident <= MEMORY_LIMIT, "{resident} bytes");
}
