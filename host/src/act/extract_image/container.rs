//! The container that files are copied out of: created, never started, removed.

use std::{collections::BTreeMap, os::unix::ffi::OsStrExt as _, path::Path, time::Duration};

use engine_provider_api::{ContainerRuntime, Step};
use sha2::{Digest as _, Sha256};

use crate::{
    act::{
        ActError, CommandFailure, Context,
        command::{self, Job},
        fill,
    },
    config::paths::Home,
    container::{self, Runtime},
    process::{self, Child, LogFile, Network, Output, Privileges, Question, Spec},
    store::{self, Key, hex},
};

/// How the names of such containers begin.
const NAME: &str = "engine-host-extract-";

/// Label of such containers; its value is the home that created them.
const LABEL: &str = "engine-host.extract";

/// Longest time for creating or removing a container that is never started.
const LIMIT: Duration = Duration::from_secs(120);

/// Bytes that may be copied out: what an archive may unpack to.
const STREAM_LIMIT_BYTES: u64 = 64 << 30;

/// Bytes kept of what the runtime says.
const LOG_LIMIT_BYTES: u64 = 1 << 20;

/// A container of this run.
pub(super) struct Created<'a> {
    context: &'a Context,
    runtime: &'a ContainerRuntime,
    name: String,
}

impl<'a> Created<'a> {
    /// Removes what killed runs left, and creates a container. The key's lock is held.
    pub(super) async fn new(
        context: &'a Context,
        step: &Step,
        runtime: &'a ContainerRuntime,
        image: &str,
        key: &Key,
    ) -> Result<Self, ActError> {
        let created = Self {
            context,
            runtime,
            name: name(&context.home, key),
        };
        created.sweep().await;
        created.remove().await;
        let job = Job {
            step,
            id: "create",
            program: runtime.path.clone().into(),
            args: arguments(&created.name, &home(context), image),
            env: created.environment(),
            directory: "/".into(),
            identity: None,
            network: Network::Host,
            privileges: Privileges::Usual,
            meter: None,
            limit: Some(LIMIT),
        };
        if let Err(error) = command::run(context, job).await {
            // Killed while it created one, perhaps.
            created.remove().await;
            return Err(error);
        }
        Ok(created)
    }

    /// Writes a file or directory of the image as a tar stream.
    pub(super) async fn copy(
        &self,
        step: &Step,
        path: &Path,
        stream: &Path,
    ) -> Result<(), ActError> {
        let log = fill::log_path(self.context, step, "copy")?;
        let spec = Spec {
            program: self.runtime.path.clone().into(),
            args: self.copy_arguments(path),
            env: self.environment(),
            directory: "/".into(),
            identity: None,
            network: Network::Host,
            privileges: Privileges::Usual,
            output: Output::Apart {
                stdout: LogFile {
                    path: stream.to_owned(),
                    limit_bytes: STREAM_LIMIT_BYTES,
                },
                stderr: LogFile {
                    path: log.clone(),
                    limit_bytes: LOG_LIMIT_BYTES,
                },
            },
            child: Child::Step,
        };
        let shown = spec.display();
        let exited = command::to_end(self.context, step, spec, None, None).await?;
        if exited.success() {
            return Ok(());
        }
        Err(ActError::Command {
            step: step.id.clone(),
            failure: Box::new(CommandFailure {
                id: "copy".to_owned(),
                command: shown,
                directory: "/".into(),
                exited,
                tail: command::tail(self.context, &log),
                log,
                wanted_network: false,
                disk_full: false,
            }),
        })
    }

    /// Docker copies a link as a link unless it is told to follow it; podman always follows.
    fn copy_arguments(&self, path: &Path) -> Vec<String> {
        let mut args = vec!["cp".to_owned()];
        if Runtime::of(self.runtime) == Runtime::Docker {
            args.push("--follow-link".to_owned());
        }
        args.push(format!("{}:/{}", self.name, path.display()));
        args.push("-".to_owned());
        args
    }

    /// Removes the container, if there is one. What is left is removed by a later run.
    pub(super) async fn remove(&self) {
        self.ask(&["rm", "--force", "--volumes", &self.name]).await;
    }

    /// Removes containers of this home that nobody works with any more.
    async fn sweep(&self) {
        let filter = format!("label={LABEL}={}", home(self.context));
        let list = ["ps", "--all", "--filter", &filter, "--format", "{{.Names}}"];
        let Some(names) = self.ask(&list).await else {
            return;
        };
        for name in names.lines().filter(|name| **name != self.name) {
            let rest = name.strip_prefix(NAME);
            let Some(key) = rest.and_then(|rest| rest.rsplit('-').next()) else {
                continue;
            };
            let lock = self.context.store.lock_path(&format!("archive-{key}"));
            if let Ok(Some(_held)) = store::try_lock(&lock, "removing what a killed run left") {
                self.ask(&["rm", "--force", "--volumes", name]).await;
            }
        }
    }

    async fn ask(&self, args: &[&str]) -> Option<String> {
        ask(self.context, self.runtime, args).await
    }

    fn environment(&self) -> BTreeMap<String, String> {
        container::environment(&self.context.environment)
    }
}

/// Removes an image, unless a container is made of it. What is left does no harm.
pub(super) async fn remove_image(context: &Context, runtime: &ContainerRuntime, image: &str) {
    ask(context, runtime, &["image", "rm", image]).await;
}

/// What the runtime answers; `None` where it fails. Not ended by cancellation: it cleans up.
async fn ask(context: &Context, runtime: &ContainerRuntime, args: &[&str]) -> Option<String> {
    let question = Question {
        program: runtime.path.clone().into(),
        args: args.iter().map(|&argument| argument.to_owned()).collect(),
        env: container::environment(&context.environment),
        identity: None,
        limit: LIMIT,
    };
    let answer = process::ask(&question).await.ok()?;
    answer.exited.success().then_some(answer.stdout)
}

/// The name of the container for a key. Another home's is another one: a runtime may be shared.
fn name(home: &Home, key: &Key) -> String {
    let digest = Sha256::digest(home.root().as_os_str().as_bytes());
    format!("{NAME}{}-{}", &hex(&digest)[..16], key.directory())
}

fn home(context: &Context) -> String {
    context.home.root().to_string_lossy().into_owned()
}

/// Arguments that create a container. Its command is none that exists: it is never started, and an
/// image without a command of its own wants one.
fn arguments(name: &str, home: &str, image: &str) -> Vec<String> {
    [
        "create",
        "--pull=never",
        "--network=none",
        "--name",
        name,
        "--label",
        &format!("{LABEL}={home}"),
        image,
        "/never-started",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Ingredients, Kind};

    #[test]
    fn homes_that_take_out_the_same_have_containers_of_their_own() {
        let key = Ingredients::new().key(Kind::Archive);
        let name = |home| name(&Home::at(home), &key);
        assert_eq!(name("/a"), name("/a"));
        assert_ne!(name("/a"), name("/b"));
    }

    #[test]
    fn a_container_is_created_by_digest_with_our_label_and_never_pulled() {
        let args = arguments("n", "/home", "a/b@sha256:0");
        assert_eq!(
            args.join(" "),
            "create --pull=never --network=none --name n --label engine-host.extract=/home a/b@sha256:0 \
             /never-started"
        );
    }
}
