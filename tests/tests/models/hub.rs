//! Models of the hub: what the host makes of them, beside what the hub's own client does.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use e2e::{
    Access, HUB_TOKEN, Hub, HubRepository, Machine, Repository, Run, fixture_pool, git_blob, sha256,
};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A repository with several models in one format.
fn quants() -> HubRepository {
    HubRepository::of(&[
        (".gitattributes", b"*.gguf filter=lfs"),
        ("README.md", b"# A model"),
        ("m-Q4_K_M.gguf", b"FOUR bits"),
        ("m-Q4_K_S.gguf", b"LESS bits"),
        ("m-Q8_0-00001-of-00002.gguf", b"MANY bits"),
        ("m-Q8_0-00002-of-00002.gguf", b"and the rest"),
        ("m-F16-00001-of-00002.gguf", b"half of it"),
    ])
}

/// A repository as the `transformers` library lays it out.
fn transformers() -> HubRepository {
    HubRepository::of(&[
        (".gitattributes", b"*.bin filter=lfs"),
        ("config.json", b"{}"),
        ("empty.txt", b""),
        ("model.safetensors", &[7; 300_000]),
        ("pytorch_model.bin", &[8; 1000]),
        ("sub dir/merges #\u{e9}%2F.txt", b"a b"),
    ])
}

fn machine(hub: &Hub) -> Machine {
    let mut machine = Machine::new();
    machine.lend("HF_ENDPOINT", &hub.endpoint());
    machine
}

/// The hub's own client, as `scripts/setup-tests` installs it.
fn client(program: &str, hub: &Hub, home: &Path) -> Command {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| e2e::repository_root().join("target"), PathBuf::from);
    let program = target.join("hub-client/bin").join(program);
    assert!(
        program.exists(),
        "no {}: scripts/setup-tests",
        program.display()
    );
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("HOME", home)
        .env("HF_ENDPOINT", hub.endpoint())
        .env("HF_HUB_DISABLE_XET", "1")
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env("HF_HUB_DISABLE_UPDATE_CHECK", "1");
    command
}

fn ok(output: Output) -> String {
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    String::from_utf8(output.stdout).unwrap()
}

