//! Package managers: what is typed to install packages.

use std::path::{Path, PathBuf};

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
                "404  Not Found",
            ],
            Self::Pacman => &["database file for"],
            Self::Dnf => &[],
        };
        words.iter().any(|word| log.contains(word))
    }

    /// What a person would type.
    pub(crate) fn paste(self, packages: &[String], root: bool) -> String {
        let sudo = if root { "" } else { "sudo " };
        let command = match self {
            Self::Apt => "apt-get install -y",
            Self::Dnf => "dnf install -y",
            Self::Pacman => "pacman -S --needed",
        };
        format!("{sudo}{command} {}", packages.join(" "))
    }

    /// The program that is run: `apt` itself says that its command line is for people.
    pub(super) fn program(self, path: &Path) -> PathBuf {
        match self {
            Self::Apt => path.with_file_name("apt-get"),
            _ => path.to_owned(),
        }
    }
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
