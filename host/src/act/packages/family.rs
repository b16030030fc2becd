//! Package managers: what is typed to install packages and to ask for them.

use std::path::{Path, PathBuf};

use super::Target;

/// A package manager that can be driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Apt,
    Dnf,
    Pacman,
}

/// Seconds that apt waits for another apt.
const APT_LOCK_TIMEOUT: &str = "DPkg::Lock::Timeout=300";

impl Family {
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "apt" => Some(Self::Apt),
            "dnf" => Some(Self::Dnf),
            "pacman" => Some(Self::Pacman),
            _ => None,
        }
    }

    /// Its name in plans and facts.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Apt => "apt",
            Self::Dnf => "dnf",
            Self::Pacman => "pacman",
        }
    }

    /// A package as it is named on the command line. Pacman knows no versions: what its repository
    /// has is compared before.
    pub(super) fn word(self, target: &Target) -> String {
        let Target {
            name,
            version,
            repository,
        } = target;
        match (self, version, repository) {
            (Self::Apt, Some(version), _) => format!("{name}={version}"),
            (Self::Apt, None, Some(suite)) => format!("{name}/{suite}"),
            (Self::Dnf, Some(version), _) => format!("{name}-{version}"),
            (Self::Pacman, _, Some(repository)) => format!("{repository}/{name}"),
            _ => name.clone(),
        }
    }

    /// Why a package cannot be asked for like this, if so.
    pub(in crate::act) fn objection(self, target: &Target) -> Option<&'static str> {
        match (self, &target.version, &target.repository) {
            (Self::Apt, Some(_), Some(_)) => {
                Some("apt takes a version or a suite, not both: leave `repo` out")
            }
            (Self::Dnf, _, Some(_)) => {
                Some("dnf does not choose a repository for one package: leave `repo` out")
            }
            _ => None,
        }
    }

    /// Arguments that install packages without asking.
    pub(super) fn install(self, packages: &[String]) -> Vec<String> {
        let fixed: &[&str] = match self {
            Self::Apt => &[
                "-y",
                "--no-install-recommends",
                "-o",
                APT_LOCK_TIMEOUT,
                "install",
                "--",
            ],
            Self::Dnf => &["-y", "install", "--"],
            Self::Pacman => &["-S", "--needed", "--noconfirm", "--"],
        };
        let fixed = fixed.iter().map(|&argument| argument.to_owned());
        fixed.chain(packages.iter().cloned()).collect()
    }

    /// Arguments that fetch the lists of packages, where an installation fails without.
    pub(super) fn refresh(self) -> Option<Vec<String>> {
        let words: &[&str] = match self {
            Self::Apt => &["-o", APT_LOCK_TIMEOUT, "update"],
            Self::Pacman => &["-Sy", "--noconfirm"],
            Self::Dnf => return None,
        };
        Some(words.iter().map(|&word| word.to_owned()).collect())
    }

    /// Whether a failed installation says that the lists are missing or old.
    ///
    /// For pacman only where there are none: newer lists without a whole upgrade break systems.
    pub(super) fn lists_are_stale(self, log: &str) -> bool {
        let words: &[&str] = match self {
            Self::Apt => &[
                "Unable to locate package",
                "has no installation candidate",
                "' was not found",
                "404  Not Found",
            ],
            Self::Pacman => &["database file for"],
            Self::Dnf => &[],
        };
        words.iter().any(|word| log.contains(word))
    }

    /// Whether a failed installation says that there is no such package, or not in this version.
    pub(super) fn says_unknown(self, log: &str) -> bool {
        let words: &[&str] = match self {
            Self::Apt => &[
                "Unable to locate package",
                "has no installation candidate",
                "' was not found",
            ],
            Self::Pacman => &["target not found"],
            Self::Dnf => &["No match for argument", "Unable to find a match"],
        };
        words.iter().any(|word| log.contains(word))
    }

    /// What a person would type.
    pub(crate) fn paste(self, packages: &[String], root: bool) -> String {
        let command = match self {
            Self::Apt => "apt-get install -y",
            Self::Dnf => "dnf install -y",
            Self::Pacman => "pacman -S --needed",
        };
        format!("{}{command} {}", sudo(root), packages.join(" "))
    }

    /// What a person would type to get an older version than the one that is installed; `offered`
    /// when the repository has it.
    pub(super) fn paste_downgrade(self, target: &Target, offered: bool, root: bool) -> String {
        let (word, name) = (self.word(target), &target.name);
        let version = target.version.as_deref().unwrap_or_default();
        let command = match self {
            Self::Apt => format!("apt-get install --allow-downgrades {word}"),
            Self::Dnf => format!("dnf downgrade {word}"),
            Self::Pacman if offered => format!("pacman -S {word}"),
            Self::Pacman => {
                format!("pacman -U /var/cache/pacman/pkg/{name}-{version}-*.pkg.tar.zst")
            }
        };
        format!("{}{command}", sudo(root))
    }

    /// What a person would type to learn of newer packages.
    pub(super) fn paste_refresh(self, root: bool) -> String {
        let command = match self {
            Self::Apt => "apt-get update",
            Self::Dnf => "dnf makecache --refresh",
            // Newer lists without a whole upgrade break systems.
            Self::Pacman => "pacman -Syu",
        };
        format!("{}{command}", sudo(root))
    }

    /// The program that is run: `apt` itself says that its command line is for people.
    pub(super) fn program(self, path: &Path) -> PathBuf {
        match self {
            Self::Apt => path.with_file_name("apt-get"),
            _ => path.to_owned(),
        }
    }
}

