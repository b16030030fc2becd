//! Who builds and runs engines.

use std::path::Path;

use crate::process::Identity;

/// User and group id that builds get when the host runs as root and nothing else is
/// configured.
///
/// Numeric on purpose: no account is created. Above the ids that distributions give out
/// (`UID_MAX` 60000 of login.defs(5)) and outside systemd's dynamic range (61184 to 65519 is
/// *reserved for* `DynamicUser=`, which takes ids at random but skips those that own files), below
/// the 65534 of `nobody`.
pub const SANDBOX_ID: u32 = 64738;

/// The same for engines: another one than builds have, so that neither can trace the other, read its
/// secrets or write what it will run.
pub const ENGINE_SANDBOX_ID: u32 = 64739;

/// Who runs the host, and the accounts of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Text of passwd(5).
    pub passwd: String,
    /// Text of group(5).
    pub group: String,
}

impl Caller {
    /// This process, with the accounts below a root directory (`/`).
    #[must_use]
    pub fn of_this_process(root: &Path) -> Self {
        let text = |name: &str| std::fs::read_to_string(root.join(name)).unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            passwd: text("etc/passwd"),
            group: text("etc/group"),
        }
    }

    /// Whether it may become somebody else.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// What it runs as itself.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity {
            uid: self.uid,
            gid: self.gid,
        }
    }

    #[cfg(test)]
    pub(crate) fn test_root() -> Self {
        Self {
            passwd: "root:x:0:0::/root:/bin/sh\nada:x:1000:1001::/home/ada:/bin/sh\n".into(),
            group: "root:x:0:\nada:x:1001:\nvideo:x:44:ada\n".into(),
            ..Self::default()
        }
    }

    #[cfg(test)]
    pub(crate) fn test_user() -> Self {
        Self {
            uid: 1000,
            gid: 1001,
            ..Self::test_root()
        }
    }
}

/// Reads `root`, `uid`, `uid:gid`, `user` or `user:group`; a number alone is user and group.
pub fn parse_identity(text: &str, caller: &Caller) -> Result<Identity, String> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let account = |name: &str| field(&caller.passwd, name);
    let (uid, own_gid) = match user.parse::<u32>() {
        Ok(uid) => (uid, uid),
        Err(_) => account(user).ok_or_else(|| format!("there is no user `{user}` here"))?,
    };
    let gid = match group {
        None => own_gid,
        Some(group) => match group.parse::<u32>() {
            Ok(gid) => gid,
            Err(_) => {
                let found = field(&caller.group, group);
                found
                    .ok_or_else(|| format!("there is no group `{group}` here"))?
                    .0
            }
        },
    };
    Ok(Identity { uid, gid })
}

/// Third and fourth field of a line of passwd(5) or group(5); a missing fourth repeats the third.
fn field(text: &str, name: &str) -> Option<(u32, u32)> {
    let line = text
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    let first = fields.next()?.parse().ok()?;
    let second = fields.next().and_then(|text| text.parse().ok());
    Some((first, second.unwrap_or(first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_numbers_or_accounts() {
        let caller = Caller::test_root();
        let read = |text: &str| parse_identity(text, &caller).map(|id| (id.uid, id.gid));
        assert_eq!(read("64738:64738"), Ok((64738, 64738)));
        assert_eq!(read("5000"), Ok((5000, 5000)));
        assert_eq!(read("root"), Ok((0, 0)));
        assert_eq!(read("ada"), Ok((1000, 1001)));
        assert_eq!(read("ada:video"), Ok((1000, 44)));
        assert_eq!(read("bob"), Err("there is no user `bob` here".to_owned()));
        assert_eq!(read("ada:x"), Err("there is no group `x` here".to_owned()));
        assert!(read("-1").is_err());
    }
}
