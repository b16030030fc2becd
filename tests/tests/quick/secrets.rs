//! Secrets that stand somewhere appear nowhere.

use e2e::{Machine, Run};

const PLANTED: [&str; 5] = [
    "hf_plantedplanted",
    "sk-plantedplantedplanted",
    "plantedpassword",
    "plantedquery",
    "plantedvalue",
];

fn assert_kept(run: &Run, how: &str) {
    for secret in PLANTED {
        assert!(!run.stdout.contains(secret), "{how}: {}", run.stdout);
        assert!(!run.stderr.contains(secret), "{how}: {}", run.stderr);
    }
}

#[test]
fn secrets_in_environment_pool_and_url_appear_in_no_output() {
    let machine = Machine::new();
    machine.write(
        "pools.yaml",
        r#"pools:
  - id: default
    engine: fixture
    gpu: forbid
    provisioning:
      source: {repo: "https://127.0.0.1:9/x.git?token=plantedquery", ref: main}
      env: {HF_TOKEN: "{secret.HF_TOKEN}", OPENAI_API_KEY: sk-plantedplantedplanted, DB_PASSWORD: plantedvalue}
      flags: ["--api-key", "sk-plantedplantedplanted"]
"#,
    );
    // Nobody serves the repository.
    let plain = [
        (&["plan"][..], 0),
        (&["prepare"], 7),
        (&["provision"], 7),
        (&["facts"], 0),
        (&["config", "policy"], 0),
    ];
    for (arguments, code) in plain {
        for more in [&[][..], &["--json"], &["--log-format=json"]] {
            let arguments: Vec<&str> = arguments.iter().chain(more).copied().collect();
            let mut command = machine.command(&arguments);
            command
                .env("HF_TOKEN", "hf_plantedplanted")
                .env("RUST_LOG", "trace")
                .env(
                    "PIP_INDEX_URL",
                    "http://bob:plantedpassword@127.0.0.1:9/simple",
                );
            let run = machine.start(command).finish(e2e::RUN_LIMIT).code(code);
            assert_kept(&run, &arguments.join(" "));
        }
    }
    machine.assert_clean();
}

#[test]
fn a_password_in_a_url_is_refused_without_repeating_it() {
    let machine = Machine::new();
    machine.write(
        "pools.yaml",
        "pools:\n  - id: a\n    engine: fixture\n    gpu: forbid\n    provisioning:\n      source: {repo: \"https://bob:plantedpassword@example.org/x.git\"}\n",
    );
    for arguments in [&["plan"][..], &["plan", "--json"], &["config", "check"]] {
        let run = machine.run(arguments).code(3);
        run.says("the URL carries a password");
        assert_kept(&run, "refusal");
    }
    machine.assert_untouched();
}
