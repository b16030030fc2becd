//! The exact command of one attempt, for every kind of engine.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use engine_provider_api::PlacedFile;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::{
    EngineError, Fingerprint, container,
    container::{Label, Outside, RenderedContainer},
    external, instance,
    kind::{Contained, Kind},
    launch::{self, Places, Rendered, SeenFrom},
    logs,
    port::{Numbers, Ports},
    records,
    start::Start,
};
use crate::{
    process::{Child, Farewell, Identity, LogFile, Network, Output, Privileges, Removal, Spec},
    store::hex,
};

/// Stands for a port that is not reserved yet, where two commands are compared.
const OPEN_PORT: &str = "{address.port}";

/// What differs between kinds of engines in the command that starts them.
struct Parts {
    program: PathBuf,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    directory: PathBuf,
    identity: Option<Identity>,
    privileges: Privileges,
    farewell: Option<Box<Farewell>>,
}

impl Start<'_> {
    /// The command on these ports, and everything that the keeper needs for it.
    pub(super) fn spec(
        &self,
        ports: Option<&Ports>,
        address: SocketAddr,
        log: &Path,
        started_at: Timestamp,
    ) -> Result<Spec, EngineError> {
        let parts = match &self.kind {
            Kind::Process(_) => self.process_parts(ports)?,
            Kind::Container(contained) => self.container_parts(contained, ports, log)?,
            Kind::External(_) => self.watcher_parts(address),
        };
        let url = self.url_of(address);
        let removal =
            |path: &Path| -> Vec<Removal> { vec![instance::removal(path, &url, started_at)] };
        Ok(Spec {
            program: parts.program,
            args: parts.args,
            env: parts.env,
            directory: parts.directory,
            identity: parts.identity,
            network: Network::Host,
            privileges: parts.privileges,
            output: Output::Together(LogFile {
                path: log.to_owned(),
                limit_bytes: logs::LIMIT_BYTES,
            }),
            child: Child::Engine {
                grace_ms: self.request.pool.stop.grace_ms,
                withdraw: removal(&self.handoff),
                farewell: parts.farewell,
                remove: removal(&records::record_path(self.request.home, &self.key)),
                holds: self.request.holds.to_vec(),
            },
        })
    }

    fn process_parts(&self, ports: Option<&Ports>) -> Result<Parts, EngineError> {
        let rendered = self.process(&self.numbers(ports))?;
        let work = self.place.join("work");
        let mut env = self.request.environment.clone();
        env.extend(rendered.env);
        // Programs that look for a home directory find one that is theirs.
        env.entry("HOME".to_owned())
            .or_insert_with(|| work.to_string_lossy().into_owned());
        Ok(Parts {
            program: rendered.program,
            args: rendered.args,
            env,
            directory: work,
            identity: self.request.identity,
            privileges: Privileges::Fixed,
            farewell: None,
        })
    }

    /// The runtime's program runs as the host's own user, with what it needs of the environment; the
    /// engine's own environment is in its arguments, but for secrets.
    fn container_parts(
        &self,
        contained: &Contained<'_>,
        ports: Option<&Ports>,
        log: &Path,
    ) -> Result<Parts, EngineError> {
        let rendered = self.container(contained, ports)?;
        let (runtime, facts) = (contained.runtime, self.request.facts);
        let own = self.request.runtime_environment;
        let mut env = own.clone();
        env.extend(rendered.secret_env);
        Ok(Parts {
            program: PathBuf::from(&runtime.path),
            args: crate::container::run_arguments(runtime, facts, &rendered.run)?,
            env,
            directory: self.place.clone(),
            identity: None,
            privileges: if runtime.rootless {
                Privileges::Usual
            } else {
                Privileges::Fixed
            },
            farewell: Some(Box::new(container::farewell(
                contained,
                &self.label(),
                own,
                log,
            ))),
        })
    }

    fn watcher_parts(&self, address: SocketAddr) -> Parts {
        let path = &self.request.prepared.probes.readiness.path;
        Parts {
            program: self.request.keeper.program().to_owned(),
            args: external::watcher_arguments(address, path),
            env: BTreeMap::new(),
            directory: self.place.clone(),
            identity: None,
            privileges: Privileges::Fixed,
            farewell: None,
        }
    }

    pub(super) fn label(&self) -> Label<'_> {
        Label {
            home: self.request.home,
            key: &self.key,
            pool: &self.request.pool.id,
            replica: self.request.replica,
        }
    }

    /// A process's launch, filled in. Its secrets are masked from now on.
    pub(super) fn process(&self, numbers: &Numbers) -> Result<Rendered, EngineError> {
        let Kind::Process(launch) = &self.kind else {
            return Ok(Rendered::default());
        };
        let rendered = launch::render(launch, &self.places(numbers))?;
        self.mask(&rendered.secrets);
        Ok(rendered)
    }

    /// A container's launch, filled in; without ports for what does not depend on them.
    pub(super) fn container(
        &self,
        contained: &Contained<'_>,
        ports: Option<&Ports>,
    ) -> Result<RenderedContainer, EngineError> {
        let numbers = self.numbers(ports);
        let more = ports.map(Ports::more_numbers).unwrap_or_default();
        let outside = Outside {
            host: self.host,
            port: ports.map_or(0, |ports| ports.main.port),
            more: &more,
        };
        let rendered = container::render(
            contained,
            self.request.pool.provisioning.container.as_ref(),
            &self.request.prepared.device_mask,
            &self.label(),
            &self.places(&numbers),
            outside,
        )?;
        let secrets: Vec<String> = rendered.secret_env.values().cloned().collect();
        self.mask(&secrets);
        Ok(rendered)
    }

    /// Content of a placed file, as the engine is to read it.
    pub(super) fn text_of(
        &self,
        file: &PlacedFile,
        ports: Option<&Ports>,
    ) -> Result<String, EngineError> {
        let numbers = match &self.kind {
            Kind::Container(contained) => contained.numbers_inside(),
            _ => self.numbers(ports),
        };
        let mut places = self.places(&numbers);
        if matches!(self.kind, Kind::Container(_)) {
            places.host = container::HOST_INSIDE;
            places.seen_from = SeenFrom::Container;
        }
        launch::public(&file.text, &places, &mut BTreeSet::new())
    }

    /// What tells this command from another one: everything but the ports.
    pub(super) fn fingerprint(&self) -> Result<Fingerprint, EngineError> {
        let mut files = BTreeMap::new();
        for file in &self.request.prepared.files {
            files.insert(file.path.clone(), digest(&self.text_of(file, None)?));
        }
        let print = match &self.kind {
            Kind::Process(_) => {
                let rendered = self.process(&self.numbers(None))?;
                Fingerprint {
                    program: rendered.program.to_string_lossy().into_owned(),
                    args: rendered.args,
                    env: digests(&rendered.env),
                    ..Fingerprint::default()
                }
            }
            Kind::Container(contained) => {
                let rendered = self.container(contained, None)?;
                container::fingerprint(contained, &rendered, digests)
            }
            Kind::External(external) => Fingerprint {
                program: external.url.clone(),
                ..Fingerprint::default()
            },
        };
        Ok(Fingerprint { files, ..print })
    }

    fn places<'s>(&'s self, numbers: &'s Numbers) -> Places<'s> {
        Places {
            artifacts: self.request.artifacts,
            files: &self.files,
            home: self.request.home,
            cache_user: match &self.kind {
                Kind::Container(contained) => Some(contained.cache_user()),
                Kind::Process(_) | Kind::External(_) => None,
            },
            host: &self.host_text,
            port: &numbers.port,
            ports: &numbers.more,
            seen_from: SeenFrom::Machine,
            secrets: self.request.secrets,
        }
    }

    /// Ports as they are filled in; left open while none are reserved.
    pub(super) fn numbers(&self, ports: Option<&Ports>) -> Numbers {
        match ports {
            Some(ports) => ports.numbers(),
            None => Numbers {
                port: OPEN_PORT.to_owned(),
                more: self
                    .kind
                    .more_ports()
                    .iter()
                    .map(|port| (port.name.clone(), format!("{{port.{}}}", port.name)))
                    .collect(),
            },
        }
    }

    /// A text that is kept, without secrets.
    pub(super) fn masked(&self, text: &str) -> String {
        self.request.narrator.secrets().mask(text).into_owned()
    }

    fn mask(&self, secrets: &[String]) {
        for secret in secrets {
            self.request.narrator.secrets().register(secret);
        }
    }
}

fn digests(env: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let digested = env.iter();
    digested
        .map(|(name, value)| (name.clone(), digest(value)))
        .collect()
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))[..16].to_owned()
}
