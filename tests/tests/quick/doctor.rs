//! What `host doctor` says of machines that are written down.

use e2e::{Machine, Run, facts};
use serde_json::Value;

fn doctor(machine: &Machine, on: &str, more: &[&str]) -> Run {
    machine.run(&[&["doctor", "--facts", &facts(on)], more].concat())
}

fn row<'a>(report: &'a Value, provider: &str, mode: &str) -> &'a Value {
    let mut rows = report["rows"].as_array().unwrap().iter();
    rows.find(|row| row["provider"] == provider && row["mode"] == mode)
        .unwrap_or_else(|| panic!("{provider} {mode}: {report}"))
}

#[test]
fn a_default_pool_that_would_not_run_is_not_called_ready() {
    let machine = Machine::new();
    for more in [&["--gpu", "prefer", "--json"][..], &["--json"]] {
        // That of llama.cpp would run.
        let report = doctor(&machine, "podman-one-gpu", more).code(0).json();
        for (provider, why) in [
            ("vllm", "needs a pool file with `provisioning.model.ref`"),
            ("tgi", "needs a pool file with `provisioning.model.ref`"),
            ("triton", "`./model_repository` is not here"),
        ] {
            let row = row(&report, provider, "container");
            assert_eq!(row["would_run"], false, "{row}");
            assert_ne!(row["state"], "ready", "{row}");
            assert!(row["reasons"].to_string().contains(why), "{row}");
            assert!(!row["fixes"].to_string().contains(" provision "), "{row}");
        }
    }
    // What it offers where there is no GPU would end with the same words.
    let report = doctor(&machine, "podman-cpu", &["--json"]).code(5).json();
    let row = row(&report, "vllm", "container");
    assert!(!row["fixes"].to_string().contains(" provision "), "{row}");
    machine.assert_untouched();
}

#[test]
fn every_container_runtime_is_told_of_though_no_provider_gets_that_far() {
    let machine = Machine::new();
    let run = doctor(&machine, "podman-cpu", &[]).code(5);
    let told = |line: &str| assert!(run.stdout.contains(line), "{}", run.stdout);
    told("runtime podman 4.3.1, rootless: used\n");
    told("runtime docker: cannot\n  why: not found\n");
    let report = doctor(&machine, "docker-old-one-gpu", &["--json"])
        .code(5)
        .json();
    assert_eq!(report["runtimes"][0]["state"], "cannot", "{report}");
    assert_eq!(report["runtimes"][1]["state"], "used");
    assert_eq!(report["runtimes"][1]["rootless"], false);
    let wanted = ["--container-runtime", "podman", "--json"];
    let report = doctor(&machine, "docker-old-one-gpu", &wanted)
        .code(5)
        .json();
    assert_eq!(report["runtimes"][1]["state"], "usable", "{report}");
    let row = row(&report, "llamacpp", "container");
    assert_eq!(row["would_run"], false, "{row}");
    machine.assert_untouched();
}
