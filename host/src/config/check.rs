//! Rules that no schema can say: fields that contradict each other, and what single values mean.

mod sections;
mod supervision;

use engine_provider_api::{Device, GpuPolicy, Mode, ModelSource, Pool};

use super::{
    modes::{misfits, sections},
    places::Places,
    problem::Problem,
    schema::join,
    syntax::{self, Base, Complaint},
};

/// Longest silence of a loading engine, longest time until it is ready, and longest grace, that make sense:
/// a day, a week and an hour.
const LONGEST_STALL_MS: u64 = 24 * 3_600_000;
const LONGEST_START_MS: u64 = 7 * 24 * 3_600_000;
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
        self.mirrors(model, field);
        let several = ["hf:", "oci:"]
            .iter()
            .any(|kind| model.reference.starts_with(kind));
        let prefix = model.reference.starts_with("s3:") && model.reference.ends_with('/');
        if quant.is_some() && !several && !prefix {
            self.both(
                "quant",
                field,
                "`quant` picks one of several files, and this reference names exactly one",
                "leave `quant` out, or refer to a repository with `hf:`",
            );
        }
        let patterns = [("include", &model.include), ("exclude", &model.exclude)];
        let several = several || model.reference.starts_with("s3:");
        for (name, _) in patterns
            .iter()
            .filter(|(_, all)| !all.is_empty() && !several)
        {
            self.both(
                &format!("provisioning.model.{name}"),
                field,
                format!("`{name}` picks files of a repository, and this reference names none"),
                "leave it out, or refer to a repository with `hf:`",
            );
        }
        self.path("provisioning.model.cache_dir", &mut model.cache_dir);
    }

    /// Other places of a model: only the digest tells that they have the same file.
    fn mirrors(&mut self, model: &ModelSource, reference: &str) {
        const MIRRORS: &str = "provisioning.model.mirrors";
        for (index, mirror) in model.mirrors.iter().enumerate() {
            let field = format!("{MIRRORS}[{index}]");
            self.value(&field, syntax::mirror(mirror));
            let before = model.mirrors[..index].iter().chain([&model.reference]);
            if before.into_iter().any(|other| other == mirror) {
                let help = "name each place once, the first one under `ref`";
                self.problem(&field, "this place is there twice", help);
            }
        }
        if model.mirrors.is_empty() {
            return;
        }
        if !syntax::is_web(&model.reference) {
            self.both(
                MIRRORS,
                reference,
                "`mirrors` are for a file behind a URL, and this reference names none",
                "leave them out: a mirror of the hub is named by `HF_ENDPOINT`, one of a registry in \
                 `registries.conf`",
            );
        } else if model.checksum.is_none() {
            self.problem(
                MIRRORS,
                "`mirrors` need a `checksum` beside them",
                "add `checksum: sha256:…`, as its publisher gives it or `host lock` has written it: \
                 nothing else tells whether two places have the same file",
            );
        }
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
        let timeout = pool.readiness.timeout_ms;
        if timeout.is_some_and(|timeout| !(1_000..=LONGEST_START_MS).contains(&timeout)) {
            self.problem(
                "readiness.timeout",
                "`timeout` is out of range",
                "it is 1s to 168h",
            );
        }
        if pool.stop.grace_ms > LONGEST_GRACE_MS {
            self.problem("stop.grace", "`grace` is out of range", "it is at most 1h");
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
        let help = match self.given("provisioning.mode") {
            true => "leave one of the two out",
            false => "remove it: the engine runs already",
        };
        let sections = sections(pool);
        match (pool.provisioning.mode, sections.as_slice()) {
            (Some(mode), _) => {
                for problem in misfits(pool, mode, self.places, help) {
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
            let problems = misfits(pool, Mode::External, self.places, help);
            for problem in problems {
                if !self.problems.contains(&problem) {
                    self.problems.push(problem);
                }
            }
        }
    }
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
