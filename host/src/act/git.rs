//! git, run for a plan that nobody trusts: no configuration, hooks, prompts or helpers of this
//! machine take part, and URLs cannot be options or run commands.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use engine_provider_api::Step;

use super::{
    ActError, Context,
    command::{self, Job, PATH},
    credentials, fill,
    meter::Meter,
};
use crate::{
    fault::hint,
    net::Url,
    policy::NetworkPolicy,
    process::{Child, LogFile, Network, Output, Privileges, Spec, quote},
    store::{self, StoreError, Temporary},
};

/// How a git URL is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Https,
    /// Plain http, of this machine only.
    Loopback,
    Ssh,
    /// A path, or `file://`.
    File,
}

/// How a URL is reached; `None` for what is not accepted.
pub(crate) fn scheme_of(url: &str) -> Option<Scheme> {
    if url.starts_with('-') || url.bytes().any(|byte| byte.is_ascii_control()) {
        return None;
    }
    if url.starts_with('/') || url.starts_with("file:///") {
        return Some(Scheme::File);
    }
    if let Some((scheme, _)) = url.split_once("://") {
        let parsed = Url::parse(url).ok()?;
        let host = parsed.host_str()?;
        let plain = !host.is_empty() && !host.starts_with('-');
        return match scheme {
            "https" if plain => Some(Scheme::Https),
            "ssh" if plain && !parsed.username().starts_with('-') => Some(Scheme::Ssh),
            "http" if crate::net::is_loopback(&parsed) => Some(Scheme::Loopback),
            _ => None,
        };
    }
    scp_host(url).map(|_| Scheme::Ssh)
}

/// The host of a URL that is reached over the network.
pub(super) fn host_of(url: &str) -> Option<String> {
    match scheme_of(url)? {
        Scheme::File => None,
        _ => match Url::parse(url) {
            Ok(url) if url.has_host() => url.host_str().map(str::to_owned),
            _ => scp_host(url).map(str::to_owned),
        },
    }
}

/// The host of `user@host:path`.
fn scp_host(url: &str) -> Option<&str> {
    let (place, path) = url.split_once(':')?;
    let host = place.rsplit_once('@').map_or(place, |(_, host)| host);
    let plain = |text: &str| {
        let byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !text.is_empty() && !text.starts_with('-') && text.bytes().all(byte)
    };
    let user = place.rsplit_once('@').is_none_or(|(user, _)| plain(user));
    // `transport::address` would run a remote helper.
    (plain(host) && user && !path.is_empty() && !path.starts_with(':')).then_some(host)
}

/// A URL without credentials, for people.
pub(crate) fn shown(url: &str) -> String {
    match Url::parse(url) {
        Ok(parsed) if parsed.has_host() => crate::net::shown(&parsed),
        _ => url.to_owned(),
    }
}

/// The command that lists the branches and tags of a repository.
pub(crate) fn list_command(url: &str) -> String {
    format!("git ls-remote -- {}", quote(&shown(url)))
}

/// git for one step, as the user that builds.
pub(crate) struct Git<'a> {
    context: &'a Context,
    step: &'a Step,
    program: PathBuf,
    env: BTreeMap<String, String>,
    url: String,
    /// Where the URL's credentials lie, as long as this lives.
    _credentials: Option<Temporary>,
}

impl<'a> Git<'a> {
    /// git for this URL; checks that it may be reached.
    pub(crate) fn new(context: &'a Context, step: &'a Step, url: &str) -> Result<Self, ActError> {
        let scheme = check_url(context, step, url)?;
        context
            .policy
            .allow_tool("git")
            .map_err(|refusal| ActError::refused(step, refusal))?;
        let program = find_git(context).ok_or_else(|| ActError::MissingTools {
            tools: vec![super::MissingTool {
                name: "git".to_owned(),
                purpose: "obtaining source".to_owned(),
                too_old: None,
            }],
            why: "git is in none of the directories of PATH".to_owned(),
            hints: Vec::new(),
        })?;
        let config =
            write_config(context, scheme).map_err(|source| ActError::store(step, source))?;
        let mut env = environment(context, &config);
        let (url, login) = credentials::take(url).map_err(|reason| refuse(step, url, reason))?;
        let place = match login {
            None => None,
            Some(login) => {
                let place = login
                    .lend(context, &mut env)
                    .map_err(|source| ActError::store(step, source))?;
                Some(place)
            }
        };
        Ok(Self {
            context,
            step,
            program,
            env,
            url,
            _credentials: place,
        })
    }

