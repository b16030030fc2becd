//! Where podman keeps layers from their arrival until they are unpacked.
//!
//! It removes them only when it ends by itself: one that is killed leaves gigabytes in /var/tmp, which
//! nobody takes away. So it is given a directory of this run, which goes with the run or is swept by the
//! next one, and lies where the host's other large files do. A place that containers.conf(5) names
//! (`image_copy_tmp_dir`) is an operator's choice: that is used, and what is left there is podman's.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use engine_provider_api::Step;

use super::Wanted;
use crate::{
    act::{ActError, Context},
    container::{self, Runtime},
    process::{self, Question},
    store::Temporary,
};

/// The variable that podman asks first.
const VARIABLE: &str = "TMPDIR";

/// What podman uses where nobody says anything.
const USUAL: &str = "/var/tmp";

/// Longest time that podman may take to say what it would use.
const LIMIT: Duration = Duration::from_secs(60);

/// Where layers arrive.
#[derive(Debug)]
pub(super) enum Staging {
    /// In the runtime's own storage: docker's.
    Storage,
    /// Where podman's settings say.
    Told(PathBuf),
    /// In a directory of this run.
    Own,
}

impl Staging {
    /// Asks podman what its settings say.
    pub(super) async fn of(context: &Context, wanted: &Wanted<'_>) -> Self {
        if Runtime::of(wanted.runtime) == Runtime::Docker {
            return Self::Storage;
        }
        let mut env = container::environment(&context.environment);
        env.remove(VARIABLE);
        let question = Question {
            program: wanted.runtime.path.clone().into(),
            args: ["info", "--format", "{{.Store.ImageCopyTmpDir}}"]
                .map(str::to_owned)
                .to_vec(),
            env,
            identity: None,
            limit: LIMIT,
        };
        let answer = process::ask(&question).await.ok();
        let said = answer.filter(|answer| answer.exited.success());
        Self::understood(said.map(|answer| answer.stdout).unwrap_or_default().trim())
    }

    fn understood(said: &str) -> Self {
        let place = Path::new(said);
        match place.is_absolute() && place != Path::new(USUAL) {
            true => Self::Told(place.to_owned()),
            false => Self::Own,
        }
    }

    /// The directory that needs room for the layers, beside the storage.
    pub(super) fn place(&self, context: &Context) -> Option<PathBuf> {
        match self {
            Self::Storage => None,
            Self::Told(place) => Some(place.clone()),
            Self::Own => Some(context.store.root().to_owned()),
        }
    }

    /// Points the runtime's program there; gives what must be kept as long as it runs.
    pub(super) fn lend(
        &self,
        context: &Context,
        step: &Step,
        env: &mut BTreeMap<String, String>,
    ) -> Result<Option<Temporary>, ActError> {
        match self {
            Self::Storage => return Ok(None),
            // An environment's own counts for more to podman than its settings.
            Self::Told(_) => {
                env.remove(VARIABLE);
                return Ok(None);
            }
            Self::Own => {}
        }
        let directory = context.store.temporary("pull");
        let directory = directory.map_err(|source| ActError::store(step, source))?;
        let path = directory.path().to_string_lossy().into_owned();
        env.insert(VARIABLE.to_owned(), path);
        Ok(Some(directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_somebody_chose_is_kept_to() {
        for said in ["/var/tmp", "/var/tmp/", "", "storage", "<no value>"] {
            assert!(matches!(Staging::understood(said), Staging::Own), "{said}");
        }
        let told = Staging::understood("/scratch/images");
        assert!(matches!(told, Staging::Told(place) if place == Path::new("/scratch/images")));
    }
}
