use engine_provider_api::{
    Act, Binary, Container, ContainerLaunch, Download, External, ExternalLaunch, ExtractImage,
    GpuPolicy, ImageName, InstallPackages, Launch, Mode, Model, ModelSource, Mount, Observe,
    Package, Probes, ProcessLaunch, PullImage, Resources, StageModel, Step, Stop,
};

use super::*;

fn pool() -> Pool {
    let mut pool = Pool::new("p", "toy");
    pool.provisioning.model = Some(ModelSource {
        reference: "file:/models/a.gguf".to_owned(),
        ..ModelSource::default()
    });
    pool.provisioning
        .env
        .insert("TOKEN".to_owned(), "{secret.HF_TOKEN}".to_owned());
    pool
}

fn staging(reference: &str, cache_dir: Option<&str>) -> Plan {
    Plan {
        steps: vec![Step {
            id: "model".to_owned(),
            after: Vec::new(),
            act: Act::StageModel(StageModel {
                reference: reference.to_owned(),
                cache_dir: cache_dir.map(str::to_owned),
                ..StageModel::default()
            }),
        }],
        ..Plan::default()
    }
}

fn engine(name: &str, secret: &str) -> PreparedEngine {
    PreparedEngine {
        requires: Vec::new(),
        engine: name.to_owned(),
        engine_version: "1".to_owned(),
        provisioning_mode: Mode::Source,
        launch: Launch::Process(ProcessLaunch {
            env: [(
                "X".to_owned(),
                Template::new(format!("{{secret.{secret}}}")),
            )]
            .into(),
            ..ProcessLaunch::default()
        }),
        files: Vec::new(),
        probes: Probes::default(),
        stop: Stop::default(),
        resources: Resources::default(),
        model: Model::default(),
        flags: Vec::new(),
        slots_total: 1,
        workloads: Vec::new(),
        profile: engine_provider_api::Profile::default(),
        diagnoses: Vec::new(),
        gpu_evidence: None,
        dialect: String::new(),
        device_mask: Vec::new(),
        build_record: std::collections::BTreeMap::new(),
        warnings: Vec::new(),
    }
}

#[test]
fn only_the_pools_own_model_is_staged() {
    assert_eq!(plan(&staging("file:/models/a.gguf", None), &pool()), Ok(()));
    assert_eq!(plan(&staging("builtin:haiku", None), &pool()), Ok(()));
    assert!(plan(&staging("file:/etc/shadow", None), &pool()).is_err());
    assert!(plan(&staging("file:/models/a.gguf", Some("/root/x")), &pool()).is_err());
}

#[test]
fn an_engine_has_its_pools_name_and_secrets() {
    assert_eq!(
        prepared(&engine("toy", "HF_TOKEN"), &Plan::default(), &pool()),
        Ok(())
    );
    assert!(
        prepared(
            &engine("/etc/docker/daemon", "HF_TOKEN"),
            &Plan::default(),
            &pool()
        )
        .is_err()
    );
    let refused = prepared(
        &engine("toy", "AWS_SECRET_ACCESS_KEY"),
        &Plan::default(),
        &pool(),
    )
    .unwrap_err();
    assert_eq!(refused.what, "secret `AWS_SECRET_ACCESS_KEY`");
}

#[test]
fn a_probe_is_a_question_for_a_version_and_nothing_else() {
    let asked = |program: &str, argument: &str| {
        probe(&ToolProbe {
            name: "t".to_owned(),
            programs: vec![program.to_owned()],
            version_args: vec![argument.to_owned()],
            extra_directories: Vec::new(),
            needed_by: Vec::new(),
            packages: std::collections::BTreeMap::new(),
        })
    };
    assert_eq!(asked("g++-12", "--version"), Ok(()));
    assert!(asked("/bin/sh", "--version").is_err());
    assert!(asked("../sh", "--version").is_err());
    assert!(asked("sh", "-c").is_err());
}

