//! The Python package index that pip is configured for, found out without running pip.
//!
//! Strongest first, as in pip's manual: `PIP_INDEX_URL`, the file `PIP_CONFIG_FILE` names, the
//! virtual environment's, the user's, the machine's, the built-in default. `PIP_CONFIG_FILE=/dev/null`
//! turns all files off.

use std::path::{Path, PathBuf};

use url::Url;

use super::roots::Roots;

/// Index that pip uses when nothing else is configured.
const DEFAULT: &str = "https://pypi.org/simple";

/// The index, with the credentials it needs. Only [`PackageIndex::shown`] may be told.
#[derive(Clone, PartialEq, Eq)]
pub struct PackageIndex(Url);

impl PackageIndex {
    /// The URL to fetch from.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.0
    }

    /// The URL without credentials.
    #[must_use]
    pub fn shown(&self) -> String {
        let mut url = self.0.clone();
        // Both only fail for URLs without a host, which carry no credentials.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.as_str().trim_end_matches('/').to_owned()
    }

    /// What must never be told: password, and a user name that stands alone (a token).
    #[must_use]
    pub fn secrets(&self) -> Vec<String> {
        let user = self.0.username();
        match self.0.password() {
            Some(password) => vec![decoded(password), password.to_owned()],
            None if !user.is_empty() => vec![decoded(user), user.to_owned()],
            None => Vec::new(),
        }
    }
}

impl std::fmt::Debug for PackageIndex {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_tuple("PackageIndex")
            .field(&self.shown())
            .finish()
    }
}

/// Percent-decoded text; the text itself where that gives no UTF-8.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = |byte: u8| char::from(byte).to_digit(16);
        match (first, tail) {
            (b'%', [high, low, after @ ..]) if hex(*high).is_some() && hex(*low).is_some() => {
                let value = hex(*high).unwrap_or(0) * 16 + hex(*low).unwrap_or(0);
                bytes.push(u8::try_from(value).unwrap_or(b'?'));
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// The index that pip would use here.
pub(super) fn package_index(roots: &Roots) -> Option<PackageIndex> {
    let configured = roots
        .environment()
        .get("PIP_INDEX_URL")
        .map(str::to_owned)
        .or_else(|| {
            let files = files(roots).into_iter();
            files
                .filter_map(|path| index_url(&roots.text(path)?))
                .next()
        });
    let url = configured.as_deref().unwrap_or(DEFAULT);
    let url = Url::parse(url).ok()?;
    ["http", "https"]
        .contains(&url.scheme())
        .then_some(PackageIndex(url))
}

/// Configuration files of pip, strongest first.
fn files(roots: &Roots) -> Vec<PathBuf> {
    const NAME: &str = "pip.conf";
    let environment = roots.environment();
    let named = environment.path("PIP_CONFIG_FILE");
    if named.as_deref() == Some(Path::new("/dev/null")) {
        return Vec::new();
    }
    let home = environment.path("HOME");
    let below_home = |directory: &str| home.as_ref().map(|home| home.join(directory).join(NAME));
    let user_config = environment
        .path("XDG_CONFIG_HOME")
        .map(|directory| directory.join("pip").join(NAME))
        .or_else(|| below_home(".config/pip"));
    let machine_config = environment.get("XDG_CONFIG_DIRS").unwrap_or("/etc/xdg");
    let machine_config = machine_config
        .split(':')
        .filter(|directory| directory.starts_with('/'))
        .map(|directory| Path::new(directory).join("pip").join(NAME));
    named
        .into_iter()
        .chain(
            environment
                .path("VIRTUAL_ENV")
                .map(|directory| directory.join(NAME)),
        )
        .chain(user_config)
        .chain(below_home(".pip"))
        .chain([Path::new("/etc").join(NAME)])
        .chain(machine_config)
        .collect()
}

/// `index-url` of a pip.conf: what `[install]` says, else `[global]`.
fn index_url(text: &str) -> Option<String> {
    let mut section = String::new();
    let (mut global, mut install) = (None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            section = name.trim().to_owned();
        } else if let Some((key, value)) = line.split_once(['=', ':'])
            && key.trim().replace('_', "-") == "index-url"
            && !line.starts_with(['#', ';'])
        {
            let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
            match section.as_str() {
                "global" => global = value,
                "install" => install = value,
                _ => {}
            }
        }
    }
    install.or(global)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::testing::FakeMachine;

    fn shown(machine: &FakeMachine) -> String {
        package_index(&machine.roots()).unwrap().shown()
    }

    #[test]
    fn the_strongest_setting_of_pip_wins() {
        let mut machine = FakeMachine::default();
        machine.set("HOME", "/home/ada");
        assert_eq!(shown(&machine), DEFAULT);
        machine.write(
            "/etc/xdg/pip/pip.conf",
            "[global]\nindex-url = https://xdg/simple\n",
        );
        assert_eq!(shown(&machine), "https://xdg/simple");
        machine.write(
            "/etc/pip.conf",
            "[global]\nindex_url: https://etc/simple/\n",
        );
        assert_eq!(shown(&machine), "https://etc/simple");
        machine.write(
            "/home/ada/.config/pip/pip.conf",
            "[install]\n# index-url = https://no/simple\nindex-url=https://user/simple\n[global]\nindex-url = https://weak/simple\n",
        );
        assert_eq!(shown(&machine), "https://user/simple");
        machine.set("PIP_CONFIG_FILE", "/dev/null");
        assert_eq!(shown(&machine), DEFAULT);
        machine.set("PIP_INDEX_URL", "https://env/simple");
        assert_eq!(shown(&machine), "https://env/simple");
    }

    #[test]
    fn credentials_are_kept_for_use_and_never_shown() {
        let mut machine = FakeMachine::default();
        machine.set("PIP_INDEX_URL", "https://me:p%40ss@mirror/simple/");
        let index = package_index(&machine.roots()).unwrap();
        assert_eq!(index.shown(), "https://mirror/simple");
        assert_eq!(index.url().password(), Some("p%40ss"));
        assert_eq!(index.secrets(), ["p@ss", "p%40ss"]);
        assert!(!format!("{index:?}").contains("p%40ss"));
        machine.set("PIP_INDEX_URL", "https://token123@mirror/simple/");
        let index = package_index(&machine.roots()).unwrap();
        assert_eq!(index.shown(), "https://mirror/simple");
        assert_eq!(index.secrets(), ["token123", "token123"]);
    }

    #[test]
    fn an_index_that_is_no_web_address_is_none() {
        let mut machine = FakeMachine::default();
        machine.set("PIP_INDEX_URL", "file:///srv/wheels");
        assert_eq!(package_index(&machine.roots()), None);
    }
}
