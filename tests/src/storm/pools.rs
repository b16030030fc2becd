//! The pools that a storm meets.

use serde_json::{Value, json};

use crate::{ContainerKind, Containers, Image, Machine, PoolStage, Registry};

/// How a pool's engine behaves by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Once it is ready it stays so.
    Stays,
    /// It becomes ready, falls, and is started again.
    Falls,
    /// It is never ready, and tried again and again.
    Never,
}

/// A pool.
pub(super) struct Member {
    pub(super) id: String,
    pub(super) standing: Standing,
    written: Value,
}

/// Kinds of pools: a name, what it does by itself, its engine's flags.
const KINDS: [(&str, Standing, &[&str]); 10] = [
    ("plain", Standing::Stays, &[]),
    (
        "crash",
        Standing::Falls,
        &["--exit-after-ms", "1500", "--exit-code", "3"],
    ),
    ("boxed", Standing::Stays, &[]),
    (
        "hang",
        Standing::Falls,
        &["--hang-after-ms", "1500", "--ignore-term"],
    ),
    ("fork", Standing::Stays, &["--fork", "forked.pid"]),
    (
        "refuse",
        Standing::Stays,
        &["--refuse-ms", "400", "--load-ms", "700"],
    ),
    ("deaf", Standing::Stays, &["--ignore-term"]),
    (
        "ends",
        Standing::Falls,
        &["--exit-after-ms", "1200", "--exit-code", "0"],
    ),
    (
        "flood",
        Standing::Stays,
        &["--flood", "20000", "--pour-hz", "2000"],
    ),
    ("never", Standing::Never, &["--never-ready"]),
];

/// A podman of the machine's own and a registry that it trusts.
pub(super) fn runtime(machine: &mut Machine) -> (Containers, Registry) {
    let containers = Containers::new(ContainerKind::Podman, machine.root());
    let registry = Registry::open();
    containers.trust(&registry);
    for (name, value) in containers.environment() {
        machine.lend(name, value);
    }
    (containers, registry)
}

/// As many pools as were asked for, of every kind in turn.
pub(super) fn members(stage: &PoolStage, registry: &Registry, count: usize) -> Vec<Member> {
    let digest = registry.push("tests/engine", "v1", &Image::engine());
    let image = json!({
        "image": format!("{}/tests/engine", registry.address()),
        "digest": digest,
        "runtime": "podman",
    });
    let kinds = KINDS.iter().cycle().take(count).enumerate();
    let member = |(index, (kind, standing, flags)): (usize, &(&str, Standing, &[&str]))| {
        let id = format!("{kind}{}", index / KINDS.len());
        let mut written = stage.pool(&id, flags);
        written["stop"] = json!({"grace": "500ms"});
        written["readiness"] = json!({"stall_timeout": "2s"});
        if *kind == "boxed" {
            written["readiness"] = json!({"stall_timeout": "30s"});
            written["provisioning"] = json!({"container": image, "flags": flags});
        }
        Member {
            id,
            standing: *standing,
            written,
        }
    };
    kinds.map(member).collect()
}

impl Member {
    /// What the pool file has of it, in a version of its own for each number.
    pub(super) fn pool(&self, variant: usize) -> Value {
        let mut pool = self.written.clone();
        if self.standing == Standing::Stays {
            let flags = pool["provisioning"]["flags"].as_array_mut();
            let word = json!(format!("version {variant}"));
            flags
                .expect("flags are a list")
                .extend([json!("--print-line"), word]);
        }
        pool
    }
}
