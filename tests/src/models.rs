//! What models cost, beside what else could be done: measured with smaller ones by `bench`, with larger
//! ones by `soak`.

use std::{fs, process::Command, time::Duration};

use serde_json::json;

use crate::{
    Built, FileServer, Machine, Pairs, Repository, fixture_pool, median, repository_root, sha256,
    succeeds, timed,
};

/// Rounds that a busy machine gets: what else it does only ever adds.
const ROUNDS: usize = 3;

/// Runs of each side in a round.
const RUNS: usize = 5;

/// At most so much of the processor time of the pipe.
const PROCESSOR_LIMIT: f64 = 0.5;

/// At most so much of its wall time.
const WALL_LIMIT: f64 = 1.0;

/// A model that can be read, with nobody's bytes behind its last tensor.
///
/// # Panics
///
/// When the repository has none.
#[must_use]
pub fn model_of(mebibytes: usize) -> Vec<u8> {
    let mut content = fs::read(repository_root().join("models/haiku/haiku.gguf")).unwrap();
    content.resize(mebibytes << 20, 0);
    content
}

/// What a run cost.
#[derive(Debug, Clone, Copy)]
struct Cost {
    processor: Duration,
    wall: Duration,
}

impl Cost {
    /// Runs a command through a shell that says what its children used.
    fn of(command: &Command) -> Self {
        let mut shell = Command::new("bash");
        shell.args([
            "-c",
            "set -o pipefail; \"$@\" >/dev/null 2>&1 || exit; times",
            "-",
        ]);
        shell.arg(command.get_program()).args(command.get_args());
        shell.env_clear();
        for (name, value) in command.get_envs() {
            shell.envs(value.map(|value| (name, value)));
        }
        if let Some(directory) = command.get_current_dir() {
            shell.current_dir(directory);
        }
        let mut output = None;
        let wall = timed(|| output = Some(shell.output().unwrap()));
        let output = output.unwrap();
        assert!(output.status.success(), "{command:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let children = text.lines().nth(1).expect("the second line of `times`");
        Self {
            processor: children.split(' ').map(parse_time).sum(),
            wall,
        }
    }

    fn median(costs: &[Self]) -> Self {
        Self {
            processor: median(costs.iter().map(|cost| cost.processor)),
            wall: median(costs.iter().map(|cost| cost.wall)),
        }
    }
}

/// Reads `1m2.345s`.
fn parse_time(text: &str) -> Duration {
    let (minutes, seconds) = text.trim_end_matches('s').split_once('m').unwrap();
    let minutes: u64 = minutes.parse().unwrap();
    Duration::from_secs(minutes * 60) + Duration::from_secs_f64(seconds.parse().unwrap())
}

/// A model is fetched and verified at half the cost of the usual pipe, and no later.
///
/// # Panics
///
/// When it is not, in none of [`ROUNDS`] rounds.
pub fn measure_fetching(mebibytes: usize) {
    let machine = Machine::with(Built::release());
    let content = model_of(mebibytes);
    let digest = format!("sha256:{}", sha256(&content));
    let server = FileServer::start(content);
    let url = server.url("model.gguf");
    let add = machine.command(&["model", "add", &url, "--checksum", &digest]);
    let copy = machine.root().join("copy");
    let mut pipe = Command::new("bash");
    let words = "curl -sS \"$0\" | tee \"$1\" | sha256sum";
    pipe.args(["-o", "pipefail", "-c", words]);
    pipe.args([&url, copy.to_str().unwrap()]);
    pipe.env("PATH", "/usr/bin:/bin");
    for _ in 0..ROUNDS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            ours.push(Cost::of(&add));
            succeeds(machine.command(&["model", "remove", &digest]));
            theirs.push(Cost::of(&pipe));
            fs::remove_file(&copy).unwrap();
        }
        let (our, their) = (Cost::median(&ours), Cost::median(&theirs));
        let processor = our.processor.as_secs_f64() / their.processor.as_secs_f64();
        let wall = our.wall.as_secs_f64() / their.wall.as_secs_f64();
        println!(
            "measured: fetch and verify {mebibytes} MiB against curl | tee | sha256sum: \
             {processor:.2} times the processor time (limit {PROCESSOR_LIMIT}), \
             {wall:.2} times the wall time (limit {WALL_LIMIT}); {our:?} against {their:?}"
        );
        if processor <= PROCESSOR_LIMIT && wall <= WALL_LIMIT {
            return;
        }
    }
    panic!("no round was within both limits");
}

/// A model that is here and verified costs next to nothing, however large it is.
///
/// # Panics
///
/// When a large one takes longer than a small one.
pub fn measure_verified(mebibytes: usize) {
    let machine = Machine::with(Built::release());
    let repository = Repository::create(machine.root());
    let providers = machine.fixture_provider();
    let served = [("small", 1), ("large", mebibytes)].map(|(name, mebibytes)| {
        let content = model_of(mebibytes);
        let checksum = format!("sha256:{}", sha256(&content));
        (name, checksum, FileServer::start(content))
    });
    let pools = served.each_ref().map(|(name, checksum, server)| {
        let mut pool = fixture_pool(&repository);
        pool["id"] = (*name).into();
        pool["provisioning"]["model"] =
            json!({"ref": server.url(&format!("{name}.gguf")), "checksum": checksum});
        pool
    });
    machine.write_pools(&pools);
    let prepare = |pool: &str| {
        let arguments = ["prepare", "--provider-path", &*providers, "--pool", pool];
        timed(|| succeeds(machine.command(&arguments)))
    };
    let (_, _) = (prepare("small"), prepare("large"));
    Pairs::assert_at_most(
        &format!("re-provision of a verified {mebibytes} MiB model against one of 1 MiB"),
        5.0,
        21,
        || prepare("large"),
        || prepare("small"),
    );
    let blobs = fs::read_dir(machine.home().join("store/blobs/sha256")).unwrap();
    let largest = blobs.map(|it| it.unwrap().metadata().unwrap().len()).max();
    assert_eq!(
        largest,
        Some((mebibytes as u64) << 20),
        "the model was there"
    );
}