    /// The URL as git is to be given it: without credentials, which other users could see in a
    /// list of processes. git asks for them.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Runs a git command in a directory.
    pub(crate) async fn run(
        &self,
        id: &str,
        directory: &Path,
        args: &[&str],
        network: Network,
    ) -> Result<(), ActError> {
        let job = Job {
            step: self.step,
            id,
            program: self.program.clone(),
            args: args.iter().map(|&argument| argument.to_owned()).collect(),
            env: self.env.clone(),
            directory: directory.to_owned(),
            identity: self.context.run_as(),
            network,
            privileges: Privileges::Fixed,
            meter: Some(Meter::Git),
            limit: None,
        };
        command::run(self.context, job).await
    }

    /// What a git command prints on standard output.
    pub(crate) async fn output(
        &self,
        id: &str,
        directory: &Path,
        args: &[&str],
        network: Network,
        limit: Duration,
    ) -> Result<String, ActError> {
        let step = self.step;
        let log = fill::log_path(self.context, step, id)?;
        let answer = self
            .context
            .store
            .temporary("answer")
            .map_err(|source| ActError::store(step, source))?;
        let stdout = answer.path().join("stdout");
        let file = |path: &Path| LogFile {
            path: path.to_owned(),
            limit_bytes: 4 << 20,
        };
        let spec = Spec {
            program: self.program.clone(),
            args: args.iter().map(|&argument| argument.to_owned()).collect(),
            env: self.env.clone(),
            directory: directory.to_owned(),
            identity: self.context.run_as(),
            network,
            privileges: Privileges::Fixed,
            output: Output::Apart {
                stdout: file(&stdout),
                stderr: file(&log),
            },
            child: Child::Step,
        };
        let shown = self
            .context
            .narrator
            .secrets()
            .mask(&spec.display())
            .into_owned();
        let exited = command::to_end(self.context, step, spec, Some(limit), None).await?;
        let text = command::read_log(&stdout, 4 << 20);
        if exited.success() {
            return Ok(text);
        }
        Err(ActError::Command {
            step: step.id.clone(),
            failure: Box::new(super::CommandFailure {
                id: id.to_owned(),
                command: shown,
                directory: directory.to_owned(),
                exited,
                tail: command::tail(self.context, &log),
                log,
                wanted_network: false,
                disk_full: false,
            }),
        })
    }
}

/// Checks that a URL is one that git may be given and that policy lets it be reached.
pub(super) fn check_url(context: &Context, step: &Step, url: &str) -> Result<Scheme, ActError> {
    let scheme =
        scheme_of(url).ok_or_else(|| refuse(step, url, "is no git URL that is accepted"))?;
    check_reach(context, step, url, scheme)?;
    Ok(scheme)
}

fn refuse(step: &Step, url: &str, reason: &str) -> ActError {
    ActError::Reference {
        step: step.id.clone(),
        reason: format!("`{}` {reason}", shown(url)),
        hints: vec![hint(
            "use https://, ssh://, user@host:path or an absolute path",
            None,
        )],
    }
}

fn check_reach(context: &Context, step: &Step, url: &str, scheme: Scheme) -> Result<(), ActError> {
    if scheme == Scheme::File {
        let path = url.strip_prefix("file://").unwrap_or(url);
        return match context.run_as() {
            Some(user) => store::ensure_reachable(Path::new(path), user)
                .map_err(|source| ActError::store(step, source)),
            None => Ok(()),
        };
    }
    let host = host_of(url).unwrap_or_default();
    // Only the host counts for policy, and scp-like places are no URLs.
    let place = Url::parse(&format!("ssh://{host}/")).map_err(|_| ActError::Plan {
        reason: format!("`{}` has no host", shown(url)),
    })?;
    context
        .net
        .check_host(&place)
        .map_err(|source| ActError::net(step, source))
}

fn find_git(context: &Context) -> Option<PathBuf> {
    if let Some(tool) = context.tools.get("git") {
        return Some(tool.path.into());
    }
    let paths = context.environment.search_path();
    paths
        .into_iter()
        .map(|directory| directory.join("git"))
        .find(|path| path.is_file())
}

