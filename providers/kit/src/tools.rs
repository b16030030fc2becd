//! Tools that builds need: how they are found and which packages carry them.

use std::collections::BTreeMap;

use engine_provider_api::{Mode, ToolProbe, ToolRequirement};

struct Row {
    name: &'static str,
    programs: &'static [&'static str],
    apt: &'static [&'static str],
    dnf: &'static [&'static str],
    pacman: &'static [&'static str],
}

/// `cc` and `cxx` are the C and C++ compilers: a placeholder may hold no `+`.
const TABLE: &[Row] = &[
    Row {
        name: "git",
        programs: &["git"],
        apt: &["git"],
        dnf: &["git-core"],
        pacman: &["git"],
    },
    Row {
        name: "cmake",
        programs: &["cmake"],
        apt: &["cmake"],
        dnf: &["cmake"],
        pacman: &["cmake"],
    },
    Row {
        name: "ninja",
        programs: &["ninja", "ninja-build"],
        apt: &["ninja-build"],
        dnf: &["ninja-build"],
        pacman: &["ninja"],
    },
    Row {
        name: "make",
        programs: &["make", "gmake"],
        apt: &["make"],
        dnf: &["make"],
        pacman: &["make"],
    },
    Row {
        name: "cc",
        programs: &["cc", "gcc", "clang"],
        // Without the C library's headers and start files nothing can be linked; apt only recommends them.
        apt: &["gcc", "libc6-dev"],
        dnf: &["gcc"],
        pacman: &["gcc"],
    },
    Row {
        name: "cxx",
        programs: &["c++", "g++", "clang++"],
        apt: &["g++"],
        dnf: &["gcc-c++"],
        pacman: &["gcc"],
    },
    Row {
        name: "ccache",
        programs: &["ccache"],
        apt: &["ccache"],
        dnf: &["ccache"],
        pacman: &["ccache"],
    },
];

/// How the host finds a tool of the table.
///
/// # Panics
///
/// Where the table has no such tool: a mistake of the provider's author, seen by its first test.
#[must_use]
pub fn probe(name: &str, needed_by: &[Mode]) -> ToolProbe {
    let row = row(name);
    ToolProbe {
        name: row.name.to_owned(),
        programs: row.programs.iter().map(|&text| text.to_owned()).collect(),
        version_args: vec!["--version".to_owned()],
        extra_directories: Vec::new(),
        needed_by: needed_by.to_vec(),
        packages: packages(row),
    }
}

/// What a plan says about a tool that it needs.
///
/// # Panics
///
/// As [`probe`].
#[must_use]
pub fn requirement(name: &str, purpose: &str, minimum_version: &str) -> ToolRequirement {
    let row = row(name);
    ToolRequirement {
        name: row.name.to_owned(),
        purpose: purpose.to_owned(),
        minimum_version: minimum_version.to_owned(),
        packages: packages(row),
        optional: false,
    }
}

fn row(name: &str) -> &'static Row {
    let found = TABLE.iter().find(|row| row.name == name);
    found.unwrap_or_else(|| panic!("the table of tools has no `{name}`"))
}

fn packages(row: &Row) -> BTreeMap<String, Vec<String>> {
    [("apt", row.apt), ("dnf", row.dnf), ("pacman", row.pacman)]
        .into_iter()
        .map(|(family, names)| {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            (family.to_owned(), names)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_a_package_in_every_family() {
        for row in TABLE {
            let probe = probe(row.name, &[Mode::Source]);
            assert_eq!(probe.packages.len(), 3, "{}", row.name);
            assert!(probe.packages.values().all(|names| !names.is_empty()));
            let placeholder = format!("{{tool.{}}}", row.name);
            assert!(
                engine_provider_api::Template::new(placeholder)
                    .pieces()
                    .is_ok()
            );
        }
    }
}
