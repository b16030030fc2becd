//! CUDA, ROCm and Vulkan toolkits.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use engine_provider_api::{CudaToolkit, Toolkit};
use regex::Regex;

use super::{
    asking::{Said, Versions},
    roots::Roots,
    tools::numbers,
};

/// Variables that name a CUDA root.
const ROOT_VARIABLES: &[&str] = &["CUDAToolkit_ROOT", "CUDA_HOME", "CUDA_PATH"];

/// CUDA toolkits, best first: the one on `PATH`, then those that variables name, then
/// `/usr/local/cuda*` and `/opt/cuda*`, newest first.
pub(super) async fn toolkits(versions: &Versions<'_>) -> Vec<CudaToolkit> {
    let roots = versions.roots;
    let mut seen = BTreeSet::new();
    let mut chosen = Vec::new();
    let mut usual = Vec::new();
    for root in chosen_roots(roots) {
        chosen.extend(toolkit(versions, &root, &mut seen).await);
    }
    for root in usual_roots(roots) {
        usual.extend(toolkit(versions, &root, &mut seen).await);
    }
    usual.sort_by_key(|it| std::cmp::Reverse(numbers(&it.version)));
    chosen.extend(usual);
    chosen
}

fn chosen_roots(roots: &Roots) -> Vec<PathBuf> {
    let on_path = roots.program("nvcc").and_then(|nvcc| {
        let root = |path: &Path| Some(path.parent()?.parent()?.to_owned());
        // A link leads to the toolkit; a wrapper script stands beside what it wraps.
        root(&roots.followed(&nvcc)).or_else(|| root(&nvcc))
    });
    let named = ROOT_VARIABLES
        .iter()
        .filter_map(|name| roots.environment().path(name));
    on_path.into_iter().chain(named).collect()
}

fn usual_roots(roots: &Roots) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for parent in ["/usr/local", "/opt"] {
        let names = roots.names(parent).into_iter();
        let named = names.filter(|name| name == "cuda" || name.starts_with("cuda-"));
        found.extend(named.map(|name| Path::new(parent).join(name)));
    }
    found
}

async fn toolkit(
    versions: &Versions<'_>,
    root: &Path,
    seen: &mut BTreeSet<PathBuf>,
) -> Option<CudaToolkit> {
    let roots = versions.roots;
    let nvcc = root.join("bin/nvcc");
    let reachable = versions
        .identity
        .is_none_or(|identity| roots.out_of_reach(&nvcc, identity).is_none());
    if !roots.is_program(&nvcc) || !reachable || !seen.insert(roots.followed(&nvcc)) {
        return None;
    }
    let version = match version_file(roots, root) {
        Some(version) => version,
        None => match versions.of(&nvcc, &["--version".to_owned()]).await {
            Said::Version(version) => version,
            Said::Unusable(_) => return None,
        },
    };
    let header = host_config(roots, root).unwrap_or_default();
    Some(CudaToolkit {
        root: root.to_string_lossy().into_owned(),
        version: major_minor(&version),
        nvcc: nvcc.to_string_lossy().into_owned(),
        max_gcc: newest_accepted(&header, "__GNUC__"),
        max_clang: newest_accepted(&header, "__clang_major__"),
    })
}

/// `version.json` (since 11.1), or `version.txt` of older toolkits.
fn version_file(roots: &Roots, root: &Path) -> Option<String> {
    let json = roots.text(root.join("version.json"));
    let json: Option<serde_json::Value> = json.and_then(|text| serde_json::from_str(&text).ok());
    let from_json = json.and_then(|json| Some(json.pointer("/cuda/version")?.as_str()?.to_owned()));
    from_json.or_else(|| super::system::version_in(&roots.text(root.join("version.txt"))?))
}