fn plan_of(steps: Vec<(&str, Act)>) -> Plan {
    let step = |(id, act): (&str, Act)| Step {
        id: id.to_owned(),
        after: Vec::new(),
        act,
    };
    Plan {
        steps: steps.into_iter().map(step).collect(),
        ..Plan::default()
    }
}

fn pull(repository: &str, tag: Option<&str>, digest: Option<&str>) -> Act {
    Act::PullImage(PullImage {
        image: ImageName {
            repository: repository.to_owned(),
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        },
        ..PullImage::default()
    })
}

/// In the mode that the engine itself names.
fn prepared(engine: &PreparedEngine, plan: &Plan, pool: &Pool) -> Result<(), Overreach> {
    super::prepared(engine, plan, pool, engine.provisioning_mode)
}

fn launched(launch: Launch) -> PreparedEngine {
    PreparedEngine {
        provisioning_mode: match launch {
            Launch::Container(_) => Mode::Container,
            Launch::External(_) => Mode::External,
            Launch::Process(_) => Mode::Source,
        },
        launch,
        ..engine("toy", "HF_TOKEN")
    }
}

#[test]
fn only_the_pools_own_image_is_pulled() {
    let with = |image: Option<&str>, tag: Option<&str>, digest: Option<&str>| {
        let mut pool = pool();
        pool.provisioning.container = Some(Container {
            image: image.map(str::to_owned),
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
            ..Container::default()
        });
        pool
    };
    let asked = |act: Act, pool: &Pool| plan(&plan_of(vec![("image", act)]), pool).is_ok();
    // What the pool leaves open is the provider's to choose.
    assert!(asked(pull("docker.io/x/y", Some("1"), None), &pool()));
    let named = with(Some("docker.io/x/y"), None, None);
    assert!(asked(pull("docker.io/x/y", Some("1"), None), &named));
    assert!(!asked(pull("docker.io/evil/y", Some("1"), None), &named));
    let tagged = with(None, Some("2"), None);
    assert!(asked(pull("docker.io/x/y", Some("2"), None), &tagged));
    assert!(!asked(pull("docker.io/x/y", Some("1"), None), &tagged));
    let pinned = with(Some("docker.io/x/y"), Some("2"), Some("sha256:aa"));
    assert!(asked(
        pull("docker.io/x/y", None, Some("sha256:aa")),
        &pinned
    ));
    assert!(!asked(
        pull("docker.io/x/y", Some("2"), Some("sha256:bb")),
        &pinned
    ));
    assert!(!asked(pull("docker.io/x/y", Some("2"), None), &pinned));
}

#[test]
fn only_what_was_declared_to_be_a_program_is_run() {
    let download = |program: bool| {
        Act::Download(Download {
            program,
            ..Download::default()
        })
    };
    let observe = |program: &str| {
        Act::Observe(Observe {
            program: program.into(),
            ..Observe::default()
        })
    };
    let runs = |brings: Act, program: &str| {
        let steps = vec![("it", brings), ("look", observe(program))];
        plan(&plan_of(steps), &pool()).is_ok()
    };
    assert!(runs(download(true), "{it.path}/bin/server"));
    assert!(!runs(download(false), "{it.path}/bin/server"));
    let extract = || {
        Act::ExtractImage(ExtractImage {
            paths: vec!["/app".to_owned()],
            program: Some("/app/server".to_owned()),
            ..ExtractImage::default()
        })
    };
    assert!(runs(extract(), "{it.path}/app/server"));
    assert!(!runs(extract(), "{it.path}/app/other"));
    let install = || {
        Act::InstallPackages(InstallPackages {
            program: "llama-server".to_owned(),
            ..InstallPackages::default()
        })
    };
    assert!(runs(install(), "{it.path}"));
    assert!(!runs(install(), "{it.path}/../sh"));
    assert!(!runs(pull("x/y", None, None), "{it.path}"));
    let process = |program: &str| {
        Launch::Process(ProcessLaunch {
            program: program.into(),
            ..ProcessLaunch::default()
        })
    };
    let plan = plan_of(vec![("it", download(false))]);
    let refused = prepared(&launched(process("{it.path}/x")), &plan, &pool()).unwrap_err();
    assert_eq!(refused.what, "running `{it.path}/x`");
}

