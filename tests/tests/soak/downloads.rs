//! Downloads: hundreds of kills, and a model of a gibibyte beside who else fetches it.

use std::{fs, path::Path, process::Command, time::Duration};

use e2e::{Built, Hub, HubRepository, Machine, median, model_of, sha256, succeeds, timed};

use crate::peer::installed;

/// Size of the model.
const MEBIBYTES: usize = 1024;

/// Runs of each side.
const RUNS: usize = 5;

#[test]
fn killed_at_any_of_two_hundred_instants_a_download_goes_on() {
    e2e::kill_downloads(1_000..1_200);
}

#[test]
fn killed_at_any_of_a_hundred_instants_a_directory_goes_on() {
    e2e::kill_directories(1_000..1_100);
}

#[test]
fn fetching_a_gibibyte_costs_half_of_curl_tee_and_sha256sum() {
    e2e::measure_fetching(MEBIBYTES);
}

#[test]
fn a_verified_gibibyte_adds_next_to_nothing() {
    e2e::measure_verified(MEBIBYTES);
}

/// A command that has the hub, a directory of its own, and nothing else of the environment.
fn peer(program: &str, hub: &Hub, home: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(installed(program));
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .env("HF_ENDPOINT", hub.endpoint())
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env("HF_HUB_DISABLE_UPDATE_CHECK", "1")
        .args(words);
    command
}

/// How long a peer takes that begins with nothing; what it fetched is looked for and removed.
fn once(home: &Path, command: impl FnOnce(&Path) -> Command) -> Duration {
    fs::create_dir(home).unwrap();
    let command = command(home);
    let took = timed(|| succeeds(command));
    assert!(largest(home) >= (MEBIBYTES as u64) << 20, "it is not there");
    fs::remove_dir_all(home).unwrap();
    took
}

/// Bytes of the largest file below a directory.
fn largest(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap().map(|it| it.unwrap());
    let size = |entry: fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => largest(&entry.path()),
        false => entry.metadata().unwrap().len(),
    };
    entries.map(size).max().unwrap_or_default()
}

#[test]
fn a_model_of_the_hub_is_here_before_any_peer_has_it() {
    let hub = Hub::start();
    let content = model_of(MEBIBYTES);
    let digest = format!("sha256:{}", sha256(&content));
    let mut repository = HubRepository::default();
    repository.files.insert("model.gguf".to_owned(), content);
    hub.publish("o/m", "main", repository);
    let mut machine = Machine::with(Built::release());
    machine.lend("HF_ENDPOINT", &hub.endpoint());
    let home = machine.root().join("peer");
    let ours = || {
        let add = machine.command(&["model", "add", "hf:o/m/model.gguf"]);
        let took = timed(|| succeeds(add));
        succeeds(machine.command(&["model", "remove", &digest]));
        took
    };
    let download = ["download", "o/m", "model.gguf"];
    let hf = |home: &Path| peer("hub-peer/bin/hf", &hub, home, &download);
    let without_xet = |home: &Path| {
        let mut command = hf(home);
        command.env("HF_HUB_DISABLE_XET", "1");
        command
    };
    let ramalama = |home: &Path| {
        let store = home.join("store");
        let pull = [
            "--store",
            store.to_str().unwrap(),
            "pull",
            "hf://o/m/model.gguf",
        ];
        peer("ramalama-0.25.0/bin/ramalama", &hub, home, &pull)
    };
    type Peer<'a> = (&'a str, &'a dyn Fn(&Path) -> Command);
    let peers: [Peer<'_>; 3] = [
        ("ramalama pull", &ramalama),
        ("hf download", &hf),
        ("hf download, HF_HUB_DISABLE_XET=1", &without_xet),
    ];
    // The first of each does not count.
    let rounds: Vec<_> = (0..=RUNS)
        .map(|_| (ours(), peers.map(|(_, command)| once(&home, command))))
        .skip(1)
        .collect();
    let one = median(rounds.iter().map(|(ours, _)| *ours)).as_secs_f64();
    for (index, (name, _)) in peers.iter().enumerate() {
        let other = median(rounds.iter().map(|(_, theirs)| theirs[index])).as_secs_f64();
        let ratio = one / other;
        println!(
            "measured: {MEBIBYTES} MiB of a hub against {name}: {ratio:.2} times \
             ({one:.2} s against {other:.2} s), limit 1"
        );
        assert!(ratio < 1.0, "{rounds:?}");
    }
}