/// Files below a directory, hidden ones left out.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path
                .strip_prefix(root)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            if name.split('/').any(|part| part.starts_with('.')) {
                continue;
            }
            if path.is_dir() {
                open.push(path);
            } else {
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn visible(repository: &HubRepository) -> BTreeMap<String, Vec<u8>> {
    let mut files = repository.files.clone();
    files.retain(|name, _| !name.starts_with('.'));
    files
}

/// Where a model that was added lies.
fn added(run: &Run) -> PathBuf {
    let shown = run.json();
    let path = shown["path"].as_str().unwrap_or_else(|| panic!("{shown}"));
    PathBuf::from(path)
}

#[test]
fn the_hubs_own_client_takes_our_hub_for_the_real_one() {
    let hub = Hub::start();
    let home = tempfile::tempdir().unwrap();
    let repository = transformers();
    let commit = hub.publish("o/t", "refs/pr/1", repository.clone());
    let whole = home.path().join("whole");
    let mut download = client("hf", &hub, home.path());
    download.args(["download", "o/t", "--revision", "refs/pr/1", "--local-dir"]);
    ok(download.arg(&whole).output().unwrap());
    assert_eq!(files(&whole), visible(&repository));
    // What it reads of the API that the host asks.
    let mut python = client("python", &hub, home.path());
    let script = "import json, huggingface_hub as h\n\
        i = h.HfApi().model_info('o/t', revision='refs/pr/1', files_metadata=True)\n\
        print(json.dumps([i.sha, i.gated, i.disabled, i.card_data.license,\n\
          {s.rfilename: [s.size, s.lfs.sha256 if s.lfs else s.blob_id] for s in i.siblings}]))";
    let said = ok(python.args(["-c", script]).output().unwrap());
    let said: Value = serde_json::from_str(&said).unwrap();
    let listed: serde_json::Map<String, Value> = repository
        .files
        .iter()
        .map(|(path, content)| {
            let large = path.ends_with(".bin") || path.ends_with(".safetensors");
            let mark = if large {
                sha256(content)
            } else {
                git_blob(content)
            };
            (path.clone(), json!([content.len(), mark]))
        })
        .collect();
    assert_eq!(said, json!([commit, false, false, "apache-2.0", listed]));
}

#[test]
fn the_hubs_own_client_is_refused_as_by_the_real_one() {
    let hub = Hub::start();
    let home = tempfile::tempdir().unwrap();
    hub.publish("o/private", "main", quants().with_access(Access::Private));
    hub.publish("o/gated", "main", quants().with_access(Access::Gated));
    hub.publish("o/n", "main", quants());
    let script = "import sys, huggingface_hub as h\n\
        try: h.hf_hub_download(sys.argv[1], 'm-Q4_K_M.gguf', revision=sys.argv[2])\n\
        except Exception as e: print(type(e).__name__)\n\
        else: print('given')\n\
        try: h.auth_check(sys.argv[1])\n\
        except Exception as e: print(type(e).__name__)\n\
        else: print('given')";
    let ask = |name: &str, revision: &str, token: Option<&str>| {
        let mut python = client("python", &hub, home.path());
        python.envs(token.map(|token| ("HF_TOKEN", token)));
        let said = ok(python
            .args(["-c", script, name, revision])
            .output()
            .unwrap());
        said.lines().collect::<Vec<_>>().join(" ")
    };
    let token = Some(HUB_TOKEN);
    let missing = "RepositoryNotFoundError RepositoryNotFoundError";
    assert_eq!(ask("o/private", "main", None), missing);
    assert_eq!(ask("o/nowhere", "main", token), missing);
    assert_eq!(
        ask("o/gated", "main", None),
        "GatedRepoError GatedRepoError"
    );
    assert_eq!(ask("o/n", "nowhere", None), "RevisionNotFoundError given");
    assert_eq!(ask("o/gated", "main", token), "given given");
    assert_eq!(ask("o/private", "main", token), "given given");
}

#[test]
fn a_quantisation_is_picked_and_served_and_needs_no_network_again() {
    let hub = Hub::start();
    let commit = hub.publish("o/n", "main", quants().with_access(Access::Private));
    let mut machine = machine(&hub);
    machine.lend("HF_TOKEN", HUB_TOKEN);
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["quant"] = json!("q4_k_m");
    pool["provisioning"]["model"] = json!({"ref": "hf:o/n"});
    machine.write_pool(&pool);
    let mut running = machine.provision(&[]);
    let url = running.wait_ready();
    let answer = e2e::http_get(&format!("{url}/completion")).unwrap().1;
    assert_eq!(answer, "hello from FOUR\n");
    let run = running.end(Signal::INT).code(130);
    run.says("picked from m-F16-00001-of-00002.gguf, m-Q4_K_M.gguf, m-Q4_K_S.gguf");
    run.says(&commit[..12]);
    assert!(!run.stderr.contains(HUB_TOKEN) && !run.stdout.contains(HUB_TOKEN));
    for request in hub.take_requests() {
        let expected = (!request.storage).then(|| format!("Bearer {HUB_TOKEN}"));
        assert_eq!(request.authorization, expected, "{}", request.target);
    }
    let again = machine.provision(&["--offline"]);
    let _ = again.end(Signal::INT).code(130);
    assert_eq!(hub.take_requests(), []);
    machine.assert_clean();
}

/// The value of a key in an example, which has it once.
fn written<'a>(example: &'a str, key: &str) -> &'a str {
    let prefix = format!("{key}: ");
    let mut lines = example.lines().map(str::trim);
    lines.find_map(|line| line.strip_prefix(&*prefix)).unwrap()
}

#[test]
fn the_pinned_profile_of_the_readme_is_served_by_a_hub_that_has_its_commit() {
    let example = e2e::repository_root().join("examples/llamacpp-qwen-0.5b.yaml");
    let example = fs::read_to_string(example).unwrap();
    let (reference, checksum) = (written(&example, "ref"), written(&example, "checksum"));
    let (name, rest) = reference
        .strip_prefix("hf:")
        .and_then(|rest| rest.split_once('@'))
        .expect("a reference to the hub, pinned");
    let (commit, file) = rest.split_once('/').unwrap();
    assert_eq!(commit.len(), 40, "a commit, no branch");

    // Another file of this name: everything holds but its checksum.
    let hub = Hub::start();
    hub.publish_commit(name, commit, HubRepository::of(&[(file, b"FAKE model")]));
    let machine = machine(&hub);
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["provisioning"]["model"] = json!({"ref": reference, "checksum": checksum});
    machine.write_pool(&pool);
    let run = machine.run(&["prepare"]).code(9);
    run.says(checksum);
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
    let digest = format!("sha256:{}", sha256(b"FAKE model"));
    pool["provisioning"]["model"]["checksum"] = json!(digest);
    machine.write_pool(&pool);
    let mut running = machine.provision(&[]);
    let url = running.wait_ready();
    let answer = e2e::http_get(&format!("{url}/completion")).unwrap().1;
    assert_eq!(answer, "hello from FAKE\n");
    let _ = running.end(Signal::INT).code(130);
    let shown = machine.run(&["model", "show", reference, "--json"]);
    let shown = shown.code(0).json();
    assert_eq!(
        (&shown["digest"], &shown["revision"]),
        (&json!(digest), &json!(commit))
    );
    machine.assert_clean();
}

