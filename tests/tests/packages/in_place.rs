//! Results that may not be moved: the host is killed while it makes them where they stay.

use std::{fs, time::Duration};

use e2e::{KILLED_OR_DONE, Machine, Repository, fixture_pool, http_get, wait_for};
use rustix::process::Signal;
use serde_json::json;

/// Longest time until nothing is left of a host that was killed.
const ORPHAN_LIMIT: Duration = Duration::from_secs(10);

/// Hosts that are killed.
const ROUNDS: u32 = 8;

#[test]
fn killed_at_any_instant_the_next_run_makes_it_whole_in_the_same_place() {
    let machine = Machine::new();
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["options"] = json!({"in_place": true});
    machine.write_pool(&pool);
    let builds = machine.home().join("store/build");
    let trees = || -> Vec<_> {
        let entries = fs::read_dir(&builds).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().join("tree")).collect()
    };
    for round in 0..ROUNDS {
        let running = machine.start(machine.command(&["prepare"]));
        // From its first file on, a little later each time.
        wait_for("a build that has begun", e2e::RUN_LIMIT, || {
            match trees().iter().any(|tree| tree.exists()) {
                true => Ok(()),
                false => Err(trees()),
            }
        });
        std::thread::sleep(Duration::from_millis(u64::from(round * round * 30)));
        running.signal(Signal::KILL);
        let _ = running.finish(ORPHAN_LIMIT).code_in(&KILLED_OR_DONE);
        machine.assert_clean();
        let finished = trees()
            .iter()
            .filter(|tree| tree.with_file_name("manifest.json").exists())
            .count();
        println!("round {round}: {finished} finished");
        if finished > 0 {
            break;
        }
    }
    let mut running = machine.provision(&[]);
    let url = running.wait_ready();
    let answer = http_get(&format!("{url}/completion")).unwrap();
    assert_eq!(answer, (200, "hello from GGUF\n".to_owned()));
    let program = machine.run(&["prepare", "--json"]).code(0).json()["command"]["bin"].clone();
    let [tree] = trees().try_into().expect("one result");
    assert_eq!(program, tree.join("bin/fixture-server").to_str().unwrap());
    assert_eq!(machine.files_below(&tree), ["bin/fixture-server"]);
    let _ = running.end(Signal::INT).code(130);
    machine.store().assert_sound();
    assert_eq!(machine.store().work(), Vec::<String>::new());
    machine.assert_clean();
}