fn sudo(root: bool) -> &'static str {
    if root { "" } else { "sudo " }
}

/// Whether a text is a package's version or the name of a repository: no option, no other word.
pub(super) fn is_version(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+.~:^_-".contains(&byte);
    text.len() <= 128
        && text.bytes().all(plain)
        && text
            .bytes()
            .next()
            .is_some_and(|first| first.is_ascii_alphanumeric())
}

/// Whether a text is a package's name: no option, no path (`apt install ./x.deb` would run it), no
/// version or architecture.
pub(super) fn is_package_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+._-".contains(&byte);
    name.len() <= 128
        && name.bytes().all(plain)
        && name
            .bytes()
            .next()
            .is_some_and(|first| first.is_ascii_alphanumeric())
        // apt reads a trailing sign as "remove" or "keep".
        && !name.ends_with('-')
}

/// Whether a version is at least another, compared number by number; empty ones always are.
pub(crate) fn is_at_least(version: &str, minimum: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> {
        text.split(|character: char| !character.is_ascii_digit())
            .filter_map(|number| number.parse().ok())
            .collect()
    };
    let (mut have, mut need) = (numbers(version), numbers(minimum));
    if have.is_empty() {
        return true;
    }
    let length = have.len().max(need.len());
    have.resize(length, 0);
    need.resize(length, 0);
    have >= need
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_be_something_else_are_refused() {
        for good in ["cmake", "g++", "gcc-12", "libc6.1-dev", "ImageMagick"] {
            assert!(is_package_name(good), "{good}");
        }
        for bad in [
            "",
            "-y",
            "./x.deb",
            "/x.deb",
            "a b",
            "a=1",
            "a:i386",
            "a/testing",
            "a-",
            "$(id)",
            "+a",
        ] {
            assert!(!is_package_name(bad), "{bad}");
        }
    }

    #[test]
    fn names_come_after_the_end_of_options() {
        for family in [Family::Apt, Family::Dnf, Family::Pacman] {
            let arguments = family.install(&["cmake".to_owned()]);
            let end = arguments.len() - 2;
            assert_eq!(arguments[end..], ["--", "cmake"], "{family:?}");
        }
    }

    #[test]
    fn versions_and_repositories_are_words_of_their_family() {
        let target = |version: Option<&str>, repository: Option<&str>| Target {
            name: "toy".to_owned(),
            version: version.map(str::to_owned),
            repository: repository.map(str::to_owned),
        };
        let word = |family: Family, version, repository| family.word(&target(version, repository));
        assert_eq!(word(Family::Apt, Some("1:2-3"), None), "toy=1:2-3");
        assert_eq!(word(Family::Apt, None, Some("bookworm")), "toy/bookworm");
        assert_eq!(word(Family::Dnf, Some("2-3"), None), "toy-2-3");
        assert_eq!(
            word(Family::Pacman, Some("2-3"), Some("extra")),
            "extra/toy"
        );
        assert_eq!(word(Family::Pacman, None, None), "toy");
        let objects =
            |family: Family, version, repository| family.objection(&target(version, repository));
        assert!(objects(Family::Dnf, None, Some("updates")).is_some());
        assert!(objects(Family::Apt, Some("1"), Some("sid")).is_some());
        assert!(objects(Family::Pacman, Some("1"), Some("extra")).is_none());
        for bad in ["", "-y", "1 2", "1;id", "1')", "../x", "a/b"] {
            assert!(!is_version(bad), "{bad}");
        }
        assert!(is_version("1:2.3~rc1+dfsg-4^git"));
    }

    #[test]
    fn an_older_version_is_a_command_for_a_person() {
        let target = Target {
            name: "toy".to_owned(),
            version: Some("1-1".to_owned()),
            repository: None,
        };
        let paste = |family: Family, offered| family.paste_downgrade(&target, offered, false);
        assert_eq!(
            paste(Family::Apt, false),
            "sudo apt-get install --allow-downgrades toy=1-1"
        );
        assert_eq!(paste(Family::Dnf, false), "sudo dnf downgrade toy-1-1");
        assert_eq!(paste(Family::Pacman, true), "sudo pacman -S toy");
        assert_eq!(
            paste(Family::Pacman, false),
            "sudo pacman -U /var/cache/pacman/pkg/toy-1-1-*.pkg.tar.zst"
        );
    }

    #[test]
    fn versions_are_compared_by_numbers() {
        assert!(is_at_least("3.25.1", "3.18"));
        assert!(is_at_least("3.18", "3.18.0"));
        assert!(!is_at_least("3.9", "3.18"));
        assert!(is_at_least("", "3.18"));
        assert!(is_at_least("2.39.5 (Debian)", "2.20"));
    }

    #[test]
    fn what_is_shown_can_be_pasted() {
        let packages = ["cmake".to_owned(), "git".to_owned()];
        assert_eq!(
            Family::Apt.paste(&packages, false),
            "sudo apt-get install -y cmake git"
        );
        assert_eq!(
            Family::Pacman.paste(&packages, true),
            "pacman -S --needed cmake git"
        );
    }
}