#[test]
fn programs_and_packages_are_those_that_the_pool_names() {
    let mut pool = pool();
    pool.provisioning.binary = Some(Binary {
        url: Some("https://a/x.tar.gz".to_owned()),
        mirrors: vec!["https://b/x.tar.gz".to_owned()],
        checksum: Some("sha256:aa".to_owned()),
        ..Binary::default()
    });
    pool.provisioning.package = Some(Package {
        name: Some("llama.cpp".to_owned()),
        version: Some("1.2-3".to_owned()),
        repo: None,
    });
    let download = |url: &str, digest: &str| {
        let fetch = Act::Download(Download {
            urls: vec![url.to_owned()],
            digest: digest.to_owned(),
            program: true,
            ..Download::default()
        });
        plan(&plan_of(vec![("it", fetch)]), &pool).is_ok()
    };
    assert!(download("https://b/x.tar.gz", "sha256:aa"));
    assert!(!download("https://c/x.tar.gz", "sha256:aa"));
    assert!(!download("https://a/x.tar.gz", "sha256:bb"));
    let install = |names: &[&str], version: &str, program: &str| {
        let install = Act::InstallPackages(InstallPackages {
            packages: [(
                "apt".to_owned(),
                names.iter().map(|it| (*it).to_owned()).collect(),
            )]
            .into(),
            version: Some(version.to_owned()),
            program: program.to_owned(),
            ..InstallPackages::default()
        });
        plan(&plan_of(vec![("it", install)]), &pool).is_ok()
    };
    assert!(install(&["llama.cpp", "helper"], "1.2-3", "llama-server"));
    assert!(!install(&["other"], "1.2-3", "llama-server"));
    assert!(!install(&["llama.cpp"], "1.2-4", "llama-server"));
    assert!(!install(&["llama.cpp", "--purge"], "1.2-3", "llama-server"));
    assert!(!install(&["llama.cpp", "./x.deb"], "1.2-3", "llama-server"));
    assert!(!install(&["llama.cpp"], "1.2-3", "/bin/sh"));
}

#[test]
fn a_container_sees_results_files_and_caches_and_nothing_else() {
    let steps = || {
        let model = Act::StageModel(StageModel {
            reference: "builtin:haiku".to_owned(),
            ..StageModel::default()
        });
        plan_of(vec![("image", pull("x/y", None, None)), ("model", model)])
    };
    let check =
        |launch: ContainerLaunch| prepared(&launched(Launch::Container(launch)), &steps(), &pool());
    let launch = || ContainerLaunch {
        image: "image".to_owned(),
        ..ContainerLaunch::default()
    };
    let mounted = |source: &str, target: &str| {
        check(ContainerLaunch {
            mounts: vec![Mount {
                source: source.into(),
                target: target.to_owned(),
            }],
            ..launch()
        })
        .is_ok()
    };
    for source in [
        "{model.path}",
        "{model.path}/a",
        "{files}",
        "{files}/repo",
        "{cache.torch}",
    ] {
        assert!(mounted(source, "/models"), "{source}");
    }
    for source in [
        "/etc",
        "",
        "{model.path}/../..",
        "{other.path}",
        "{model.path}x",
        "{files}/..",
        "{cache.torch}/x",
        "{cache.A/B}",
        "{model.path}{files}",
        "{secret.HF_TOKEN}",
        "{{model.path}}",
    ] {
        assert!(!mounted(source, "/models"), "{source}");
    }
    for target in [
        "/", "/proc/x", "/sys", "/dev/shm", "models", "/a/../b", "/a,b", "/a:b", "/a/",
    ] {
        assert!(!mounted("{files}", target), "{target}");
    }
    let user = |user: &str| {
        check(ContainerLaunch {
            user: Some(user.to_owned()),
            ..launch()
        })
        .is_ok()
    };
    assert!(user("2000") && user("2000:0"));
    assert!(!user("root") && !user("0:0:0") && !user("-1") && !user(""));
    let image = |image: &str| {
        check(ContainerLaunch {
            image: image.to_owned(),
            ..launch()
        })
        .is_ok()
    };
    assert!(image("image") && !image("model") && !image("docker.io/x/y"));
    let secret = check(ContainerLaunch {
        env: [("T".to_owned(), "{secret.OTHER}".into())].into(),
        ..launch()
    });
    assert_eq!(secret.unwrap_err().what, "secret `OTHER`");
    let mut forbidding = pool();
    forbidding.gpu = GpuPolicy::Forbid;
    let mut on_gpu = launched(Launch::Container(launch()));
    on_gpu.device_mask = vec!["GPU-a".to_owned()];
    assert!(prepared(&on_gpu, &steps(), &forbidding).is_err());
}

