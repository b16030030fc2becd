//! Engines that run in a container: what they see, how they are stopped, what they may collide with.

use std::{net::TcpListener, path::Path, time::Duration};

use e2e::{Built, http_get, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    Stage,
    stage::{command_lines_with, files_with},
    under_both,
};

fn report(url: &str) -> Value {
    let (status, body) = http_get(&format!("{url}/report")).unwrap();
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// A line of /proc/self/status.
fn status<'a>(report: &'a Value, name: &str) -> &'a str {
    let text = report["status"].as_str().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.strip_prefix(':')).unwrap().trim()
}

under_both! {
    fn an_engine_sees_a_hardened_container(kind) {
        let mut stage = Stage::new(kind);
        stage.container("cpus", "0");
        stage.container("numa_nodes", "0");
        stage.container("shm_bytes", 8 << 20);
        stage.write();
        let mut running = stage.machine.provision(&[]);
        let url = running.wait_ready();
        let seen = report(&url);
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status(&seen, set), "0000000000000000", "{set}");
        }
        assert_eq!(status(&seen, "NoNewPrivs"), "1");
        assert_eq!(status(&seen, "Seccomp"), "2");
        assert_eq!(status(&seen, "Cpus_allowed_list"), "0");
        assert_eq!(status(&seen, "Mems_allowed_list"), "0");
        assert_eq!(seen["pids_max"].as_str().unwrap().trim(), "16384");
        assert_ne!(seen["pid"], 1, "an init program reaps");
        let init = seen["init"].as_str().unwrap();
        assert!(init.contains("init") || init.contains("catatonit"), "{init}");
        let mounts = seen["mounts"].as_str().unwrap();
        let shm = mounts.lines().find(|line| line.contains(" /dev/shm ")).unwrap();
        assert!(shm.contains("size=8192k"), "{shm}");

        let write = |path: &str| http_get(&format!("{url}/write{path}")).unwrap().1;
        for path in ["/", "/bin", "/models"] {
            let answer = write(path);
            assert!(answer.contains("Read-only file system"), "{path}: {answer}");
        }
        for path in ["/tmp", "/cache"] {
            assert_eq!(write(path), "written", "{path}");
        }
        let model = http_get(&format!("{url}/completion")).unwrap().1;
        assert_eq!(model, "hello from GGUF\n");
        // Nothing of this machine's environment arrives.
        let environment = seen["env"].as_object().unwrap();
        for name in environment.keys() {
            assert!(
                ["PATH", "HOSTNAME", "HOME", "TERM", "container"].contains(&name.as_str()),
                "{name} is in the environment"
            );
        }
        // Nobody but this machine reaches it.
        let port = &stage.pool["provisioning"]["ports"][0];
        assert_eq!(url, format!("http://127.0.0.1:{port}"));
        let _ = running.end(Signal::INT).code(130);
        stage.assert_clean();
    }

    fn an_engine_has_a_network_of_its_own_whatever_the_runtime_is_set_to(kind) {
        let stage = Stage::new(kind);
        stage.containers.share_network();
        stage.write();
        let mut running = stage.machine.provision(&[]);
        let url = running.wait_ready();
        let port = &stage.pool["provisioning"]["ports"][0];
        assert_eq!(url, format!("http://127.0.0.1:{port}"));
        assert_eq!(http_get(&format!("{url}/health")).unwrap().0, 200);
        let _ = running.end(Signal::INT).code(130);
        stage.assert_clean();
    }

    fn a_second_port_is_published_and_handed_off(kind) {
        let mut stage = Stage::new(kind);
        stage.pool["options"] = json!({"grpc": true});
        stage.write();
        let running = stage.machine.provision(&[]);
        let handoff = stage.machine.handoff();
        let grpc = handoff["endpoints"]["grpc"].as_str().unwrap_or_else(|| panic!("{handoff}"));
        assert_eq!(http_get(&format!("{grpc}/health")).unwrap().0, 200);
        let _ = running.end(Signal::INT).code(130);
        stage.assert_clean();
    }

    fn a_secret_arrives_in_the_engine_and_nowhere_else(kind) {
        const SECRET: &str = "opensesame-4711-opensesame";
        let mut stage = Stage::new(kind);
        stage.machine.lend("FIXTURE_TOKEN", SECRET);
        stage.pool["provisioning"]["env"] = json!({"TOKEN": "{secret.FIXTURE_TOKEN}"});
        stage.write();
        let mut output = String::new();
        let seen = command_lines_with(SECRET, || {
            let arguments = ["--log-format=json"];
            let mut running = stage.machine.provision(&arguments);
            let url = running.wait_ready();
            assert_eq!(report(&url)["env"]["TOKEN"], SECRET);
            let run = running.end(Signal::INT).code(130);
            output = run.stdout + &run.stderr;
        });
        assert!(seen.is_empty(), "{seen:#?}");
        assert!(!output.contains(SECRET), "{output}");
        assert_eq!(files_with(&stage.machine.home(), SECRET), Vec::<String>::new());
        stage.assert_clean();
    }

    fn a_secret_that_stands_in_the_pool_file_is_in_no_command_and_no_record(kind) {
        const SECRET: &str = "opensesame-4712-opensesame";
        let mut stage = Stage::new(kind);
        stage.pool["provisioning"]["env"] = json!({"TOKEN": SECRET});
        stage.write();
        let seen = command_lines_with(SECRET, || {
            let mut running = stage.machine.provision(&[]);
            let url = running.wait_ready();
            assert_eq!(report(&url)["env"]["TOKEN"], SECRET);
            let records = stage.machine.home().join("state/instances");
            assert!(!files_with(&records, &stage.name()).is_empty(), "a record is there");
            assert_eq!(files_with(&records, SECRET), Vec::<String>::new());
            let _ = running.end(Signal::INT).code(130);
        });
        assert!(seen.is_empty(), "{seen:#?}");
        stage.assert_clean();
    }

    fn a_name_that_means_something_to_the_runtime_is_refused_for_a_secret(kind) {
        let mut stage = Stage::new(kind);
        stage.machine.lend("FIXTURE_TOKEN", "opensesame");
        stage.pool["provisioning"]["env"] = json!({"DOCKER_HOST": "{secret.FIXTURE_TOKEN}"});
        stage.write();
        let run = stage.machine.run(&["provision"]).code(3);
        run.says("DOCKER_HOST");
        stage.assert_clean();
    }

    fn an_engine_that_loads_behind_a_published_port_is_waited_for(kind) {
        let mut stage = Stage::new(kind);
        stage.flags(&["--refuse-ms", "700", "--load-ms", "1200"]);
        stage.write();
        let mut running = stage.machine.provision(&[]);
        let url = running.wait_ready();
        assert_eq!(http_get(&format!("{url}/health")).unwrap().0, 200);
        let _ = running.end(Signal::INT).code(130);
        stage.assert_clean();
    }

    fn a_stop_waits_for_requests_in_flight(kind) {
        let stage = Stage::new(kind);
        stage.write();
        let mut running = stage.machine.provision(&[]);
        let url = running.wait_ready();
        assert_eq!(http_get(&format!("{url}/busy")).unwrap().0, 200);
        let busy = Duration::from_millis(1500);
        let start = std::time::Instant::now();
        let requests = std::thread::spawn(move || {
            std::thread::sleep(busy);
            http_get(&format!("{url}/idle")).unwrap().0
        });
        let run = running.end(Signal::TERM).code(143);
        assert!(start.elapsed() >= busy, "{:?}", start.elapsed());
        assert_eq!(requests.join().unwrap(), 200);
        run.says("stopped");
        stage.assert_clean();
    }

    fn an_engine_that_ignores_term_is_killed_after_its_grace(kind) {
        let mut stage = Stage::new(kind);
        stage.flags(&["--ignore-term"]);
        stage.pool["stop"] = json!({"grace": "1s"});
        stage.write();
        let running = stage.machine.provision(&[]);
        let start = std::time::Instant::now();
        let run = running.end(Signal::INT).code(130);
        assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
        run.says("stopped");
        stage.assert_clean();
    }

    fn a_detached_engine_stays_is_listed_logged_and_stopped(kind) {
        let mut stage = Stage::new(kind);
        stage.flags(&["--print-line", "the quick brown fox"]);
        stage.write();
        let run = stage.machine.run(&["provision", "--detach", "--json"]).code(0);
        let url = run.json()["url"].as_str().unwrap().to_owned();
        assert_eq!(http_get(&format!("{url}/health")).unwrap().0, 200);
        assert_eq!(stage.left().len(), 1);
        let list = stage.machine.run(&["ps", "--json"]).code(0).json();
        assert_eq!(list["engines"][0]["state"], "ready", "{list}");
        assert_eq!(list["engines"][0]["engine_version"], stage.digest);
        wait_for("the engine's log", e2e::RUN_LIMIT, || {
            let log = stage.machine.run(&["logs"]).code(0).stdout;
            if log.contains("the quick brown fox") { Ok(()) } else { Err(log) }
        });
        // The same again starts nothing; another setting is refused and shown.
        let run = stage.machine.run(&["provision"]).code(0);
        assert!(run.stdout.contains(&url), "{}", run.stdout);
        assert_eq!(stage.left().len(), 1);
        stage.flags(&["--load-ms", "1"]);
        stage.write();
        stage.machine.run(&["provision"]).code(13).says("--load-ms");
        let _ = stage.machine.run(&["stop", "default"]).code(0);
        assert!(http_get(&url).is_err(), "it still answers");
        stage.assert_clean();
    }

    fn a_port_that_is_taken_is_passed_over(kind) {
        let mut stage = Stage::new(kind);
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let first = taken.local_addr().unwrap().port();
        let second = e2e::free_port();
        stage.pool["provisioning"]["ports"] = json!([first, second]);
        stage.write();
        let mut running = stage.machine.provision(&[]);
        assert_eq!(running.wait_ready(), format!("http://127.0.0.1:{second}"));
        let _ = running.end(Signal::INT).code(130);
        stage.assert_clean();
    }

    fn a_leftover_of_ours_is_removed_and_its_name_used_again(kind) {
        let mut stage = Stage::new(kind);
        stage.pin();
        stage.write();
        let running = stage.machine.provision(&[]);
        let name = stage.name();
        let format = "{{range $k, $v := .Config.Labels}}{{$k}}={{$v}}\n{{end}}";
        let labels = stage.containers.run(&["container", "inspect", "--format", format, &name]);
        let _ = running.end(Signal::INT).code(130);
        stage.assert_clean();
        // As a killed host would have left it: same name, same labels, still running.
        let mut words = vec!["run", "--detach", "--name", &name];
        for label in labels.lines().filter(|line| line.starts_with("engine-host.")) {
            words.extend(["--label", label]);
        }
        let reference = stage.reference();
        words.push(&reference);
        stage.containers.run(&words);
        assert_eq!(stage.left(), std::slice::from_ref(&name));
        let running = stage.machine.provision(&[]);
        assert_eq!(stage.name(), name);
        let _ = running.end(Signal::INT).code(130);
        stage.assert_clean();
    }

    fn somebody_else_s_container_of_that_name_is_not_touched(kind) {
        let mut stage = Stage::new(kind);
        stage.pin();
        stage.write();
        let running = stage.machine.provision(&[]);
        let name = stage.name();
        let _ = running.end(Signal::INT).code(130);
        stage.assert_clean();
        let reference = stage.reference();
        stage.containers.run(&["run", "--detach", "--name", &name, "--label", "tests.other=1", &reference]);
        let run = stage.machine.run(&["provision"]).code(5);
        run.says(&name);
        assert_eq!(stage.containers.labelled("tests.other=1"), std::slice::from_ref(&name));
        let running = "{{.State.Running}}";
        let runs = stage.containers.run(&["container", "inspect", "--format", running, &name]);
        assert_eq!(runs.trim(), "true");
        stage.containers.run(&["rm", "--force", &name]);
        stage.assert_clean();
    }
}

/// Of podman alone: under docker every connection is made with its proxy.
#[test]
fn a_port_that_a_stale_rule_leads_elsewhere_is_named() {
    let mut stage = Stage::new(e2e::ContainerKind::Podman);
    stage.pin();
    stage.write();
    stage
        .containers
        .run(&["pull", "--quiet", &stage.reference()]);
    // In a network of its own: this machine's rules are left alone.
    let rule = format!(
        "ip link set lo up && \
         iptables -w -t nat -A OUTPUT -o lo -p tcp --dport {} -j REDIRECT --to-ports 1 && \
         exec \"$@\"",
        stage.pool["provisioning"]["ports"][0]
    );
    let host = Built::debug().host();
    let apart = [
        "--net",
        "sh",
        "-c",
        &rule,
        "sh",
        host.to_str().unwrap(),
        "provision",
    ];
    let command = stage.machine.command_of(Path::new("unshare"), &apart);
    let run = stage.machine.start(command).finish(e2e::RUN_LIMIT).code(10);
    run.says("a rule of this machine's packet filter leads the port elsewhere");
    run.says("name other ports in `provisioning.ports`");
    stage.assert_clean();
}
