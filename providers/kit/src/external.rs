//! Engines that run already, started by somebody else: they are probed and handed off, no more.

use engine_provider_api::{
    ExternalLaunch, Launch, Mode, Model, Plan, Pool, PreparedEngine, Probes, ProviderError,
    Resources, Stop,
};

/// What is known of such an engine: its version is what it says itself.
pub const VERSION: &str = "external";

/// What one engine family looks like from outside.
#[derive(Debug, Clone)]
pub struct Family<'a> {
    /// Name of the engine family.
    pub engine: &'a str,
    /// Protocol it speaks, for example `openai`.
    pub dialect: &'a str,
    /// What it can be asked to do.
    pub workloads: &'a [&'a str],
    /// How it is asked whether it is ready, and what it is.
    pub probes: Probes,
}

/// The plan for such a pool: no step, and one note that says so.
pub fn plan(pool: &Pool) -> Result<Plan, ProviderError> {
    let url = check(pool)?;
    Ok(Plan {
        notes: vec![format!(
            "attach to {url}: the engine is probed and handed off, never started nor stopped"
        )],
        ..Plan::default()
    })
}

/// Such an engine, ready to be probed. `slots_total` is 1: nobody knows how many it has.
pub fn prepare(pool: &Pool, family: Family<'_>) -> Result<PreparedEngine, ProviderError> {
    let url = check(pool)?;
    Ok(PreparedEngine {
        requires: Vec::new(),
        engine: family.engine.to_owned(),
        engine_version: VERSION.to_owned(),
        provisioning_mode: Mode::External,
        launch: Launch::External(ExternalLaunch { url }),
        files: Vec::new(),
        probes: family.probes,
        stop: Stop::default(),
        resources: Resources {
            vram_bytes: Some(0),
            ..Resources::default()
        },
        model: Model {
            id: pool.model.clone().unwrap_or_default(),
            ..Model::default()
        },
        flags: Vec::new(),
        slots_total: 1,
        workloads: family
            .workloads
            .iter()
            .map(|&name| name.to_owned())
            .collect(),
        profile: pool.profile,
        diagnoses: Vec::new(),
        gpu_evidence: None,
        dialect: family.dialect.to_owned(),
        device_mask: Vec::new(),
        build_record: std::collections::BTreeMap::new(),
        warnings: Vec::new(),
    })
}

/// The URL of the pool; refused is what could have no effect on an engine that runs already.
fn check(pool: &Pool) -> Result<String, ProviderError> {
    let provisioning = &pool.provisioning;
    let idle = [
        ("quant", pool.quant.is_some()),
        ("ctx", pool.ctx.is_some()),
        ("devices", !pool.devices.is_empty()),
        ("tensor_split", !pool.tensor_split.is_empty()),
        ("options", !pool.options.is_empty()),
        ("replicas", pool.replicas > 1),
        ("provisioning.model", provisioning.model.is_some()),
        ("provisioning.ports", !provisioning.ports.is_empty()),
        ("provisioning.env", !provisioning.env.is_empty()),
        ("provisioning.flags", !provisioning.flags.is_empty()),
    ];
    if let Some((field, _)) = idle.iter().find(|(_, given)| *given) {
        let message = format!("`{field}` has no effect on an engine that runs already");
        return Err(ProviderError::invalid(*field, message).hint(format!("remove `{field}`")));
    }
    if pool.model.as_deref().unwrap_or_default().is_empty() {
        let message = "the pool does not say which model the running engine serves";
        return Err(ProviderError::invalid("model", message)
            .hint("set `model` to the name that the engine lists under `/v1/models`"));
    }
    let given = provisioning.external.clone().unwrap_or_default().url;
    let field = "provisioning.external.url";
    let Some(url) = given.filter(|url| !url.is_empty()) else {
        let message = "the pool does not say where the running engine answers";
        return Err(ProviderError::invalid(field, message)
            .hint("set `provisioning.external.url`, for example to `http://127.0.0.1:8000`"));
    };
    match fault(&url) {
        None => Ok(url.trim_end_matches('/').to_owned()),
        Some(fault) => Err(ProviderError::invalid(field, format!("`{url}` {fault}"))
            .hint("write it like `http://127.0.0.1:8000`")),
    }
}

/// What is wrong with a URL; a password in it would be shown to everybody who reads the handoff.
fn fault(url: &str) -> Option<&'static str> {
    let schemes = ["http://", "https://"];
    let Some(rest) = schemes.iter().find_map(|scheme| url.strip_prefix(scheme)) else {
        return Some("is no http or https URL");
    };
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return Some("holds a user or password");
    }
    if authority.is_empty() || authority.starts_with(':') {
        return Some("names no host");
    }
    let odd = |letter: char| letter.is_whitespace() || letter.is_control();
    if rest.contains(['?', '#']) || rest.contains(odd) {
        return Some("holds more than a host, a port and a path");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pool(url: &str) -> Pool {
        let pool = json!({
            "id": "chat", "engine": "toy", "model": "m",
            "provisioning": { "external": { "url": url } },
        });
        serde_json::from_value(pool).unwrap()
    }

    #[test]
    fn an_attached_engine_has_no_steps_and_keeps_its_address() {
        let pool = pool("http://10.0.0.7:8000/");
        assert!(plan(&pool).unwrap().steps.is_empty());
        let family = Family {
            engine: "toy",
            dialect: "openai",
            workloads: &["chat"],
            probes: Probes::default(),
        };
        let engine = prepare(&pool, family).unwrap();
        let url = "http://10.0.0.7:8000".to_owned();
        assert_eq!(engine.launch, Launch::External(ExternalLaunch { url }));
        assert_eq!(engine.model.id, "m");
    }

    #[test]
    fn addresses_that_say_too_much_or_too_little_are_refused() {
        for (url, fault) in [
            ("", "does not say where"),
            ("10.0.0.7:8000", "is no http or https URL"),
            ("http://:8000", "names no host"),
            ("http://me:secret@host", "holds a user or password"),
            ("http://host/?key=1", "holds more than"),
        ] {
            let message = plan(&pool(url)).unwrap_err().message;
            assert!(message.contains(fault), "{url}: {message}");
        }
    }

    #[test]
    fn what_could_have_no_effect_is_refused_by_name() {
        let mut flags = pool("http://host");
        flags.provisioning.flags = vec!["--x".to_owned()];
        let error = plan(&flags).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("provisioning.flags"));
        let nameless = Pool {
            model: None,
            ..pool("http://host")
        };
        assert_eq!(plan(&nameless).unwrap_err().field.as_deref(), Some("model"));
    }
}