#[test]
fn only_the_engine_that_the_pool_names_is_attached_to() {
    let mut pool = pool();
    let attach = |url: &str, pool: &Pool| {
        let launch = Launch::External(ExternalLaunch {
            url: url.to_owned(),
        });
        prepared(&launched(launch), &Plan::default(), pool).is_ok()
    };
    assert!(!attach("http://127.0.0.1:8080", &pool));
    pool.provisioning.external = Some(External {
        url: Some("http://127.0.0.1:8080/".to_owned()),
    });
    assert!(attach("http://127.0.0.1:8080", &pool));
    assert!(!attach("http://127.0.0.1:80801", &pool));
    assert!(!attach("http://169.254.169.254", &pool));
}

#[test]
fn an_engine_runs_as_the_mode_says_that_was_asked_for() {
    let said = engine("toy", "HF_TOKEN");
    let asked = |engine: &PreparedEngine, mode| {
        super::prepared(engine, &Plan::default(), &pool(), mode).map_err(|it| it.what)
    };
    assert_eq!(asked(&said, Mode::Source), Ok(()));
    let another = Err("an engine from `source`".to_owned());
    assert_eq!(asked(&said, Mode::Container), another);
    for mode in [Mode::Container, Mode::External] {
        let lying = PreparedEngine {
            provisioning_mode: mode,
            ..engine("toy", "HF_TOKEN")
        };
        let program = format!("a program of this machine in mode `{}`", mode.as_str());
        assert_eq!(asked(&lying, mode), Err(program));
    }
    let contained = PreparedEngine {
        launch: Launch::Container(ContainerLaunch::default()),
        ..engine("toy", "HF_TOKEN")
    };
    assert!(asked(&contained, Mode::Source).is_err());
}

#[test]
fn a_probe_of_the_engine_is_a_path_and_no_second_request() {
    let asked = |path: &str| {
        let mut engine = engine("toy", "HF_TOKEN");
        engine.probes.metrics = Some(path.to_owned());
        prepared(&engine, &Plan::default(), &pool()).is_ok()
    };
    assert!(asked("/metrics") && asked("/v1/models?x=1"));
    for bad in [
        "metrics",
        "/a HTTP/1.1\r\n\r\nPOST /stop",
        "/a b",
        "http://other/",
    ] {
        assert!(!asked(bad), "{bad}");
    }
}

#[test]
fn a_model_comes_from_places_that_the_pool_names() {
    let mut pool = pool();
    let model = pool.provisioning.model.as_mut().unwrap();
    model.mirrors = vec!["https://b/m".to_owned(), "https://c/m".to_owned()];
    let (reference, digest) = (model.reference.clone(), model.checksum.clone());
    let cache_dir = model.cache_dir.clone();
    let stages = |mirrors: &[&str]| {
        let stage = Act::StageModel(StageModel {
            reference: reference.clone(),
            digest: digest.clone(),
            cache_dir: cache_dir.clone(),
            mirrors: mirrors.iter().map(|it| (*it).to_owned()).collect(),
            ..StageModel::default()
        });
        plan(&plan_of(vec![("model", stage)]), &pool).is_ok()
    };
    assert!(stages(&["https://b/m", "https://c/m"]));
    assert!(stages(&[]));
    assert!(!stages(&["https://b/m", "https://d/m"]));
}
