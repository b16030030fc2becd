//! Rules that no schema can say: fields that contradict each other, and what single values mean.

use std::collections::BTreeMap;

use engine_provider_api::{Device, GpuPolicy, Mode, ModelSource, Pool};

use super::{
    document::Place,
    places::Places,
    pools::PoolEntry,
    problem::Problem,
    schema::join,
    syntax::{self, Base, Complaint},
};

/// Longest silence of a loading engine, and longest grace, that make sense: a day and an hour.
const LONGEST_STALL_MS: u64 = 24 * 3_600_000;
const LONGEST_GRACE_MS: u64 = 3_600_000;

/// Checks one pool; fills in what follows from what was written.
pub(super) struct Checking<'a> {
    pub places: &'a Places,
    pub base: &'a Base,
    pub problems: &'a mut Vec<Problem>,
    pub notices: &'a mut Vec<Problem>,
}

impl Checking<'_> {
    pub(super) fn pool(&mut self, pool: &mut Pool) {
        self.model(pool);
        self.devices(pool);
        self.times(pool);
        self.source(pool);
        self.container(pool);
        self.package(pool);
        self.binary(pool);
        self.external(pool);
        self.environment(pool);
        self.flags(pool);
        self.ports(pool);
        self.secrets_elsewhere(pool);
        self.mode(pool);
    }

    fn problem(&mut self, field: &str, message: impl Into<String>, help: &str) {
        let mut problem = self.places.problem(field, message);
        problem.help = Some(help.into()).filter(|_| !help.is_empty());
        self.problems.push(problem);
    }

    fn both(&mut self, field: &str, other: &str, message: impl Into<String>, help: &str) {
        let place = self.places.exact(other);
        let problem = self.places.problem(field, message).help(help);
        let problem = problem.also(place, format!("`{other}` is here"));
        self.problems.push(problem);
    }

    fn notice(&mut self, field: &str, message: impl Into<String>) {
        self.notices.push(self.places.problem(field, message));
    }

    /// Notes what is wrong with a value, if anything is.
    fn value<T>(&mut self, field: &str, checked: Result<T, Complaint>) -> Option<T> {
        match checked {
            Ok(value) => Some(value),
            Err((message, help)) => {
                self.problem(field, message, help.as_deref().unwrap_or(""));
                None
            }
        }
    }

    fn given(&self, field: &str) -> bool {
        self.places.exact(field).is_some()
    }

    fn path(&mut self, field: &str, value: &mut Option<String>) {
        if let Some(written) = value
            && let Some(absolute) = self.value(field, self.base.absolute(written))
        {
            *written = absolute;
        }
    }

    fn model(&mut self, pool: &mut Pool) {
        const REFERENCE: &str = "provisioning.model.ref";
        let mut field = REFERENCE;
        if pool.provisioning.model.is_none()
            && let Some(name) = pool
                .model
                .as_ref()
                .filter(|name| syntax::is_reference(name))
        {
            field = "model";
            pool.provisioning.model = Some(ModelSource {
                reference: name.clone(),
                ..ModelSource::default()
            });
            self.notice(
                "model",
                "taken for the model's reference; `provisioning.model.ref` is the place for it",
            );
        }
        let quant = pool.quant.clone();
        let Some(model) = &mut pool.provisioning.model else {
            return;
        };
        if let Some(reference) =
            self.value(field, syntax::model_reference(&model.reference, self.base))
        {
            model.reference = reference;
        }
        if let Some(checksum) = &model.checksum {
            self.value(
                "provisioning.model.checksum",
                syntax::digest(checksum, &["sha256"]),
            );
        }
        let plain_http = model.reference.starts_with("http:");
        if plain_http && model.checksum.is_none() && !syntax::is_loopback(&model.reference) {
            self.problem(
                field,
                "a model over plain `http` needs a `checksum`",
                "write `https://…`, or add `checksum: sha256:…` beside it",
            );
        }
        let several = ["hf:", "oci:"]
            .iter()
            .any(|kind| model.reference.starts_with(kind));
        if quant.is_some() && !several {
            self.both(
                "quant",
                field,
                "`quant` picks one of several files, and this reference names exactly one",
                "leave `quant` out, or refer to a repository with `hf:`",
            );
        }
        self.path("provisioning.model.cache_dir", &mut model.cache_dir);
    }

    fn devices(&mut self, pool: &Pool) {
        for (index, device) in pool.devices.iter().enumerate() {
            let field = format!("devices[{index}]");
            if let Device::Uuid(id) = device
                && !["GPU-", "MIG-"].iter().any(|start| id.starts_with(start))
            {
                self.problem(
                    &field,
                    format!("`{id}` is no device"),
                    "write a driver index, or an id such as `GPU-…` or `MIG-…`",
                );
            }
            if let Some(first) = pool.devices[..index].iter().position(|d| d == device) {
                self.both(
                    &field,
                    &format!("devices[{first}]"),
                    "this device is there twice",
                    "name it once",
                );
            }
        }
        let split = pool.tensor_split.len();
        if split > 0 && !pool.devices.is_empty() && split != pool.devices.len() {
            let message = format!(
                "`tensor_split` has {split} shares for {} `devices`",
                pool.devices.len()
            );
            self.both(
                "tensor_split",
                "devices",
                message,
                "give one share per device",
            );
        }
        let positive = |share: &f64| share.is_finite() && *share >= 0.0;
        if split > 0
            && (!pool.tensor_split.iter().all(positive)
                || pool.tensor_split.iter().sum::<f64>() <= 0.0)
        {
            self.problem(
                "tensor_split",
                "`tensor_split` needs shares of 0 and more, not all 0",
                "",
            );
        }
        if pool.gpu == GpuPolicy::Forbid {
            for field in ["devices", "tensor_split"]
                .into_iter()
                .filter(|field| self.places.exact(field).is_some())
                .collect::<Vec<_>>()
            {
                let message = format!("`{field}` speaks of GPUs, and `gpu: forbid` uses none");
                self.both(field, "gpu", message, "leave one of the two out");
            }
        }
    }

    fn times(&mut self, pool: &Pool) {
        let stall = pool.readiness.stall_timeout_ms;
        if !(1_000..=LONGEST_STALL_MS).contains(&stall) {
            self.problem(
                "readiness.stall_timeout",
                "`stall_timeout` is out of range",
                "it is 1s to 24h",
            );
        }
        if pool.stop.grace_ms > LONGEST_GRACE_MS {
            self.problem("stop.grace", "`grace` is out of range", "it is at most 1h");
        }
    }

    fn source(&mut self, pool: &mut Pool) {
        let Some(source) = &mut pool.provisioning.source else {
            return;
        };
        if let Some(repository) = &mut source.repo {
            self.value(
                "provisioning.source.repo",
                syntax::git_repository(repository),
            );
            if repository.starts_with(['.', '~'])
                && let Some(path) =
                    self.value("provisioning.source.repo", self.base.absolute(repository))
            {
                *repository = path;
            }
        }
        if let Some(reference) = &source.reference {
            self.value("provisioning.source.ref", syntax::git_reference(reference));
        }
        for (index, flag) in source.build.cmake_flags.iter().enumerate() {
            let field = format!("provisioning.source.build.cmake_flags[{index}]");
            if !flag.starts_with('-') {
                let message = format!("`{flag}` is no flag of cmake");
                self.problem(&field, message, "write for example `-DGGML_CUDA=ON`");
            }
        }
        let mut cache = source.build.cache_dir.take();
        self.path("provisioning.source.build.cache_dir", &mut cache);
        source.build.cache_dir = cache;
    }

    fn container(&mut self, pool: &Pool) {
        let Some(container) = &pool.provisioning.container else {
            return;
        };
        if let Some(digest) = &container.digest {
            self.value(
                "provisioning.container.digest",
                syntax::digest(digest, &["sha256"]),
            );
            if self.given("provisioning.container.tag") {
                self.notice(
                    "provisioning.container.tag",
                    "`digest` decides which image is run; `tag` only says where it came from",
                );
            }
        }
        let image = container.image.as_deref().unwrap_or("");
        let name = image.rsplit('/').next().unwrap_or(image);
        if image.contains(char::is_whitespace) || image.starts_with('-') || image.contains("://") {
            let message = format!("`{image}` is no image");
            self.problem(
                "provisioning.container.image",
                message,
                "write for example `ghcr.io/ggml-org/llama.cpp`",
            );
        } else if name.contains(['@', ':']) {
            self.problem(
                "provisioning.container.image",
                "`image` carries a tag or digest",
                "write it under `tag` or `digest`",
            );
        }
    }

    fn package(&mut self, pool: &Pool) {
        let Some(package) = &pool.provisioning.package else {
            return;
        };
        let name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
        if let Some(name) = &package.name
            && (!name.bytes().all(name_byte)
                || !name.starts_with(|c: char| c.is_ascii_alphanumeric()))
        {
            self.problem(
                "provisioning.package.name",
                format!("`{name}` is no package name"),
                "write only its name; the version stands under `version`",
            );
        }
        if let Some(version) = &package.version
            && (version.contains(['<', '>', '=', '*', '^', '~', ' ', ',']) || version.is_empty())
        {
            self.problem(
                "provisioning.package.version",
                format!("`{version}` is not an exact version"),
                "write one exact version: a range would install something else tomorrow",
            );
        }
    }

    fn binary(&mut self, pool: &mut Pool) {
        let Some(binary) = &mut pool.provisioning.binary else {
            return;
        };
        if let Some(url) = &binary.url {
            self.value("provisioning.binary.url", syntax::url(url));
        }
        match (&binary.url, &binary.checksum) {
            (_, Some(checksum)) => {
                let checked = syntax::digest(checksum, &["sha256", "sha512"]);
                self.value("provisioning.binary.checksum", checked);
            }
            (Some(_), None) => self.problem(
                "provisioning.binary.url",
                "`url` needs a `checksum` beside it",
                "add `checksum: sha256:…`: nothing is run before its digest is compared",
            ),
            (None, None) => {}
        }
        let mut directory = binary.install_dir.take();
        self.path("provisioning.binary.install_dir", &mut directory);
        binary.install_dir = directory;
    }

    fn external(&mut self, pool: &Pool) {
        let url = pool
            .provisioning
            .external
            .as_ref()
            .and_then(|external| external.url.as_ref());
        if let Some(url) = url {
            self.value("provisioning.external.url", syntax::url(url));
        } else if pool.provisioning.mode == Some(Mode::External) {
            self.problem(
                "provisioning.mode",
                "mode `external` needs the URL of the running engine",
                "add `external: {url: http://127.0.0.1:8080}` beside it",
            );
        }
    }

    fn environment(&mut self, pool: &Pool) {
        for (name, value) in &pool.provisioning.env {
            let field = join("provisioning.env", name);
            self.value(&field, syntax::variable_name(name));
            let fine = self.value(&field, syntax::variable_value(value)).is_some();
            if fine
                && syntax::names_a_secret(name)
                && !value.contains("{secret.")
                && !value.is_empty()
            {
                self.notice(
                    &field,
                    format!(
                        "this looks like a secret; `{{secret.{name}}}` keeps it out of the file"
                    ),
                );
            }
        }
    }

    fn flags(&mut self, pool: &Pool) {
        for (index, flag) in pool.provisioning.flags.iter().enumerate() {
            let field = format!("provisioning.flags[{index}]");
            if flag.contains(['\0', '\n', '\r']) {
                self.problem(&field, "a flag holds no line breaks", "");
            } else if let Some((name, value)) = flag.split_once(' ')
                && flag.starts_with('-')
                && !name.contains('=')
            {
                let message = format!("`{flag}` would be one single argument");
                self.problem(
                    &field,
                    message,
                    &format!("write two: `{name}`, `{}`", value.trim()),
                );
            }
        }
    }

    fn ports(&mut self, pool: &Pool) {
        let ports = &pool.provisioning.ports;
        for (index, port) in ports.iter().enumerate() {
            if let Some(first) = ports[..index].iter().position(|other| other == port) {
                self.both(
                    &format!("provisioning.ports[{index}]"),
                    &format!("provisioning.ports[{first}]"),
                    format!("port {port} is there twice"),
                    "name it once",
                );
            }
        }
    }

    /// Secrets are filled into the environment and nowhere else.
    fn secrets_elsewhere(&mut self, pool: &Pool) {
        let mut plain = pool.clone();
        plain.provisioning.env.clear();
        let value = serde_json::to_value(&plain).unwrap_or_default();
        let mut found = Vec::new();
        find_secrets(&value, "", &mut found);
        for field in found {
            self.problem(
                &field,
                "secrets are filled into `provisioning.env` only",
                "arguments and URLs end in process lists and logs",
            );
        }
    }

    /// Fills in the mode that the settings speak of, and refuses settings of another.
    fn mode(&mut self, pool: &mut Pool) {
        let sections = sections(pool);
        match (pool.provisioning.mode, sections.as_slice()) {
            (Some(mode), _) => {
                for problem in misfits(pool, mode, self.places, "leave one of the two out") {
                    self.problems.push(problem);
                }
            }
            (None, []) => {}
            (None, [only]) => pool.provisioning.mode = Some(*only),
            (None, [first, .., last]) => {
                let (first, last) = (*first, *last);
                self.both(
                    &join("provisioning", last.as_str()),
                    &join("provisioning", first.as_str()),
                    format!(
                        "`{first}` and `{last}` are two ways to the engine, and no `mode` picks one"
                    ),
                    &format!("add `mode: {first}`, and leave the other settings out"),
                );
            }
        }
        if pool.provisioning.mode == Some(Mode::External) {
            let problems = misfits(
                pool,
                Mode::External,
                self.places,
                "leave one of the two out",
            );
            for problem in problems {
                if !self.problems.contains(&problem) {
                    self.problems.push(problem);
                }
            }
        }
    }
}

