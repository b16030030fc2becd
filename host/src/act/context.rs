//! What every step is given.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
};

use engine_provider_api::{Facts, Pool, Step, Tool};
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{Logs, Registries};
use crate::{
    config::{environment::Environment, paths::Home},
    model::{Models, Verify, source::Versions},
    narrate::Narrator,
    net::{Net, Url},
    policy::Policy,
    process::{Identity, Keeper},
    store::Store,
};

/// What every step is given. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// Directories.
    pub home: Home,
    /// Results.
    pub store: Store,
    /// Starts commands.
    pub keeper: Keeper,
    /// What may be done.
    pub policy: Arc<Policy>,
    /// The machine.
    pub facts: Arc<Facts>,
    /// Tools by name; grows when some are installed.
    pub tools: Toolbox,
    /// Told what happens.
    pub narrator: Narrator,
    /// Ends everything.
    pub cancel: CancellationToken,
    /// Fetches.
    pub net: Net,
    /// The environment of the host, of which steps see what policy lets through.
    pub environment: Arc<Environment>,
    /// The Python package index, with the credentials it needs; never told.
    pub package_index: Option<Url>,
    /// Where commands log to.
    pub logs: Logs,
    /// What registries said of images during this run.
    pub registries: Registries,
    /// What sources of models said during this run, and the models that it uses.
    pub models: Models,
    /// Which models are hashed again.
    pub verify: Verify,
    /// The pool.
    pub pool: Arc<Pool>,
    /// Its name.
    pub pool_id: String,
    /// The engine, so that results are compared with earlier ones of the same engine.
    pub engine: String,
    /// Whether sources of models are asked though a model is here.
    pub refresh_models: bool,
    /// Whether registries are asked what a tag is though an image of it is here.
    pub refresh_images: bool,
    /// Trees that commits must have, where they are known beforehand.
    pub trees: Arc<BTreeMap<String, String>>,
    /// Files of the model with their versions, where a lock file has some.
    pub model_versions: Arc<Versions>,
    /// Directory that relative model paths start from: the pool file's, else the working directory.
    pub base: PathBuf,
}

impl Context {
    /// Who builds; `None`: this process's user.
    #[must_use]
    pub fn run_as(&self) -> Option<Identity> {
        self.policy.run_as.value
    }

    /// What a step's results are called across rebuilds.
    pub(super) fn name_of(&self, step: &Step) -> String {
        format!("{}/{}", self.engine, step.id)
    }

    /// Variables of the host's environment that steps see.
    pub(super) fn passed_environment(&self) -> BTreeMap<String, String> {
        let names = &self.policy.step_environment.value;
        self.environment.pick(names.iter().map(String::as_str))
    }
}

/// Looks for a tool by its probe name, as the machine is now.
pub type FindTool = Arc<dyn Fn(String) -> BoxFuture<'static, Option<Tool>> + Send + Sync>;

/// Tools by probe name.
#[derive(Clone)]
pub struct Toolbox {
    known: Arc<Mutex<BTreeMap<String, Tool>>>,
    find: FindTool,
}

impl Toolbox {
    /// A toolbox with what the facts found, and a way to look again after an installation.
    #[must_use]
    pub fn new(known: BTreeMap<String, Tool>, find: FindTool) -> Self {
        Self {
            known: Arc::new(Mutex::new(known)),
            find,
        }
    }

    /// A tool, if it is known.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Tool> {
        self.lock().get(name).cloned()
    }

    /// All tools, for facts that are taken again after installations.
    #[must_use]
    pub fn all(&self) -> BTreeMap<String, Tool> {
        self.lock().clone()
    }

    /// Looks for a tool again and remembers what was found.
    pub async fn look_again(&self, name: &str) -> Option<Tool> {
        let found = (self.find)(name.to_owned()).await?;
        self.lock().insert(name.to_owned(), found.clone());
        Some(found)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Tool>> {
        self.known.lock().expect("no holder panics")
    }
}

impl fmt::Debug for Toolbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Toolbox")
            .field("known", &self.all())
            .finish_non_exhaustive()
    }
}