fn major_minor(version: &str) -> String {
    version.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// The header in which nvcc refuses host compilers.
fn host_config(roots: &Roots, root: &Path) -> Option<String> {
    let targets = roots.names(root.join("targets")).into_iter();
    let targets = targets.map(|name| root.join("targets").join(name).join("include"));
    std::iter::once(root.join("include"))
        .chain(targets)
        .flat_map(|include| {
            [
                include.join("crt/host_config.h"),
                include.join("host_config.h"),
            ]
        })
        .find_map(|path| roots.text(path).filter(|text| text.contains("__GNUC__")))
}

/// Newest major version that passes the header's `#if MACRO > N` or `#if (MACRO >= N)`.
fn newest_accepted(header: &str, compiler: &str) -> Option<u32> {
    static TEST: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?m)^\s*#\s*if\s*\(?\s*(__GNUC__|__clang_major__)\s*(>=?)\s*([0-9]+)")
            .expect("the pattern is a constant")
    });
    let tests = TEST
        .captures_iter(header)
        .filter(|test| &test[1] == compiler);
    tests
        .filter_map(|test| {
            let number: u32 = test[3].parse().ok()?;
            Some(if &test[2] == ">=" {
                number.checked_sub(1)?
            } else {
                number
            })
        })
        .max()
}

/// A ROCm toolkit: `ROCM_PATH`, else `/opt/rocm*`, newest first.
pub(super) fn rocm(roots: &Roots) -> Option<Toolkit> {
    let named = roots.environment().path("ROCM_PATH");
    let mut usual: Vec<PathBuf> = roots
        .names("/opt")
        .into_iter()
        .filter(|name| name == "rocm" || name.starts_with("rocm-"))
        .map(|name| Path::new("/opt").join(name))
        .collect();
    let version = |root: &Path| {
        let text = roots.word(root.join(".info/version")).unwrap_or_default();
        super::system::version_in(&text).unwrap_or_default()
    };
    usual.sort_by_key(|root| std::cmp::Reverse(numbers(&version(root))));
    let mut all = named.into_iter().chain(usual);
    all.find(|root| {
        roots.is_program(root.join("bin/hipcc")) || roots.exists(root.join("include/hip"))
    })
    .map(|root| Toolkit {
        version: version(&root),
        root: root.to_string_lossy().into_owned(),
    })
}

/// Vulkan: the headers and a shader compiler, both.
pub(super) fn vulkan(roots: &Roots) -> Option<Toolkit> {
    static HEADER: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"VK_MAKE_API_VERSION\(0, ([0-9]+), ([0-9]+), VK_HEADER_VERSION\)")
            .expect("the pattern is a constant")
    });
    let sdk = roots.environment().path("VULKAN_SDK");
    let places = sdk
        .into_iter()
        .chain(["/usr", "/usr/local"].map(PathBuf::from));
    let mut with_header = places.filter_map(|root| {
        let header = roots.text(root.join("include/vulkan/vulkan_core.h"))?;
        Some((root, header))
    });
    let (root, header) = with_header.next()?;
    let compiler = roots.is_program(root.join("bin/glslc")) || roots.program("glslc").is_some();
    if !compiler {
        return None;
    }
    let patch = header.lines().find_map(|line| {
        line.strip_prefix("#define VK_HEADER_VERSION ")
            .map(str::trim)
    });
    let version = HEADER
        .captures(&header)
        .zip(patch)
        .map(|(found, patch)| format!("{}.{}.{patch}", &found[1], &found[2]));
    Some(Toolkit {
        root: root.to_string_lossy().into_owned(),
        version: version.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_compiler_is_read_from_the_header_that_refuses_newer_ones() {
        let header = "#if defined(__GNUC__)\n#if __GNUC__ > 13\n#error -- unsupported GNU version!\n\
            #if (__clang_major__ >= 18) || (__clang_major__ < 3) || ((__clang_major__ == 3) && 1)\n#error\n";
        assert_eq!(newest_accepted(header, "__GNUC__"), Some(13));
        assert_eq!(newest_accepted(header, "__clang_major__"), Some(17));
        assert_eq!(newest_accepted("", "__GNUC__"), None);
        let old = "#if __GNUC__ > 4 || (__GNUC__ == 4 && __GNUC_MINOR__ > 9)\n";
        assert_eq!(newest_accepted(old, "__GNUC__"), Some(4));
    }
}