/// Modes whose settings a pool carries.
fn sections(pool: &Pool) -> Vec<Mode> {
    let provisioning = &pool.provisioning;
    [
        (provisioning.source.is_some(), Mode::Source),
        (provisioning.container.is_some(), Mode::Container),
        (provisioning.package.is_some(), Mode::Package),
        (provisioning.binary.is_some(), Mode::Binary),
        (provisioning.external.is_some(), Mode::External),
    ]
    .into_iter()
    .filter_map(|(there, mode)| there.then_some(mode))
    .collect()
}

/// Fields that mean nothing for an engine that somebody else runs.
const NOT_EXTERNAL: &[&str] = &[
    "quant",
    "ctx",
    "devices",
    "tensor_split",
    "replicas",
    "readiness",
    "stop",
    "provisioning.model",
    "provisioning.ports",
    "provisioning.env",
    "provisioning.flags",
    "provisioning.allow_package_installs",
    "provisioning.allow_binary_downloads",
];

/// Written fields that do not fit a mode, each as a problem with the reason.
pub(super) fn misfits(pool: &Pool, mode: Mode, places: &Places, help: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mode_place = places.exact("provisioning.mode");
    for section in sections(pool)
        .into_iter()
        .filter(|section| *section != mode)
    {
        let field = join("provisioning", section.as_str());
        let detail = first_below(pool, section);
        let message = format!("`{section}{detail}` has no meaning under mode `{mode}`");
        let problem = places
            .problem(&format!("{field}{detail}"), message)
            .help(help);
        problems.push(problem.also(mode_place, "the mode is set here"));
    }
    if mode == Mode::External {
        for field in NOT_EXTERNAL
            .iter()
            .filter(|field| places.exact(field).is_some())
        {
            let message = format!("`{field}` has no meaning for an engine that already runs");
            let problem = places.problem(field, message).help(help);
            problems.push(problem.also(mode_place, "the mode is set here"));
        }
    }
    problems
}

