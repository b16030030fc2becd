//! Engines that run: seen, left running, stopped, asked for again; ports.

use std::net::TcpListener;

use e2e::{fixture_pool, free_port, http_get, wait_for};
use rustix::process::Signal;
use serde_json::json;

use crate::stage;

#[test]
fn a_detached_engine_stays_is_listed_logged_and_stopped() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let run = machine.run(&["provision", "--detach"]).code(0);
    let url = run
        .stdout
        .split_once(" is ready at ")
        .and_then(|(_, rest)| rest.split_once('\n'))
        .unwrap()
        .0;
    assert_eq!(http_get(&format!("{url}/health")).unwrap().0, 200);
    assert_eq!(machine.handoffs().len(), 1);

    let list = machine.run(&["ps", "--json"]).code(0).json();
    let engine = &list["engines"][0];
    assert_eq!(engine["pool_id"], "default");
    assert_eq!(engine["state"], "ready");
    assert_eq!(engine["detached"], true);
    assert_eq!(engine["url"], url);
    let shown = machine.run(&["ps"]).code(0).stdout;
    assert!(shown.contains(url) && shown.contains("default"), "{shown}");
    let log = machine.run(&["logs"]).code(0).stdout;
    assert!(log.contains("listening on 127.0.0.1"), "{log}");

    let follower = machine.start(machine.command(&["logs", "default", "--follow"]));
    wait_for("the log", e2e::RUN_LIMIT, || {
        let said = follower.stdout();
        if said.contains("listening") {
            Ok(())
        } else {
            Err(said)
        }
    });
    let run = machine.run(&["stop", "default"]).code(0);
    assert!(run.stdout.contains("stopped default r0"), "{}", run.stdout);
    let _ = follower.finish(e2e::RUN_LIMIT).code(0);
    assert!(http_get(url).is_err(), "it still answers");
    let list = machine.run(&["ps", "--json"]).code(0).json();
    assert_eq!(list["engines"], json!([]));
    let run = machine.run(&["stop", "default"]).code(11);
    run.says("no engine of pool `default` runs");
    machine.assert_clean();
}

#[test]
fn provisioning_a_pool_that_runs_prints_its_url_and_starts_nothing() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let mut running = machine.provision(&[]);
    let url = running.wait_ready();
    let pid = |list: serde_json::Value| list["engines"][0]["pid"].clone();
    let before = pid(machine.run(&["ps", "--json"]).code(0).json());
    let run = machine.run(&["provision"]).code(0);
    assert!(
        run.stdout.contains(&format!("is ready at {url}")),
        "{}",
        run.stdout
    );
    let list = machine.run(&["ps", "--json"]).code(0).json();
    assert_eq!(list["engines"].as_array().unwrap().len(), 1);
    assert_eq!(pid(list), before);
    let _ = running.end(Signal::INT).code(130);
    machine.assert_clean();
}

#[test]
fn provisioning_it_with_other_settings_refuses_and_shows_the_difference() {
    let (machine, _repository, mut pool) = stage();
    machine.write_pool(&pool);
    let mut running = machine.provision(&[]);
    let url = running.wait_ready();
    pool["provisioning"]["flags"] = json!(["--load-ms", "1"]);
    machine.write_pool(&pool);
    let run = machine.run(&["provision"]).code(13);
    run.says("pool `default` runs already, with other settings");
    run.says("--load-ms");
    run.says(&url);
    run.says("stop default");
    assert_eq!(http_get(&format!("{url}/health")).unwrap().0, 200);
    assert_eq!(machine.handoffs().len(), 1);
    let _ = running.end(Signal::INT).code(130);
    machine.assert_clean();
}

#[test]
fn an_engine_in_the_foreground_can_be_stopped_from_elsewhere() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let running = machine.provision(&[]);
    let run = machine.run(&["stop", "--all", "--json"]).code(0);
    assert_eq!(run.json()["stopped"][0]["pool_id"], "default");
    let run = running.finish(e2e::RUN_LIMIT).code(0);
    assert!(!run.stderr.contains("error"), "{}", run.stderr);
    machine.assert_clean();
}

#[test]
fn a_taken_port_is_passed_over_for_the_next_one_of_the_pool() {
    let (machine, _repository, mut pool) = stage();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken_port = taken.local_addr().unwrap().port();
    let next = free_port();
    pool["provisioning"]["ports"] = json!([taken_port, next]);
    machine.write_pool(&pool);
    let mut running = machine.provision(&[]);
    assert_eq!(running.wait_ready(), format!("http://127.0.0.1:{next}"));
    let _ = running.end(Signal::INT).code(130);

    // With none left the pool cannot run here, and that is said.
    pool["provisioning"]["ports"] = json!([taken_port]);
    machine.write_pool(&pool);
    let run = machine.run(&["provision"]).code(5);
    run.says(&taken_port.to_string());
    run.says("provisioning.ports");
    machine.assert_clean();
}

#[test]
fn without_ports_of_its_own_a_pool_takes_the_first_free_one_from_the_usual() {
    let (machine, repository, mut pool) = stage();
    pool["provisioning"]["ports"] = json!([]);
    let mut second = fixture_pool(&repository);
    second["id"] = "second".into();
    second["provisioning"]["ports"] = json!([]);
    machine.write_pools(&[pool, second]);
    let port = |url: &str| url.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    let mut first = machine.provision(&["--pool", "default"]);
    let mut second = machine.provision(&["--pool", "second"]);
    let (one, two) = (port(&first.wait_ready()), port(&second.wait_ready()));
    assert!(one >= 8080 && two > one, "{one} and {two}");
    for running in [first, second] {
        let _ = running.end(Signal::INT).code(130);
    }
    machine.assert_clean();
}

#[test]
fn ps_and_stop_on_a_machine_where_nothing_runs_say_so() {
    let (machine, _repository, _pool) = stage();
    let run = machine.run(&["ps"]).code(0);
    assert_eq!(run.stdout, "no engine runs\n");
    let _ = machine.run(&["stop", "--all"]).code(0);
    let run = machine.run(&["logs"]).code(11);
    run.says("there is no engine log");
    machine.assert_untouched();
}
