//! A machine with one runtime, one registry, one image and a pool for it.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use e2e::{ContainerKind, Containers, Image, Machine, Registry, free_port, wait_for};
use serde_json::{Value, json};

/// Longest time until nothing is left of what was stopped or killed.
pub(crate) const ORPHAN_LIMIT: Duration = Duration::from_secs(120);

/// Directory for temporary files below a machine's root.
const TEMPORARY: &str = "temporary";

/// Everything one test needs. What is dropped first stands first: a machine's directory can only be
/// removed when no container uses it.
pub(crate) struct Stage {
    pub(crate) containers: Containers,
    pub(crate) registry: Registry,
    pub(crate) machine: Machine,
    pub(crate) image: Image,
    /// Digest of the image.
    pub(crate) digest: String,
    /// A pool named `default` that runs the image by tag; it is not written yet.
    pub(crate) pool: Value,
}

impl Stage {
    /// An open registry with an image that no other test has.
    pub(crate) fn new(kind: ContainerKind) -> Self {
        Self::with(kind, Registry::open(), Self::image())
    }

    /// The same with a registry and an image of one's own.
    pub(crate) fn with(kind: ContainerKind, registry: Registry, image: Image) -> Self {
        let machine = Machine::new();
        let containers = Containers::new(kind, machine.root());
        Self::of(machine, containers, registry, image)
    }

    pub(crate) fn of(
        mut machine: Machine,
        containers: Containers,
        registry: Registry,
        image: Image,
    ) -> Self {
        containers.trust(&registry);
        containers.lend(&mut machine);
        let temporary = machine.root().join(TEMPORARY);
        fs::create_dir(&temporary).unwrap();
        machine.lend("TMPDIR", temporary.to_str().unwrap());
        // Docker's storage is shared, and an earlier registry may have had this one's port.
        let repository = format!("{}/tests/engine", registry.address());
        for digest in containers.digests_of(&repository) {
            containers.run(&["rmi", "--force", &format!("{repository}@{digest}")]);
        }
        let digest = registry.push("tests/engine", "v1", &image);
        let pool = json!({
            "id": "default",
            "engine": "fixture",
            "gpu": "forbid",
            "provisioning": {
                "container": {
                    "image": repository,
                    "tag": "v1",
                    "runtime": containers.kind().name(),
                },
                "ports": [free_port()],
                "flags": [],
            },
        });
        Self {
            containers,
            registry,
            machine,
            image,
            digest,
            pool,
        }
    }

    /// The fake engine's image with a label that no other has: docker's storage is shared by all
    /// tests of a process.
    pub(crate) fn image() -> Image {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Image::engine().label("tests.number", &format!("{}-{number}", std::process::id()))
    }

    /// Name of the image without tag or digest.
    pub(crate) fn repository(&self) -> String {
        format!("{}/tests/engine", self.registry.address())
    }

    /// Name of the image by its digest.
    pub(crate) fn reference(&self) -> String {
        format!("{}@{}", self.repository(), self.digest)
    }

    /// Adds flags for the engine.
    pub(crate) fn flags(&mut self, flags: &[&str]) {
        let all = self.pool["provisioning"]["flags"].as_array_mut().unwrap();
        all.extend(flags.iter().map(|flag| json!(flag)));
    }

    /// Changes a setting of the container.
    pub(crate) fn container(&mut self, name: &str, value: impl Into<Value>) {
        self.pool["provisioning"]["container"][name] = value.into();
    }

    /// Names the image by its digest alone.
    pub(crate) fn pin(&mut self) {
        let digest = self.digest.clone();
        let container = self.pool["provisioning"]["container"].as_object_mut();
        container.unwrap().remove("tag");
        self.container("digest", digest);
    }

    pub(crate) fn write(&self) {
        self.machine.write_pool(&self.pool);
    }

    /// Containers of this machine, running or not, or never made whole.
    pub(crate) fn left(&self) -> Vec<String> {
        let home = self.machine.home();
        let mut left = self
            .containers
            .labelled(&format!("engine-host.home={}", home.display()));
        left.extend(self.containers.half_made());
        left
    }

    /// Name of the one container there is.
    #[track_caller]
    pub(crate) fn name(&self) -> String {
        let left = self.left();
        assert_eq!(left.len(), 1, "one container expected: {left:?}");
        left[0].clone()
    }

    /// Asserts that nothing is left: no container, none of its network, no process, no
    /// handoff, no lock held, nothing of a pull where only its program would take it away.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        wait_for("every container to be removed", ORPHAN_LIMIT, || {
            let left = self.left();
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
        wait_for("every network to be taken down", ORPHAN_LIMIT, || {
            let left = self.containers.network_left();
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
        self.machine.assert_clean();
        self.machine.store().assert_sound();
        let temporary = self.machine.root().join(TEMPORARY);
        assert_eq!(self.machine.files_below(&temporary), Vec::<String>::new());
    }

    /// Asserts that no image of the repository is there.
    #[track_caller]
    pub(crate) fn assert_no_image(&self) {
        assert_eq!(
            self.containers.digests_of(&self.repository()),
            Vec::<String>::new(),
            "an image was kept"
        );
    }
}

/// Looks at every command line of this machine, again and again, while `work` runs; those that had the
/// text in them.
pub(crate) fn command_lines_with(text: &str, work: impl FnOnce()) -> BTreeSet<String> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !done.load(Ordering::Relaxed) {
                for entry in fs::read_dir("/proc").unwrap().flatten() {
                    let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                    let line = String::from_utf8_lossy(&line).replace('\0', " ");
                    if line.contains(text) {
                        seen.insert(line);
                    }
                }
            }
            seen
        });
        work();
        done.store(true, Ordering::Relaxed);
        watcher.join().unwrap()
    })
}

/// Files below a directory that have a text in them.
pub(crate) fn files_with(directory: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() {
            found.extend(files_with(&path, text));
        } else if kind.is_file() {
            let content = fs::read(&path).unwrap_or_default();
            let needle = text.as_bytes();
            if content.windows(needle.len()).any(|part| part == needle) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}