/// `.image` of `container`: the first setting written there, so that the message names it.
fn first_below(pool: &Pool, section: Mode) -> String {
    let value = serde_json::to_value(&pool.provisioning).unwrap_or_default();
    let settings = value
        .get(section.as_str())
        .and_then(|value| value.as_object());
    let said = |value: &serde_json::Value| !matches!(value, serde_json::Value::Bool(false));
    let not_empty = |value: &serde_json::Value| value.as_object().is_none_or(|map| !map.is_empty());
    settings
        .and_then(|settings| {
            settings
                .iter()
                .find(|(_, value)| said(value) && not_empty(value))
        })
        .map(|(name, _)| format!(".{name}"))
        .unwrap_or_default()
}

fn find_secrets(value: &serde_json::Value, path: &str, found: &mut Vec<String>) {
    match value {
        serde_json::Value::String(text) if text.contains("{secret.") => found.push(path.to_owned()),
        serde_json::Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                find_secrets(item, &format!("{path}[{index}]"), found);
            }
        }
        serde_json::Value::Object(map) => {
            for (name, value) in map {
                find_secrets(value, &join(path, name), found);
            }
        }
        _ => {}
    }
}

/// Rules between the pools of a file.
pub(super) fn across(pools: &[PoolEntry], places: &Places, problems: &mut Vec<Problem>) {
    let mut ids: BTreeMap<&str, Option<Place>> = BTreeMap::new();
    let mut ports: BTreeMap<u16, (&str, Option<Place>)> = BTreeMap::new();
    for (index, entry) in pools.iter().enumerate() {
        let of_pool = places.below(&format!("pools[{index}]"));
        let id = entry.pool.id.as_str();
        match ids.get(id) {
            Some(first) => problems.push(
                of_pool
                    .problem("id", format!("there are two pools `{id}`"))
                    .help("give each pool its own id")
                    .also(*first, "the other one is here"),
            ),
            None => {
                ids.insert(id, of_pool.exact("id"));
            }
        }
        for (index, port) in entry.pool.provisioning.ports.iter().enumerate() {
            let field = format!("provisioning.ports[{index}]");
            match ports.get(port) {
                Some((other, first)) if *other != id => problems.push(
                    of_pool
                        .problem(
                            &field,
                            format!("pools `{other}` and `{id}` both want port {port}"),
                        )
                        .help("give each pool its own ports")
                        .also(*first, format!("`{other}` wants it here")),
                ),
                Some(_) => {}
                None => {
                    ports.insert(*port, (id, of_pool.exact(&field)));
                }
            }
        }
    }
}
