//! Killing downloads at any instant, and what has to be true afterwards.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    ops::Range,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    FileServer, Hub, HubRepository, KILLED_OR_DONE, Machine, RUN_LIMIT, noise, sha256, share,
    wait_for,
};

/// Enough for several connections.
const SIZE: usize = 40 << 20;

/// After each 256 KiB of a connection: a download takes long enough to be killed in the middle.
const PAUSE: Duration = Duration::from_millis(10);

/// One round per seed: a download is killed at an instant that the seed decides. Then nothing that is not
/// verified has a final name, and the next run goes on and ends with the right file.
///
/// # Panics
///
/// When that does not hold; the seed is printed before.
pub fn kill_downloads(seeds: Range<u64>) {
    let machine = Machine::new();
    let whole = shortest(|| duration_of_a_whole_run(&machine));
    println!("a whole download takes {} ms", whole.as_millis());
    let mut kept = 0;
    let in_the_middle = kill_each(seeds, whole, SIZE as u64, |seed, kill| {
        let resumed = kill_round(&machine, seed, kill);
        kept += resumed;
        resumed > 0
    });
    println!(
        "{in_the_middle} were killed in the middle; their next runs had {} MiB each, in the mean",
        (kept >> 20) / in_the_middle.max(1)
    );
}

/// When a download is killed.
#[derive(Debug, Clone, Copy)]
enum Kill {
    /// So long after its start.
    After(Duration),
    /// Once so many bytes were sent to it.
    Sent(u64),
}

impl Kill {
    /// Waits for the moment.
    fn wait(self, sent: impl Fn() -> u64) {
        match self {
            // The instant is what is tested: no condition stands for it.
            Self::After(time) => std::thread::sleep(time),
            Self::Sent(bytes) => wait_for("so much to be sent", RUN_LIMIT, || match sent() {
                now if now >= bytes => Ok(()),
                now => Err(now),
            }),
        }
    }
}

/// The shortest of a few times: what else the machine does only adds to them.
fn shortest(measure: impl FnMut() -> Duration) -> Duration {
    let times = std::iter::repeat_with(measure).take(3);
    times.min().expect("there are three")
}

/// One round per seed, each killed at an instant between start and end that the seed decides, and gives how
/// many were in the middle of a download, as `round` says.
///
/// At least half of them have to be, and a machine whose speed changes meanwhile can move any instant before
/// or behind the middle: as many more are killed by what was sent as are missing then.
fn kill_each(
    seeds: Range<u64>,
    whole: Duration,
    size: u64,
    mut round: impl FnMut(u64, Kill) -> bool,
) -> u64 {
    let rounds = seeds.end - seeds.start;
    let more = seeds.end..seeds.end + rounds;
    let mut is_in_the_middle = |seed, kill| {
        println!("seed {seed}: KILL {kill:?}");
        u64::from(round(seed, kill))
    };
    let at = |seed| Kill::After(whole.mul_f64(share(seed)));
    let mut in_the_middle: u64 = seeds.map(|seed| is_in_the_middle(seed, at(seed))).sum();
    for seed in more {
        if in_the_middle * 2 >= rounds {
            break;
        }
        // Neither before anything is journaled nor while the last of it comes.
        let bytes = (0.4 + 0.4 * share(seed)) * size as f64;
        in_the_middle += is_in_the_middle(seed, Kill::Sent(bytes as u64));
    }
    assert!(
        in_the_middle * 2 >= rounds,
        "{in_the_middle} of {rounds} instants were in the middle of a download"
    );
    in_the_middle
}

/// A model that no other round has, and how it is asked for.
fn stage(seed: u64) -> (FileServer, String, [String; 5]) {
    let content = noise(seed, SIZE);
    let digest = sha256(&content);
    let server = FileServer::slow(content, PAUSE);
    let checksum = format!("sha256:{digest}");
    let add = [
        "model",
        "add",
        &server.url("m.bin"),
        "--checksum",
        &checksum,
    ];
    let add = add.map(str::to_owned);
    (server, digest, add)
}

fn duration_of_a_whole_run(machine: &Machine) -> Duration {
    let (_server, digest, add) = stage(u64::MAX);
    let start = Instant::now();
    let _ = machine.run(&add.each_ref().map(|word| &**word)).code(0);
    let whole = start.elapsed();
    forget(machine, &digest);
    whole
}

/// Gives how much of the model the killed run had left to the next one.
fn kill_round(machine: &Machine, seed: u64, kill: Kill) -> u64 {
    let (server, digest, add) = stage(seed);
    let add = add.each_ref().map(|word| &**word);
    let killed = machine.start(machine.command(&add));
    kill.wait(|| server.sent());
    killed.signal(Signal::KILL);
    let _ = killed.finish(RUN_LIMIT).code_in(&KILLED_OR_DONE);
    machine.assert_clean();
    let store = machine.store();
    store.assert_sound();
    let (kept, before) = (store.kept(), server.sent_in_all());
    let was_there = !store.blobs().is_empty();
    let _ = machine.run(&add).code(0);
    assert_eq!(store.blobs(), [digest.as_str()]);
    assert_eq!(store.partial(), [""; 0]);
    store.assert_sound();
    machine.assert_clean();
    // What the killed run had kept was not fetched again; a byte tells the size.
    let fetched = server.sent_in_all() - before;
    let rest = if was_there { 0 } else { SIZE as u64 - kept };
    assert!(fetched <= rest + 1, "{fetched} bytes, {kept} were there");
    forget(machine, &digest);
    kept
}

