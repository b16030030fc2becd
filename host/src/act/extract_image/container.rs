//! The container that files are copied out of: created, never started, removed.

use std::{os::unix::ffi::OsStrExt as _, path::Path, time::Duration};

use engine_provider_api::{ContainerRuntime, Step};
use sha2::{Digest as _, Sha256};

use super::left::Left;
use crate::{
    act::{
        ActError, CommandFailure, Context,
        command::{self, Job},
        fill,
    },
    config::paths::Home,
    container::{self, Runtime},
    process::{self, Child, LogFile, Network, Output, Privileges, Question, Spec},
    store::{Key, hex},
};

/// How the names of such containers begin.
const NAME: &str = "engine-host-extract-";

/// Label of such containers; its value is the home that created them.
const LABEL: &str = "engine-host.extract";

/// Longest time for creating a container that is never started, or removing an image.
const LIMIT: Duration = Duration::from_secs(120);

/// Bytes that may be copied out: what an archive may unpack to.
const STREAM_LIMIT_BYTES: u64 = 64 << 30;

/// Bytes kept of what the runtime says.
const LOG_LIMIT_BYTES: u64 = 1 << 20;

/// A container of this run.
pub(super) struct Created<'a> {
    context: &'a Context,
    runtime: &'a ContainerRuntime,
    left: Left,
}

impl<'a> Created<'a> {
    /// Creates a container. The key's lock is held.
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
            left: Left {
                name: name(&context.home, key),
                lock: format!("archive-{}", key.directory()),
                program: runtime.path.clone().into(),
                env: container::environment(&context.environment),
            },
        };
        if created.left.is_written_down(&context.home) {
            // It could not be removed before.
            created.remove().await;
        }
        let written = created.left.write_down(&context.home);
        written.map_err(|source| ActError::store(step, source))?;
        let job = Job {
            step,
            id: "create",
            program: runtime.path.clone().into(),
            args: arguments(&created.left.name, &home(context), image),
            env: created.left.env.clone(),
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
            env: self.left.env.clone(),
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
        args.push(format!("{}:/{}", self.left.name, path.display()));
        args.push("-".to_owned());
        args
    }

    /// Removes the container, if there is one. What is left is removed by a later run.
    pub(super) async fn remove(&self) {
        self.left.remove(&self.context.home).await;
    }
}

/// Removes an image, unless a container is made of it. What is left does no harm.
pub(super) async fn remove_image(context: &Context, runtime: &ContainerRuntime, image: &str) {
    let question = Question {
        program: runtime.path.clone().into(),
        args: ["image", "rm", image].map(str::to_owned).into(),
        env: container::environment(&context.environment),
        identity: None,
        limit: LIMIT,
    };
    // Not ended by cancellation: it cleans up.
    let _ = process::ask(&question).await;
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