#[test]
fn a_signed_url_that_ends_on_the_way_is_asked_for_again() {
    let hub = Hub::start();
    let content: Vec<u8> = (0..80_u32 << 20)
        .map(|number| (number.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect();
    hub.publish("o/n", "main", HubRepository::of(&[("m.gguf", &content)]));
    hub.let_urls_end_after(1);
    let machine = machine(&hub);
    let run = machine.run(&["--json", "model", "add", "hf:o/n/m.gguf"]);
    assert!(fs::read(added(&run.code(0))).unwrap() == content);
    let requests = hub.take_requests();
    let asked = requests
        .iter()
        .filter(|request| request.target.contains("/resolve/"));
    // A signature for each part, and for what is looked at before.
    let asked = asked.count();
    assert!(asked >= 4, "{asked}");
}

#[test]
fn a_split_model_is_placed_whole_or_refused() {
    let hub = Hub::start();
    hub.publish("o/n", "main", quants());
    let machine = machine(&hub);
    let run = machine
        .run(&["model", "add", "hf:o/n:Q8_0", "--json"])
        .code(0);
    let path = added(&run);
    assert!(
        path.ends_with("m-Q8_0-00001-of-00002.gguf"),
        "{}",
        path.display()
    );
    assert_eq!(fs::read(&path).unwrap(), b"MANY bits");
    let rest = path.with_file_name("m-Q8_0-00002-of-00002.gguf");
    assert_eq!(fs::read(rest).unwrap(), b"and the rest");
    let asked = hub.take_requests().len();
    let run = machine.run(&["model", "add", "hf:o/n:F16"]).code(3);
    run.says("is split into 2 files, and not all of them are in the repository");
    run.says("m-F16-00002-of-00002.gguf");
    assert_eq!((asked, hub.take_requests().len()), (5, 1));
}

#[test]
fn a_repository_becomes_a_directory_of_what_an_engine_needs() {
    let hub = Hub::start();
    let repository = transformers();
    let commit = hub.publish("o/t", "main", repository.clone());
    let machine = machine(&hub);
    let run = machine.run(&["model", "add", "hf:o/t", "--as", "directory", "--json"]);
    let path = added(&run.code(0));
    let shown = machine
        .run(&["model", "show", "hf:o/t", "--json"])
        .code(0)
        .json();
    let mut expected = visible(&repository);
    expected.remove("pytorch_model.bin");
    assert_eq!(files(&path), expected);
    assert_eq!(shown["revision"], json!(commit));
    assert_eq!(shown["licence"], "apache-2.0");
    let only = ["--include", "*.json", "--include", "*.bin"];
    let all = [
        &["model", "add", "hf:o/t", "--as", "directory", "--json"][..],
        &only,
    ]
    .concat();
    let path = added(&machine.run(&all).code(0));
    let names: Vec<String> = files(&path).into_keys().collect();
    assert_eq!(names, ["config.json", "pytorch_model.bin"]);
}

#[test]
fn a_branch_that_moves_on_is_followed_only_when_asked() {
    let hub = Hub::start();
    let first = hub.publish("o/n", "main", quants());
    let machine = machine(&hub);
    let add = ["model", "add", "hf:o/n/m-Q4_K_M.gguf", "--json"];
    let before = added(&machine.run(&add).code(0));
    let mut later = quants();
    later
        .files
        .insert("m-Q4_K_M.gguf".to_owned(), b"NEW bits".to_vec());
    let second = hub.publish("o/n", "main", later);
    assert_ne!(first, second);
    let same = added(&machine.run(&add).code(0));
    assert_eq!(same, before);
    let refresh = [&add[..], &["--refresh"]].concat();
    let moved = added(&machine.run(&refresh).code(0));
    assert_eq!(fs::read(moved).unwrap(), b"NEW bits");
    // A commit is what it was.
    let pinned = format!("hf:o/n@{first}/m-Q4_K_M.gguf");
    let pinned = added(&machine.run(&["model", "add", &pinned, "--json"]).code(0));
    assert_eq!(fs::read(pinned).unwrap(), b"FOUR bits");
}

#[test]
fn what_the_hubs_own_client_has_is_taken_and_left_as_it_is() {
    let hub = Hub::start();
    let repository = transformers();
    hub.publish("o/t", "main", repository.clone());
    let machine = machine(&hub);
    let mut download = client("hf", &hub, machine.root());
    ok(download.args(["download", "o/t"]).output().unwrap());
    let cache = machine.root().join(".cache/huggingface/hub/models--o--t");
    let before = files(&cache.join("blobs"));
    assert_eq!(before.len(), repository.files.len());
    let _ = hub.take_requests();
    // Nobody else gets there, as in a home directory; what lies there is open to everybody.
    let closed = fs::Permissions::from_mode(0o700);
    fs::set_permissions(machine.root().join(".cache"), closed).unwrap();
    let run = machine
        .run(&["model", "add", "hf:o/t", "--as", "directory", "--json"])
        .code(0);
    let path = added(&run);
    let inodes = |directory: &Path, names: &[&str]| -> BTreeSet<u64> {
        let of = |name: &&str| fs::metadata(directory.join(name)).unwrap().ino();
        names.iter().map(of).collect()
    };
    let blobs: Vec<&str> = before.keys().map(String::as_str).collect();
    let linked = inodes(&path, &["config.json", "model.safetensors"]);
    assert!(
        linked.is_subset(&inodes(&cache.join("blobs"), &blobs)),
        "copied, not linked"
    );
    let asked: Vec<String> = hub
        .take_requests()
        .into_iter()
        .map(|it| it.target)
        .collect();
    assert_eq!(asked, ["/api/models/o/t/revision/main?blobs=true"]);
    assert_eq!(files(&path)["config.json"], b"{}");
    assert_eq!(files(&cache.join("blobs")), before);
}

/// Where the hub's own client keeps the content of the files of `o/n`.
fn own_blobs(machine: &Machine) -> PathBuf {
    let blobs = ".cache/huggingface/hub/models--o--n/blobs";
    let blobs = machine.root().join(blobs);
    fs::create_dir_all(&blobs).unwrap();
    blobs
}

#[test]
fn what_is_written_into_a_linked_file_by_its_owner_is_noticed_and_fetched_again() {
    let hub = Hub::start();
    hub.publish("o/n", "main", quants());
    let machine = machine(&hub);
    let blobs = own_blobs(&machine);
    let own = blobs.join(sha256(b"FOUR bits"));
    fs::write(&own, b"FOUR bits").unwrap();
    let add = ["model", "add", "hf:o/n:Q4_K_M", "--json"];
    let path = added(&machine.run(&add).code(0));
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&path), inode(&own), "it is linked");
    fs::write(&own, b"FIVE bits").unwrap();
    let again = machine.run(&add).code(0);
    again.says("is damaged: fetching again");
    assert_eq!(fs::read(added(&again)).unwrap(), b"FOUR bits");
    assert_eq!(fs::read(&own).unwrap(), b"FIVE bits", "it is its owner's");
}

