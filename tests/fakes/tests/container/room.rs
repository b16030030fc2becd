//! What the tests share: runtimes that have the fake engine's image, and a room whose engines they run.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    ops::Deref,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use e2e::{ContainerKind, Containers, Image, Registry};
use engine_host::{
    engine::{self, Instance},
    narrate::{Narrator, Sink},
};
use engine_provider_api::ContainerRuntime;
use fakes::{Contained, Elsewhere, Job};
use tempfile::TempDir;

/// A runtime that has the fake engine's image.
pub(crate) struct Runtime {
    pub(crate) containers: Containers,
    pub(crate) image: String,
    facts: ContainerRuntime,
    _place: TempDir,
}

// One for all tests of this process; what tests leave is told apart by labels.
fn runtime(kind: ContainerKind) -> &'static Runtime {
    static PODMAN: OnceLock<Runtime> = OnceLock::new();
    static DOCKER: OnceLock<Runtime> = OnceLock::new();
    let which = match kind {
        ContainerKind::Podman => &PODMAN,
        ContainerKind::Docker => &DOCKER,
    };
    which.get_or_init(|| Runtime::with_image(kind))
}

impl Runtime {
    fn with_image(kind: ContainerKind) -> Self {
        let place = tempfile::tempdir().unwrap();
        let containers = Containers::new(kind, place.path());
        let registry = Registry::open();
        containers.trust(&registry);
        let digest = registry.push("engine", "1", &Image::engine());
        let image = format!("{}/engine@{digest}", registry.address());
        containers.run(&["pull", "--quiet", &image]);
        let path = which(kind.name());
        Self {
            facts: ContainerRuntime {
                name: kind.name().to_owned(),
                path: path.to_string_lossy().into_owned(),
                init: true,
                ..ContainerRuntime::default()
            },
            containers,
            image,
            _place: place,
        }
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let mut environment = self.containers.environment().clone();
        environment.insert("PATH".to_owned(), std::env::var("PATH").unwrap());
        environment.insert("HOME".to_owned(), "/root".to_owned());
        environment
    }

    /// Names of the containers of one home, whatever their state.
    fn left(&self, home: &Path) -> Vec<String> {
        let label = format!("engine-host.home={}", home.display());
        self.containers.labelled(&label)
    }
}

fn which(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let mut found = std::env::split_paths(&path).map(|directory| directory.join(name));
    found.find(|path| path.is_file()).expect(name)
}

/// A room whose engines are in containers.
pub(crate) struct Room {
    room: fakes::Room,
    pub(crate) runtime: &'static Runtime,
}

impl Deref for Room {
    type Target = fakes::Room;

    fn deref(&self) -> &fakes::Room {
        &self.room
    }
}

impl Room {
    pub(crate) fn new(kind: ContainerKind) -> Self {
        Self {
            room: fakes::Room::new(env!("CARGO_BIN_EXE_fake-host"), "/nothing"),
            runtime: runtime(kind),
        }
    }

    /// Lets somebody else hear what is told from now on, beside the room's own ear.
    pub(crate) fn tell(&mut self, sink: impl Sink + 'static) {
        let ear = self.room.heard.clone();
        self.room.narrator = Narrator::new(vec![Box::new(ear), Box::new(sink)]);
    }

    pub(crate) fn job(&self, faults: &[&str]) -> Job {
        Job {
            grace_ms: 5_000,
            elsewhere: Some(Elsewhere::Container(Box::new(self.contained()))),
            ..self.room.job(faults)
        }
    }

    pub(crate) fn contained(&self) -> Contained {
        Contained {
            runtime: self.runtime.facts.clone(),
            environment: self.runtime.environment(),
            image: self.runtime.image.clone(),
            user: Some("2000:0".to_owned()),
            ..Contained::default()
        }
    }

    /// A host of its own process that has started this job, and what it started.
    pub(crate) async fn another_host(&self, job: &Job) -> (Child, Instance) {
        self.another_host_that(&[], job).await
    }

    pub(crate) async fn another_host_that(
        &self,
        arguments: &[&str],
        job: &Job,
    ) -> (Child, Instance) {
        let path = self.write_job("job", job);
        let mut host = Command::new(env!("CARGO_BIN_EXE_fake-host"))
            .args(arguments)
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(host.stdout.take().unwrap());
        let mut said = String::new();
        output.read_line(&mut said).unwrap();
        // It may still have something to say.
        host.stdout = Some(output.into_inner());
        assert!(
            said.starts_with("ready ") || said.starts_with("kept "),
            "{said}"
        );
        let instance = engine::instances(&self.home).unwrap().remove(0);
        (host, instance)
    }

    /// Names of this home's containers, whatever their state.
    pub(crate) fn left(&self) -> Vec<String> {
        self.runtime.left(self.home.root())
    }

    /// No container, no handoff, no record.
    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.left(), Vec::<String>::new());
        assert!(!self.handoff_path().exists(), "a handoff is left");
        assert_eq!(self.records(), Vec::<String>::new());
    }
}
