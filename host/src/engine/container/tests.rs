use engine_provider_api::{Artifact, ContainerLaunch, ContainerRuntime, ExtraPort, Image};

use super::*;

struct Made {
    launch: ContainerLaunch,
    runtime: ContainerRuntime,
}

impl Made {
    fn new(runtime: &str) -> Self {
        let mount = |source: &str, target: &str| Mount {
            source: source.into(),
            target: target.to_owned(),
        };
        Self {
            launch: ContainerLaunch {
                image: "pull".to_owned(),
                args: vec!["--port={address.port}".into(), "{address.host}".into()],
                env: BTreeMap::from([
                    ("GRPC".to_owned(), "{port.grpc}".into()),
                    ("KEY".to_owned(), "{secret.TOKEN}".into()),
                    ("WRITTEN_TOKEN".to_owned(), "correct horse".into()),
                ]),
                mounts: vec![
                    mount("{model.path}", "/models"),
                    mount("{cache.compiled}", "/cache"),
                    mount("{files}/repository", "/repository"),
                ],
                port: 8000,
                more_ports: vec![ExtraPort {
                    name: "grpc".to_owned(),
                    usual_port: 8001,
                }],
                ..ContainerLaunch::default()
            },
            runtime: ContainerRuntime {
                name: runtime.to_owned(),
                path: format!("/usr/bin/{runtime}"),
                ..ContainerRuntime::default()
            },
        }
    }

    fn render(&self) -> Result<RenderedContainer, EngineError> {
        let model = Artifact {
            path: Some("/store/model".to_owned()),
            ..Artifact::default()
        };
        let image = Image {
            reference: "example.org/engine@sha256:00".to_owned(),
            ..Image::default()
        };
        let home = Home::at("/home");
        render(
            &self.contained(&image),
            None,
            &[],
            &label(&home),
            &Places {
                artifacts: &BTreeMap::from([("model".to_owned(), model)]),
                files: Path::new("/state/files"),
                home: &home,
                cache_user: Some("2000"),
                host: "127.0.0.1",
                port: "9000",
                ports: &BTreeMap::from([("grpc".to_owned(), "9001".to_owned())]),
                seen_from: SeenFrom::Machine,
                secrets: &|name| (name == "TOKEN").then(|| "hunter2".to_owned()),
            },
            Outside {
                host: IpAddr::from([127, 0, 0, 1]),
                port: 9000,
                more: &BTreeMap::from([("grpc".to_owned(), 9001)]),
            },
        )
    }

    fn contained<'a>(&'a self, image: &'a Image) -> Contained<'a> {
        Contained {
            launch: &self.launch,
            runtime: &self.runtime,
            image,
        }
    }
}

fn label(home: &Home) -> Label<'_> {
    Label {
        home,
        key: "chat-r0-01234567",
        pool: "chat",
        replica: "r0",
    }
}

#[test]
fn inside_are_the_engine_s_ports_and_outside_the_reserved_ones() {
    let rendered = Made::new("podman").render().unwrap();
    let run = &rendered.run;
    assert_eq!(run.args, ["--port=8000", "0.0.0.0"]);
    assert_eq!(run.env, BTreeMap::from([("GRPC".into(), "8001".into())]));
    let published: Vec<String> = run
        .publish
        .iter()
        .map(|port| format!("{}:{}", port.address, port.inside))
        .collect();
    assert_eq!(published, ["127.0.0.1:9000:8000", "127.0.0.1:9001:8001"]);
    let mounts: Vec<_> = run
        .mounts
        .iter()
        .map(|mount| {
            (
                mount.source.to_str().unwrap(),
                &*mount.target,
                mount.writable,
            )
        })
        .collect();
    assert_eq!(
        mounts,
        [
            ("/store/model", "/models", false),
            ("/home/cache/compiled.2000", "/cache", true),
            ("/state/files/repository", "/repository", false),
        ]
    );
    assert_eq!(rendered.secret_env["KEY"], "hunter2");
    assert!(run.secret_env.contains("KEY") && !run.env.contains_key("KEY"));
    // One that an operator wrote into the pool file is for no command line either.
    assert_eq!(rendered.secret_env["WRITTEN_TOKEN"], "correct horse");
    assert!(run.secret_env.contains("WRITTEN_TOKEN"));
    assert!(rendered.caches.contains("compiled.2000"));
}

#[test]
fn what_leads_nowhere_inside_is_refused() {
    for text in ["{model.path}/x", "--x={files}", "{cache.compiled}"] {
        let mut made = Made::new("podman");
        made.launch.args = vec![text.into()];
        let error = made.render().unwrap_err();
        assert!(
            matches!(error, EngineError::PathInContainer { .. }),
            "{text}"
        );
    }
}

#[test]
fn only_what_was_obtained_can_be_mounted() {
    for (source, target) in [
        ("/etc", "/etc"),
        ("{model.path}/../..", "/models"),
        ("{files}/../../instances", "/x"),
        ("{cache.a}/../b", "/cache"),
        ("{cache.../x}", "/cache"),
        ("{model.path}", "models"),
        ("{model.path}", "/"),
        ("{model.path}", "/a/../b"),
        ("{model.path}", "/a,readonly=false"),
    ] {
        let mut made = Made::new("podman");
        made.launch.mounts = vec![Mount {
            source: source.into(),
            target: target.to_owned(),
        }];
        let error = made.render().unwrap_err();
        assert!(
            matches!(error, EngineError::BadMount { .. }),
            "{source} {target}"
        );
    }
}

#[test]
fn behind_it_it_is_asked_about_and_removed_at_once_and_no_secret_is_kept() {
    let home = Home::at("/home");
    let image = Image::default();
    for (runtime, remove) in [
        (
            "podman",
            "rm --force --time 0 --volumes engine-host-chat-r0-01234567",
        ),
        (
            "docker",
            "rm --force --volumes engine-host-chat-r0-01234567",
        ),
    ] {
        let made = Made::new(runtime);
        let env = BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]);
        let log = Path::new("/logs/engine-1.log");
        let farewell = farewell(&made.contained(&image), &label(&home), &env, log);
        assert_eq!(farewell.program, Path::new("/usr/bin").join(runtime));
        assert_eq!(farewell.remove.join(" "), remove);
        assert!(farewell.ask.iter().all(|word| !word.contains("Env")));
        assert_eq!(farewell.answer, Path::new("/logs/engine-1.container.json"));
    }
}

#[test]
fn another_home_s_container_of_the_same_name_is_not_ours() {
    let (one, other) = (Home::at("/one"), Home::at("/other"));
    assert_eq!(label(&one).name(), label(&other).name());
    assert_ne!(label(&one).mark(), label(&other).mark());
}
