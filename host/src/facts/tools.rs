//! Tools that providers name, and compilers.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use engine_provider_api::{Compiler, Tool, ToolProbe};
use futures_util::future::join_all;

use super::asking::{Said, Versions};

/// A program that was found and not taken.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Skipped {
    /// Name of the tool.
    pub tool: String,
    /// The program.
    pub path: PathBuf,
    /// Why it was not taken.
    pub reason: String,
}

/// Looks for tools, all at once.
pub(super) async fn tools(
    versions: &Versions<'_>,
    probes: &[ToolProbe],
) -> (BTreeMap<String, Tool>, Vec<Skipped>) {
    let found = join_all(probes.iter().map(|probe| tool(versions, probe))).await;
    let mut tools = BTreeMap::new();
    let mut skipped = Vec::new();
    for (probe, (tool, mut passed_over)) in probes.iter().zip(found) {
        skipped.append(&mut passed_over);
        if let Some(tool) = tool {
            tools.insert(probe.name.clone(), tool);
        }
    }
    (tools, skipped)
}

/// The first program that can be used: by the probe's preference, then along the search path.
async fn tool(versions: &Versions<'_>, probe: &ToolProbe) -> (Option<Tool>, Vec<Skipped>) {
    let mut skipped = Vec::new();
    for path in candidates(versions, probe) {
        let reason = match usable(versions, &path) {
            Some(reason) => reason,
            None => match versions.of(&path, &probe.version_args).await {
                Said::Version(version) => {
                    let path = path.to_string_lossy().into_owned();
                    return (Some(Tool { path, version }), skipped);
                }
                Said::Unusable(reason) => reason,
            },
        };
        skipped.push(Skipped {
            tool: probe.name.clone(),
            path,
            reason,
        });
    }
    (None, skipped)
}

fn candidates(versions: &Versions<'_>, probe: &ToolProbe) -> Vec<PathBuf> {
    let roots = versions.roots;
    let extra = probe.extra_directories.iter().map(PathBuf::from);
    let directories: Vec<PathBuf> = roots.search_path().iter().cloned().chain(extra).collect();
    let mut paths = Vec::new();
    for program in &probe.programs {
        for path in directories.iter().map(|directory| directory.join(program)) {
            if !paths.contains(&path) && roots.is_program(&path) {
                paths.push(path);
            }
        }
    }
    paths
}

/// Why whoever builds and runs engines could not use a program.
fn usable(versions: &Versions<'_>, path: &Path) -> Option<String> {
    versions.roots.out_of_reach(path, versions.identity?)
}

/// Pairs of C and C++ compilers, newest first.
pub(super) async fn compilers(versions: &Versions<'_>) -> Vec<Compiler> {
    let pairs = compiler_pairs(versions);
    let asked = join_all(pairs.into_iter().map(|pair| async move {
        let flag = match pair.family {
            // `-dumpversion` of gcc may be the major version alone.
            "gcc" => "-dumpfullversion",
            _ => "-dumpversion",
        };
        match versions.of(&pair.c, &[flag.to_owned()]).await {
            Said::Version(version) => to_compiler(&pair, version),
            Said::Unusable(_) => None,
        }
    }))
    .await;
    let mut compilers: Vec<Compiler> = asked.into_iter().flatten().collect();
    // gcc before clang of the same number: it is what distributions build with.
    compilers.sort_by(|a, b| {
        let number = |it: &Compiler| numbers(&it.version);
        (number(b), &a.family, &a.c).cmp(&(number(a), &b.family, &b.c))
    });
    compilers
}

struct Pair {
    family: &'static str,
    c: PathBuf,
    cxx: PathBuf,
}

fn to_compiler(pair: &Pair, version: String) -> Option<Compiler> {
    Some(Compiler {
        family: pair.family.to_owned(),
        major: version.split('.').next()?.parse().ok()?,
        version,
        c: pair.c.to_string_lossy().into_owned(),
        cxx: pair.cxx.to_string_lossy().into_owned(),
    })
}

/// `gcc`, `gcc-12`, `clang`, `clang-16`, … with their C++ sides; each program once.
fn compiler_pairs(versions: &Versions<'_>) -> Vec<Pair> {
    let roots = versions.roots;
    let usual = ["/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    let mut directories: Vec<PathBuf> = roots.search_path().to_vec();
    directories.extend(usual);
    let mut seen = BTreeSet::new();
    let mut pairs = Vec::new();
    for directory in directories {
        let mut names = roots.names_that(&directory, |name| compiler_name(name).is_some());
        // The plain name first: it wins over the numbered one it is a link to.
        names.sort_by_key(|name| (name.len(), name.clone()));
        for name in names {
            let Some((family, suffix)) = compiler_name(&name) else {
                continue;
            };
            let plus = if family == "gcc" { "g++" } else { "clang++" };
            let c = directory.join(&name);
            let cxx = directory.join(format!("{plus}{suffix}"));
            if !roots.is_program(&c) || !roots.is_program(&cxx) {
                continue;
            }
            let itself = roots.followed(&c);
            let cached = ["ccache", "sccache", "distcc"];
            let is_wrapper = itself.file_name().is_some_and(|name| {
                cached
                    .iter()
                    .any(|wrapper| name.to_string_lossy().starts_with(wrapper))
            });
            let reachable = usable(versions, &c).is_none() && usable(versions, &cxx).is_none();
            if !is_wrapper && reachable && seen.insert(itself) {
                pairs.push(Pair { family, c, cxx });
            }
        }
    }
    pairs
}

/// Family and suffix (`-12`, or nothing) of a C compiler's name.
fn compiler_name(name: &str) -> Option<(&'static str, &str)> {
    let (family, suffix) = match name.strip_prefix("gcc") {
        Some(suffix) => ("gcc", suffix),
        None => ("clang", name.strip_prefix("clang")?),
    };
    let number = suffix.strip_prefix('-');
    let numbered =
        number.is_some_and(|it| !it.is_empty() && it.bytes().all(|b| b.is_ascii_digit()));
    (suffix.is_empty() || numbered).then_some((family, suffix))
}

/// The numbers of a version, for comparing.
pub(super) fn numbers(version: &str) -> Vec<u64> {
    version
        .split('.')
        .map_while(|part| part.parse().ok())
        .collect()
}
