//! `host lock` killed at any instant.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use e2e::{KILLED_OR_DONE, Machine, Repository, fixture_pool, share};
use rustix::process::Signal;
use serde_json::json;

/// Times that it is killed.
const KILLS: u64 = 20;

/// Longest time until nothing is left of a host that was killed.
const ORPHAN_LIMIT: Duration = Duration::from_secs(10);

#[test]
fn killed_at_any_instant_the_lock_file_is_the_old_or_the_new_one() {
    let machine = Machine::new();
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["provisioning"]["source"]["ref"] = json!("main");
    machine.write_pool(&pool);
    let path = machine.work().join("host.lock");
    let start = Instant::now();
    let _ = machine.run(&["lock"]).code(0);
    let whole = start.elapsed();
    let mut old = fs::read_to_string(&path).unwrap();
    let (mut replaced, mut being_written) = (0, 0);
    for round in 0..KILLS {
        repository.git(&["commit", "--quiet", "--allow-empty", "--message", "next"]);
        let commit = repository.git(&["rev-parse", "HEAD"]).trim().to_owned();
        let running = machine.start(machine.command(&["lock", "--update"]));
        match round % 2 {
            // The instant is what is tested: no condition stands for it.
            0 => std::thread::sleep(whole.mul_f64(share(round) * 1.1)),
            _ => being_written += u32::from(saw_it_written(&machine.work(), whole * 2)),
        }
        running.signal(Signal::KILL);
        let _ = running.finish(ORPHAN_LIMIT).code_in(&KILLED_OR_DONE);
        let text = fs::read_to_string(&path).unwrap();
        let is_new = text.contains(&commit);
        assert!(text == old || is_new, "round {round}: {text}");
        let _: toml::Table = text.parse().unwrap();
        replaced += u32::from(is_new);
        // Nobody holds anything, and what it holds to is the file that there is.
        let _ = machine.run(&["plan", "--locked"]).code(0);
        old = text;
    }
    println!("{replaced} of {KILLS} had written it, {being_written} were writing");
    assert!(
        replaced > 0,
        "each was killed before it had written anything"
    );
    assert!(being_written > 0, "none was killed while it wrote");
    // As a writer leaves it that is killed between writing and renaming.
    machine.write(".host.lock-killed", "schema = 1\n");
    let _ = machine.run(&["lock", "--update"]).code(0);
    let left = machine.files_below(&machine.work());
    assert_eq!(left, ["host.lock", "pools.yaml"]);
    machine.assert_clean();
}

/// Whether a lock file was seen that is being written; it is there for the time of two syncs.
fn saw_it_written(directory: &Path, limit: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        let mut names = fs::read_dir(directory).unwrap().flatten();
        if names.any(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with(".host.lock-")
        }) {
            return true;
        }
    }
    false
}