#[test]
fn a_damaged_file_of_the_hubs_own_client_is_not_taken() {
    let hub = Hub::start();
    hub.publish("o/n", "main", quants());
    let machine = machine(&hub);
    let blobs = own_blobs(&machine);
    fs::write(blobs.join(sha256(b"FOUR bits")), b"FIVE bits").unwrap();
    let run = machine
        .run(&["model", "add", "hf:o/n:Q4_K_M", "--json"])
        .code(0);
    run.says("is not what it should be: downloading instead");
    let path = added(&run);
    assert_eq!(fs::read(path).unwrap(), b"FOUR bits");
}

#[test]
fn each_refusal_says_what_to_do_and_leaves_nothing() {
    let hub = Hub::start();
    hub.publish("o/n", "main", quants());
    hub.publish("o/private", "main", quants().with_access(Access::Private));
    hub.publish("o/gated", "main", quants().with_access(Access::Gated));
    let file = |name: &str| format!("hf:{name}/m-Q4_K_M.gguf");
    let cases = [
        (file("o/gated"), None, 8, "accept the terms at http://"),
        (
            file("o/gated"),
            None,
            8,
            "read -rs HF_TOKEN && export HF_TOKEN",
        ),
        (
            file("o/gated"),
            Some("hf_wrongwrong"),
            8,
            "does not accept the token of HF_TOKEN",
        ),
        (
            file("o/private"),
            None,
            11,
            "read -rs HF_TOKEN && export HF_TOKEN",
        ),
        (
            file("o/nowhere"),
            Some(HUB_TOKEN),
            11,
            "compare the spelling",
        ),
        (file("o/n@nowhere"), None, 11, "has no revision `nowhere`"),
        (
            "hf:o/n/m-Q4_K_L.gguf".to_owned(),
            None,
            11,
            "there is `m-Q4_K_M.gguf`",
        ),
        (
            "hf:o/n".to_owned(),
            None,
            3,
            "for example with `quant: F16`",
        ),
        (
            "hf:o/n:Q5_0".to_owned(),
            None,
            3,
            "no model of quantisation Q5_0",
        ),
        ("hf:o/../n".to_owned(), None, 3, "is no model reference"),
    ];
    for (reference, token, code, text) in cases {
        let mut machine = machine(&hub);
        if let Some(token) = token {
            machine.lend("HF_TOKEN", token);
        }
        let run = machine.run(&["model", "add", &reference]).code(code);
        run.says(text);
        assert_eq!(machine.store().blobs(), Vec::<String>::new(), "{reference}");
    }
    assert!(hub.take_requests().iter().all(|request| !request.storage));
}

