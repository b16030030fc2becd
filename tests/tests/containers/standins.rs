//! Each provider's real command in a real container, with a stand-in for the engine.
//!
//! TGI cannot run here: its stand-in behaves as the real one does from outside. For vLLM and llama.cpp
//! the fake engine stands where their images have the program; the real ones are tested elsewhere.

use e2e::{ContainerKind, Image, Registry, http_get, weights_below};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{Stage, under_both};

/// A stage whose pool is one of `engine`, with a model directory where it wants one.
fn stage(kind: ContainerKind, engine: &str, image: Image) -> Stage {
    let image = image.label("tests.standin", &format!("{engine}-{}", std::process::id()));
    let mut stage = Stage::with(kind, Registry::open(), image);
    stage.pin();
    stage.pool["engine"] = json!(engine);
    let model = weights_below(stage.machine.root());
    stage.pool["provisioning"]["model"] = json!({"ref": model});
    stage
}

fn json_of(url: &str) -> Value {
    let (status, body) = http_get(url).unwrap();
    assert_eq!(status, 200, "{url}: {body}");
    serde_json::from_str(&body).unwrap()
}

under_both! {
    fn tgi_is_configured_through_its_environment_and_waited_for_while_it_refuses(kind) {
        let mut stage = stage(kind, "tgi", Image::of_program("fake-tgi"));
        stage.pool["gpu"] = json!("prefer");
        stage.write();
        let mut running = stage.machine.provision(&[]);
        let url = running.wait_ready();
        let handoff = stage.machine.handoff();
        assert_eq!(handoff["observed_version"], "3.3.7", "{handoff}");
        assert_eq!(handoff["engine_version"], stage.digest);
        assert_eq!(handoff["dialect"], "openai");
        let environment = json_of(&format!("{url}/environment"));
        assert_eq!(environment["PORT"], "8080");
        assert_eq!(environment["USAGE_STATS"], "off");
        assert_eq!(environment["HF_HUB_OFFLINE"], "1");
        assert!(environment["MODEL_ID"].as_str().unwrap().starts_with('/'));
        let run = running.end(Signal::INT).code(130);
        // No release has come for long: said when it is planned, with what to take instead.
        run.says("maintenance");
        run.says("vllm");
        stage.assert_clean();
    }

    fn tgi_answers_what_it_has_before_it_ends(kind) {
        let mut stage = stage(kind, "tgi", Image::of_program("fake-tgi"));
        stage.pool["gpu"] = json!("prefer");
        stage.pool["stop"] = json!({"grace": "20s"});
        stage.pool["provisioning"]["env"] = json!({"GENERATE_MS": "1500"});
        stage.write();
        let mut running = stage.machine.provision(&[]);
        let url = running.wait_ready();
        let environment = json_of(&format!("{url}/environment"));
        assert_eq!(environment["GRACEFUL_TERMINATION_TIMEOUT"], "18", "{environment}");
        let asked = format!("{url}/generate");
        let answer = std::thread::spawn(move || http_get(&asked));
        e2e::wait_for("the request to be counted", e2e::RUN_LIMIT, || {
            let metrics = http_get(&format!("{url}/metrics")).unwrap().1;
            if metrics.contains("size 1") { Ok(()) } else { Err(metrics) }
        });
        let run = running.end(Signal::TERM).code(143);
        let (status, text) = answer.join().unwrap().expect("it is answered, not cut off");
        assert_eq!(status, 200, "{text}");
        run.says("stopped");
        stage.assert_clean();
    }

    fn vllm_runs_as_its_own_user_with_a_cache_that_stays(kind) {
        let image = Image::engine().program("fake-engine", "usr/bin/vllm").entrypoint(&["/bin/false"]);
        let mut stage = stage(kind, "vllm", image);
        stage.pool["gpu"] = json!("prefer");
        stage.write();
        let mut running = stage.machine.provision(&[]);
        let url = running.wait_ready();
        let seen = json_of(&format!("{url}/report"));
        assert_eq!(seen["uid"], 2000, "{seen}");
        let words: Vec<&str> = seen["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(words[1], "serve", "{words:?}");
        assert!(words.contains(&"--served-model-name"), "{words:?}");
        assert_eq!(seen["env"]["VLLM_NO_USAGE_STATS"], "1");
        assert_eq!(seen["env"]["VLLM_CACHE_ROOT"], "/cache/vllm");
        assert_eq!(http_get(&format!("{url}/write/cache")).unwrap().1, "written");
        let mounts = seen["mounts"].as_str().unwrap();
        let shm = mounts.lines().find(|line| line.contains(" /dev/shm ")).unwrap();
        assert!(shm.contains("size=1048576k"), "{shm}");
        let _ = running.end(Signal::INT).code(130);
        stage.assert_clean();
    }

    fn llamacpp_runs_as_nobody_special(kind) {
        let image = Image::engine().program("fake-engine", "app/llama-server");
        let mut stage = stage(kind, "llamacpp", image);
        stage.pool["provisioning"]["model"] = json!({"ref": "builtin:haiku"});
        stage.write();
        let mut running = stage.machine.provision(&[]);
        let url = running.wait_ready();
        let seen = json_of(&format!("{url}/report"));
        assert_ne!(seen["uid"], 0, "{seen}");
        let words: Vec<&str> = seen["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(words[0], "/app/llama-server");
        for pair in [["--parallel", "1"], ["--port", "8080"]] {
            assert!(words.windows(2).any(|two| two == pair), "{pair:?}: {words:?}");
        }
        assert_eq!(stage.machine.handoff()["engine_version"], stage.digest);
        let _ = running.end(Signal::INT).code(130);
        stage.assert_clean();
    }
}
