//! The policy in force as a table: what is set, to what, by whom.

use super::{Policy, Setting, resolve::Bounded as _};

/// One setting of a policy.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Row {
    /// Name as in a policy file.
    pub setting: &'static str,
    /// Value as in a policy file.
    pub value: String,
    /// Who set it: `default`, a flag, `file:line`.
    pub set_by: String,
    /// Whether nothing below may exceed it.
    pub ceiling: bool,
    /// How to ask for something else for one run.
    pub change: &'static str,
}

/// Every setting of a policy, in the order of the manual.
#[must_use]
pub fn rows(policy: &Policy) -> Vec<Row> {
    let tools = policy.tools.value.as_ref();
    let run_as = policy.run_as.value.as_ref();
    vec![
        row(
            "gpu",
            &policy.gpu,
            policy.gpu.value.words(),
            "--gpu require|prefer|forbid",
        ),
        row(
            "allow_package_installs",
            &policy.allow_package_installs,
            policy.allow_package_installs.value.words(),
            "--allow-package-installs",
        ),
        row(
            "allow_aur",
            &policy.allow_aur,
            policy.allow_aur.value.words(),
            "policy{} in the pool file",
        ),
        row(
            "allow_binary_downloads",
            &policy.allow_binary_downloads,
            policy.allow_binary_downloads.value.words(),
            "--allow-binary-downloads",
        ),
        row(
            "allow_unverified_models",
            &policy.allow_unverified_models,
            policy.allow_unverified_models.value.words(),
            "policy{} in the pool file",
        ),
        row(
            "network",
            &policy.network,
            policy.network.value.words(),
            "--offline",
        ),
        row(
            "tools",
            &policy.tools,
            tools.map_or_else(|| "those that plans name".to_owned(), |tools| tools.words()),
            "policy{} in the pool file",
        ),
        row(
            "run_as",
            &policy.run_as,
            match (run_as, policy.engine_identity()) {
                (Some(builder), Some(engine)) if *builder != engine => {
                    format!(
                        "{} for builds, {} for engines",
                        builder.words(),
                        engine.words()
                    )
                }
                (Some(everybody), _) => everybody.words(),
                (None, _) => "the user of this process".to_owned(),
            },
            "policy{} in the pool file",
        ),
        row(
            "environment.engines",
            &policy.engine_environment,
            policy.engine_environment.value.words(),
            "policy{} in the pool file",
        ),
        row(
            "environment.steps",
            &policy.step_environment,
            policy.step_environment.value.words(),
            "policy{} in the pool file",
        ),
    ]
}

fn row<T>(name: &'static str, setting: &Setting<T>, value: String, change: &'static str) -> Row {
    Row {
        setting: name,
        value,
        set_by: setting.origin.to_string(),
        ceiling: setting.origin.is_ceiling(),
        change,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_as_documented() {
        let table: Vec<String> = rows(&Policy::default())
            .into_iter()
            .map(|row| format!("{}: {} ({})", row.setting, row.value, row.set_by))
            .collect();
        insta::assert_snapshot!(table.join("\n"), @r"
        gpu: require (default)
        allow_package_installs: false (default)
        allow_aur: false (default)
        allow_binary_downloads: false (default)
        allow_unverified_models: true (default)
        network: as-planned (default)
        tools: those that plans name (default)
        run_as: the user of this process (default)
        environment.engines: [LANG, LANGUAGE, LC_ALL, LC_CTYPE, TZ] (default)
        environment.steps: [http_proxy, https_proxy, no_proxy, all_proxy, HTTP_PROXY, HTTPS_PROXY, NO_PROXY, ALL_PROXY, SSL_CERT_FILE, SSL_CERT_DIR, CURL_CA_BUNDLE, REQUESTS_CA_BUNDLE, GIT_SSL_CAINFO, PIP_INDEX_URL, PIP_CERT, LANG, LC_ALL, TZ] (default)
        ");
    }
}