fn environment(context: &Context, config: &Path) -> BTreeMap<String, String> {
    let mut env = context.passed_environment();
    let fixed = [
        ("PATH", PATH),
        ("HOME", "/nonexistent"),
        ("LC_ALL", "C.UTF-8"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", &config.to_string_lossy()),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_ASKPASS", "/bin/false"),
        ("GIT_LFS_SKIP_SMUDGE", "1"),
        ("GIT_OPTIONAL_LOCKS", "0"),
    ];
    env.extend(fixed.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env
}

/// Writes the only configuration that git reads; it is named by its content.
fn write_config(context: &Context, scheme: Scheme) -> Result<PathBuf, StoreError> {
    use sha2::Digest as _;
    let listed = matches!(context.policy.network.value, NetworkPolicy::Only(_));
    let text = config(scheme, !listed);
    // Not among the caches, which belong to whoever builds.
    let directory = context.store.root().join("git");
    store::make_directory(&directory)?;
    if let Some(user) = context.run_as() {
        store::ensure_reachable(&directory.join("x"), user)?;
    }
    let name = store::hex(&sha2::Sha256::digest(text.as_bytes()));
    let path = directory.join(format!("config-{}", &name[..16]));
    if !path.exists() {
        store::write_file(&path, 0o644, text.as_bytes())?;
    }
    Ok(path)
}

/// The configuration. `safe.directory` and `allowAnySHA1InWant` are for the side of a local
/// repository that serves: it runs as the same user with the same configuration.
fn config(scheme: Scheme, follow_redirects: bool) -> String {
    let allow = |wanted| if scheme == wanted { "always" } else { "never" };
    let (http, file) = (allow(Scheme::Loopback), allow(Scheme::File));
    let redirects = if follow_redirects { "initial" } else { "false" };
    format!(
        "[protocol]\n\tallow = never\n\
         [protocol \"https\"]\n\tallow = always\n\
         [protocol \"ssh\"]\n\tallow = always\n\
         [protocol \"file\"]\n\tallow = {file}\n\
         [protocol \"http\"]\n\tallow = {http}\n\
         [http]\n\tfollowRedirects = {redirects}\n\tlowSpeedLimit = 1\n\tlowSpeedTime = 60\n\
         [core]\n\thooksPath = /dev/null\n\tfsmonitor = false\n\tautocrlf = false\n\
         \tattributesFile = /dev/null\n\texcludesFile = /dev/null\n\
         \tsshCommand = ssh -oBatchMode=yes -oServerAliveInterval=15 -oServerAliveCountMax=4\n\
         [gc]\n\tauto = 0\n\
         [maintenance]\n\tauto = false\n\
         [transfer]\n\tfsckObjects = true\n\
         [fetch]\n\trecurseSubmodules = false\n\
         [submodule]\n\trecurse = false\n\
         [uploadpack]\n\tallowAnySHA1InWant = true\n\
         [safe]\n\tdirectory = *\n\
         [init]\n\tdefaultBranch = main\n\
         [advice]\n\tdetachedHead = false\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_a_url_is_one_word_to_a_shell() {
        assert_eq!(
            list_command("/srv/my repo;id"),
            "git ls-remote -- '/srv/my repo;id'"
        );
        assert_eq!(
            list_command("https://user:secret@host/x.git"),
            "git ls-remote -- https://host/x.git"
        );
    }

    #[test]
    fn urls_are_accepted_by_an_allow_list() {
        let cases = [
            ("https://host/x.git", Some(Scheme::Https)),
            ("ssh://git@host/x.git", Some(Scheme::Ssh)),
            ("git@host:owner/x.git", Some(Scheme::Ssh)),
            ("/srv/x.git", Some(Scheme::File)),
            ("file:///srv/x.git", Some(Scheme::File)),
            ("http://127.0.0.1:8080/x.git", Some(Scheme::Loopback)),
            ("http://host/x.git", None),
            ("ext::sh -c id", None),
            ("host::x", None),
            ("--upload-pack=id", None),
            ("ssh://-oProxyCommand=id/x", None),
            ("-oProxyCommand=id:x", None),
            ("git@-oProxyCommand=id:x", None),
            ("git://host/x", None),
            ("relative/x.git", None),
            ("https://host/x\n", None),
            ("", None),
        ];
        for (url, scheme) in cases {
            assert_eq!(scheme_of(url), scheme, "{url}");
        }
    }

    #[test]
    fn hosts_are_what_policy_is_asked_about() {
        assert_eq!(host_of("git@host:x").as_deref(), Some("host"));
        assert_eq!(host_of("https://user:pw@host:1/x").as_deref(), Some("host"));
        assert_eq!(host_of("/srv/x"), None);
        assert_eq!(shown("https://user:pw@host/x?t=1"), "https://host/x");
    }

    #[test]
    fn only_loopback_may_be_plain_and_only_files_may_name_files() {
        assert!(config(Scheme::Https, true).contains("[protocol \"file\"]\n\tallow = never"));
        assert!(config(Scheme::File, true).contains("[protocol \"file\"]\n\tallow = always"));
        assert!(config(Scheme::Https, true).contains("[protocol \"http\"]\n\tallow = never"));
        assert!(config(Scheme::Loopback, true).contains("[protocol \"http\"]\n\tallow = always"));
    }
}
