//! What a runtime said of itself, remembered while nothing that it depends on has changed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use engine_provider_api::ContainerRuntime;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::super::{Roots, asking::looks};
use crate::{
    container::environment,
    store::{read_document, write_document},
};

/// Version of the remembered document.
const SCHEMA: u32 = 1;

/// Runtimes by the name of their program, each with the mark it was remembered under.
pub(super) struct Remembered {
    path: Option<PathBuf>,
    inner: Mutex<(Document, bool)>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Document {
    runtimes: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    mark: String,
    runtime: ContainerRuntime,
}

impl Remembered {
    /// What is remembered in a file; `None` remembers nothing. A file that cannot be read is as good
    /// as none.
    pub(super) fn read(path: Option<PathBuf>) -> Self {
        let document: Option<Document> = path
            .as_ref()
            .and_then(|path| read_document(path, SCHEMA).ok()?);
        Self {
            path,
            inner: Mutex::new((document.unwrap_or_default(), false)),
        }
    }

    pub(super) fn recall(&self, name: &str, mark: &str) -> Option<ContainerRuntime> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = inner.0.runtimes.get(name)?;
        (entry.mark == mark).then(|| entry.runtime.clone())
    }

    pub(super) fn remember(&self, name: &str, mark: String, runtime: ContainerRuntime) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner
            .0
            .runtimes
            .insert(name.to_owned(), Entry { mark, runtime });
        inner.1 = true;
    }

    /// Writes down what was learned. Failing to is no failure of the facts.
    pub(super) fn save(&self) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(path), (document, true)) = (&self.path, &*inner) else {
            return;
        };
        let directory = path.parent().map_or(Ok(()), fs::create_dir_all);
        let written = directory.map_err(|error| error.to_string()).and_then(|()| {
            write_document(path, SCHEMA, 0o644, document).map_err(|error| error.to_string())
        });
        if let Err(reason) = written {
            tracing::debug!(path = %path.display(), reason, "runtimes are not remembered");
        }
    }
}

/// A mark of all that a runtime's answer depends on: its program, files (there or not), the boot, who
/// asks, the process id of its daemon, and every variable that it reads.
pub(super) fn mark(roots: &Roots, program: &Path, files: &[PathBuf], daemon: &str) -> String {
    let mut text = format!(
        "{} {} {daemon}\n",
        roots
            .word("/proc/sys/kernel/random/boot_id")
            .unwrap_or_default(),
        rustix::process::geteuid().as_raw()
    );
    for path in std::iter::once(program).chain(files.iter().map(PathBuf::as_path)) {
        let look = looks(&roots.real(path)).unwrap_or_else(|| "-".to_owned());
        text.push_str(&format!("{} {look}\n", path.display()));
    }
    for (name, value) in environment(roots.environment()) {
        text.push_str(&format!("{name}={value}\n"));
    }
    // A digest: values of variables are nobody's business.
    Sha256::digest(text.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