#[test]
fn another_engines_repository_is_named_before_anything_is_fetched() {
    let hub = Hub::start();
    hub.publish("o/t", "main", transformers());
    hub.publish("o/n", "main", quants());
    let machine = machine(&hub);
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["provisioning"]["model"] = json!({"ref": "hf:o/t"});
    machine.write_pool(&pool);
    let run = machine.run(&["provision"]).code(3);
    run.says("holds bin, safetensors, and this engine reads gguf");
    let run = machine
        .run(&["model", "add", "hf:o/n", "--as", "directory"])
        .code(3);
    run.says("`o/n` holds gguf");
    assert!(hub.take_requests().iter().all(|request| !request.storage));
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
}

#[test]
fn the_hub_is_not_asked_when_it_must_not_be() {
    let hub = Hub::start();
    hub.publish("o/n", "main", quants());
    let mut machine = machine(&hub);
    let add = ["model", "add", "hf:o/n:Q4_K_M"];
    machine
        .run(&[&add[..], &["--offline"]].concat())
        .code(4)
        .says("offline");
    machine.lend("HF_HUB_OFFLINE", "1");
    machine.run(&add).code(4).says("unset HF_HUB_OFFLINE");
    assert_eq!(hub.take_requests(), []);
}

#[test]
fn a_directory_that_is_laid_out_for_another_engine_is_refused_before_it_is_fetched() {
    let hub = Hub::start();
    let transformers: [(&str, &[u8]); 3] = [
        ("config.json", b"{}"),
        ("modeling.py", b"pass"),
        ("onnx/model.onnx", b"not where Triton looks"),
    ];
    hub.publish("o/n", "main", HubRepository::of(&transformers));
    hub.publish(
        "o/echo",
        "main",
        HubRepository::of(&[("echo/1/model.py", b"pass")]),
    );
    let machine = machine(&hub);
    let pool = |reference: &str| {
        json!({
            "id": "default", "engine": "triton", "model": "echo", "gpu": "forbid",
            "provisioning": {"mode": "package", "model": {"ref": reference}},
        })
    };
    machine.write_pool(&pool("hf:o/n"));
    let reason = "hf:o/n is not laid out as its engine reads it, which looks for \
                  `echo/config.pbtxt` or `echo/NUMBER/…`";
    machine.run(&["plan"]).code(0).prints(reason);
    machine.run(&["prepare"]).code(3).says(reason);
    assert!(machine.store().blobs().is_empty());
    let requests = hub.take_requests();
    assert!(
        requests.iter().all(|it| it.target.starts_with("/api/")),
        "{requests:?}"
    );
    // What is here, since somebody added it who takes any, is no more readable.
    let add = ["model", "add", "hf:o/n", "--as", "directory"];
    let _ = machine.run(&add).code(0);
    machine.run(&["plan"]).code(3).says(reason);
    let fetched = machine.store().blobs();
    machine.write_pool(&pool("hf:o/echo"));
    let _ = machine.run(&["plan"]).code(0);
    assert_eq!(machine.store().blobs(), fetched, "a plan fetches nothing");
}