/// Removes a model, so that no later look has to hash it.
fn forget(machine: &Machine, digest: &str) {
    let checksum = format!("sha256:{digest}");
    let _ = machine.run(&["model", "remove", &checksum]).code(0);
}

/// Large files of a model that is a directory, in MiB: some are there while others are on their way.
const FILES: [(&str, usize); 4] = [
    ("model-00001-of-00003.safetensors", 9),
    ("model-00002-of-00003.safetensors", 5),
    ("model-00003-of-00003.safetensors", 1),
    ("vision/model.safetensors", 3),
];

/// The same for a model of several files: whatever of them is there, whole or in part, is not fetched again;
/// nothing that is not verified has a final name, and neither has a directory that lacks a file.
///
/// # Panics
///
/// When that does not hold; the seed is printed before.
pub fn kill_directories(seeds: Range<u64>) {
    let first = Directory::publish(u64::MAX);
    let whole = shortest(|| {
        let machine = Machine::new();
        let start = Instant::now();
        let added = first.add(&machine);
        let whole = start.elapsed();
        first.assert_is(&machine, &added);
        whole
    });
    println!("a whole directory takes {} ms", whole.as_millis());
    let size = FILES.iter().map(|(_, mebibytes)| *mebibytes).sum::<usize>() << 20;
    kill_each(seeds, whole, size as u64, kill_directory);
}

/// A model of several files at a hub.
struct Directory {
    hub: Hub,
    /// Sizes of the large files by digest.
    large: BTreeMap<String, u64>,
    /// Of the listing of all files.
    digest: String,
}

impl Directory {
    /// One that no other round has.
    fn publish(seed: u64) -> Self {
        let contents = FILES.iter().zip(0..).map(|((name, mebibytes), number)| {
            let seed = seed.wrapping_mul(8).wrapping_add(number);
            ((*name).to_owned(), noise(seed, mebibytes << 20))
        });
        let mut files: BTreeMap<String, Vec<u8>> = contents.collect();
        let large = files.values();
        let large = large.map(|content| (sha256(content), content.len() as u64));
        let large = large.collect();
        files.insert(
            "config.json".to_owned(),
            format!("{{\"seed\": {seed}}}").into(),
        );
        let mut listing = String::new();
        for (name, content) in &files {
            let _ = writeln!(listing, "{}  {name}", sha256(content));
        }
        let hub = Hub::slow(3 * PAUSE);
        let repository = HubRepository {
            files,
            ..HubRepository::default()
        };
        hub.publish("o/n", "main", repository);
        Self {
            hub,
            large,
            digest: sha256(listing.as_bytes()),
        }
    }

    fn command(&self, machine: &Machine) -> std::process::Command {
        let add = ["model", "add", "hf:o/n", "--as", "directory", "--json"];
        let mut command = machine.command(&add);
        command.env("HF_ENDPOINT", self.hub.endpoint());
        command
    }

    fn add(&self, machine: &Machine) -> serde_json::Value {
        let run = machine.start(self.command(machine)).finish(RUN_LIMIT);
        run.code(0).json()
    }

    /// Bytes of the large files that need not be fetched again.
    fn there(&self, machine: &Machine) -> u64 {
        let store = machine.store();
        let whole = store.blobs();
        let whole = whole.iter().filter_map(|digest| self.large.get(digest));
        whole.sum::<u64>() + store.kept()
    }

    #[track_caller]
    fn assert_is(&self, machine: &Machine, added: &serde_json::Value) {
        assert_eq!(added["digest"], format!("sha256:{}", self.digest));
        assert_eq!(machine.store().partial(), [""; 0]);
        machine.store().assert_sound();
        machine.assert_clean();
    }
}

/// Whether the killed run had left something to the next one, and something to do.
fn kill_directory(seed: u64, kill: Kill) -> bool {
    let machine = Machine::new();
    let model = Directory::publish(seed);
    let killed = machine.start(model.command(&machine));
    kill.wait(|| model.hub.sent());
    killed.signal(Signal::KILL);
    let _ = killed.finish(RUN_LIMIT).code_in(&KILLED_OR_DONE);
    machine.assert_clean();
    machine.store().assert_sound();
    assert_whole_trees(&machine, &model.digest);
    let (there, before) = (model.there(&machine), model.hub.sent_in_all());
    let all: u64 = model.large.values().sum();
    let added = model.add(&machine);
    model.assert_is(&machine, &added);
    assert_whole_trees(&machine, &model.digest);
    let fetched = model.hub.sent_in_all() - before;
    assert!(
        fetched <= all - there,
        "{fetched} bytes, {there} of {all} were there"
    );
    (1..all).contains(&there)
}

/// Every directory under a final name has all files.
#[track_caller]
fn assert_whole_trees(machine: &Machine, digest: &str) {
    let trees = machine.home().join("store/models/trees");
    for tree in fs::read_dir(&trees).into_iter().flatten().flatten() {
        assert_eq!(tree.file_name().to_str(), Some(digest));
        for name in FILES.iter().map(|(name, _)| *name).chain(["config.json"]) {
            assert!(tree.path().join(name).is_file(), "{name} is not there");
        }
    }
}
