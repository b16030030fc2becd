//! Which CUDA toolkit builds for a set of GPUs, and which compilers that toolkit accepts.
//!
//! Decided before building: a compiler that is too new for `nvcc` fails only minutes into a build.

use engine_provider_api::{Compiler, CudaToolkit, Facts, Gpu, PackageManager, ProviderError};

/// A toolkit with everything its build needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cuda<'a> {
    /// The toolkit.
    pub toolkit: &'a CudaToolkit,
    /// Compilers that it accepts, best first; at least one.
    pub hosts: Vec<&'a Compiler>,
    /// Value for `CMAKE_CUDA_ARCHITECTURES`, for example `86-real;90-real`.
    pub architectures: String,
}

/// A version of CUDA, major and minor.
type Version = (u32, u32);

/// Oldest toolkit that knows a compute capability (times ten), oldest capability first.
///
/// Source: the release notes of the CUDA toolkit.
const KNOWN_SINCE: &[(u32, Version)] = &[
    (80, (11, 0)),
    (86, (11, 1)),
    (89, (11, 8)),
    (90, (11, 8)),
    (100, (12, 8)),
    (103, (12, 9)),
    (120, (12, 8)),
    (121, (12, 9)),
];

/// Chooses the first toolkit that the driver can serve, that knows every GPU, and for which a
/// compiler is there. The error lists why each was left out.
pub fn choose<'a>(gpus: &[&Gpu], facts: &'a Facts) -> Result<Cuda<'a>, ProviderError> {
    let mut misfits = Vec::new();
    for toolkit in &facts.cuda {
        match fit(toolkit, gpus, facts) {
            Ok(hosts) => {
                return Ok(Cuda {
                    toolkit,
                    hosts,
                    architectures: architectures(gpus),
                });
            }
            Err(misfit) => misfits.push((toolkit, misfit)),
        }
    }
    if misfits.is_empty() {
        let message = "this machine has a GPU but no CUDA toolkit";
        let error = ProviderError::unavailable(message)
            .because("looked for nvcc on PATH, in /usr/local/cuda* and in /opt/cuda*");
        return Err(install(error, facts, "install the CUDA toolkit", TOOLKIT));
    }
    // The toolkit that would have been taken first is the one worth repairing.
    let error = ProviderError::unavailable("no CUDA toolkit of this machine fits it");
    let error = match &misfits[0].1 {
        Misfit::Other { fix, .. } => error.hint(fix),
        Misfit::Compiler(_) => install(
            error,
            facts,
            "install a compiler that CUDA accepts",
            COMPILER,
        ),
    };
    let reasons = misfits
        .iter()
        .map(|(toolkit, misfit)| format!("{}: {}", toolkit.root, misfit.reason()));
    Err(reasons.fold(error, ProviderError::because))
}

/// Why a toolkit is left out.
enum Misfit {
    /// No compiler that it accepts is there.
    Compiler(String),
    /// It does not go with the driver or with a GPU.
    Other { reason: String, fix: String },
}

impl Misfit {
    fn reason(&self) -> &str {
        match self {
            Self::Compiler(reason) | Self::Other { reason, .. } => reason,
        }
    }
}

const TOOLKIT: &[(&str, &str)] = &[
    ("apt", "sudo apt-get install nvidia-cuda-toolkit"),
    ("dnf", "sudo dnf install cuda-toolkit"),
    ("pacman", "sudo pacman -S cuda"),
];
const COMPILER: &[(&str, &str)] = &[
    ("apt", "sudo apt-get install gcc-12 g++-12"),
    ("dnf", "sudo dnf install gcc13-c++"),
    ("pacman", "sudo pacman -S gcc13"),
];

fn install(
    error: ProviderError,
    facts: &Facts,
    text: &str,
    commands: &[(&str, &str)],
) -> ProviderError {
    let family = |manager: &PackageManager| manager.family.clone();
    let family = facts
        .package_manager
        .as_ref()
        .map(family)
        .unwrap_or_default();
    match commands.iter().find(|(name, _)| *name == family) {
        Some((_, command)) => error.fix(text, *command),
        None => error.hint(text),
    }
}

/// Compilers for a toolkit, or why it does not fit.
fn fit<'a>(
    toolkit: &CudaToolkit,
    gpus: &[&Gpu],
    facts: &'a Facts,
) -> Result<Vec<&'a Compiler>, Misfit> {
    let have = version(&toolkit.version);
    let driver = facts.gpus.cuda.as_deref().unwrap_or_default();
    if !driver.is_empty() && have.0 > version(driver).0 {
        return Err(Misfit::Other {
            reason: format!(
                "CUDA {} is newer than the driver, which serves {driver}",
                toolkit.version
            ),
            fix: format!(
                "update the GPU driver, or install a CUDA {} toolkit beside it",
                version(driver).0
            ),
        });
    }
    for gpu in gpus {
        let capability = capability(gpu);
        let since = KNOWN_SINCE.iter().rfind(|(known, _)| *known <= capability);
        if since.is_some_and(|(_, since)| have < *since) || (have.0 >= 13 && capability < 75) {
            return Err(Misfit::Other {
                reason: format!(
                    "CUDA {} cannot build for {} (compute capability {})",
                    toolkit.version, gpu.name, gpu.compute_capability
                ),
                fix: match since {
                    Some((_, (major, minor))) => {
                        format!("install the CUDA toolkit {major}.{minor} or newer")
                    }
                    None => "install a CUDA 12 toolkit beside it".to_owned(),
                },
            });
        }
    }
    let hosts = hosts(toolkit, &facts.compilers);
    if hosts.is_empty() {
        return Err(Misfit::Compiler(format!(
            "CUDA {} accepts gcc up to {}, and there is {}",
            toolkit.version,
            toolkit
                .max_gcc
                .map_or("?".to_owned(), |major| major.to_string()),
            list(&facts.compilers)
        )));
    }
    Ok(hosts)
}

/// GCCs newest first, then Clangs that the toolkit is known to accept.
fn hosts<'a>(toolkit: &CudaToolkit, compilers: &'a [Compiler]) -> Vec<&'a Compiler> {
    let gcc = |compiler: &&Compiler| {
        compiler.family == "gcc" && toolkit.max_gcc.is_none_or(|max| compiler.major <= max)
    };
    let clang = |compiler: &&Compiler| {
        compiler.family == "clang" && toolkit.max_clang.is_some_and(|max| compiler.major <= max)
    };
    compilers
        .iter()
        .filter(gcc)
        .chain(compilers.iter().filter(clang))
        .collect()
}

fn architectures(gpus: &[&Gpu]) -> String {
    let mut all: Vec<u32> = gpus.iter().map(|gpu| capability(gpu)).collect();
    all.sort_unstable();
    all.dedup();
    let all: Vec<String> = all.iter().map(|one| format!("{one}-real")).collect();
    all.join(";")
}

/// `8.6` as 86.
fn capability(gpu: &Gpu) -> u32 {
    let (major, minor) = version(&gpu.compute_capability);
    major * 10 + minor
}

fn version(text: &str) -> Version {
    let mut numbers = text.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn list(compilers: &[Compiler]) -> String {
    if compilers.is_empty() {
        return "no compiler".to_owned();
    }
    let name = |compiler: &Compiler| format!("{} {}", compiler.family, compiler.version);
    let all: Vec<String> = compilers.iter().map(name).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn facts(toolkits: &[(&str, u32)], gcc: &[u32], driver: &str) -> Facts {
        let toolkit = |(version, max): &(&str, u32)| json!({ "root": format!("/opt/cuda-{version}"), "version": version, "max_gcc": max });
        let compiler = |major: &u32| json!({ "family": "gcc", "major": major, "version": format!("{major}.1.0") });
        serde_json::from_value(json!({
            "cuda": toolkits.iter().map(toolkit).collect::<Vec<_>>(),
            "compilers": gcc.iter().map(compiler).collect::<Vec<_>>(),
            "gpus": { "cuda": driver },
            "package_manager": { "family": "apt", "path": "/usr/bin/apt-get" },
        }))
        .unwrap()
    }

    fn card(capability: &str) -> Gpu {
        Gpu {
            name: "Card".to_owned(),
            compute_capability: capability.to_owned(),
            ..Gpu::default()
        }
    }

    fn advice(error: &ProviderError) -> &str {
        let [hint] = error.hints.as_slice() else {
            panic!("one hint expected: {:?}", error.hints);
        };
        &hint.text
    }

    #[test]
    fn the_newest_compiler_that_nvcc_accepts_comes_first() {
        let facts = facts(&[("12.4", 13)], &[15, 13, 12], "12.8");
        let (one, other) = (card("9.0"), card("8.6"));
        let cuda = choose(&[&one, &other, &one], &facts).unwrap();
        let majors: Vec<u32> = cuda.hosts.iter().map(|host| host.major).collect();
        assert_eq!(majors, [13, 12]);
        assert_eq!(cuda.architectures, "86-real;90-real");
    }

    #[test]
    fn a_toolkit_that_does_not_fit_is_passed_over_and_named() {
        let card = card("8.6");
        let both = facts(&[("13.0", 15), ("12.4", 13)], &[12], "12.8");
        assert_eq!(choose(&[&card], &both).unwrap().toolkit.version, "12.4");

        let newer = facts(&[("13.0", 15)], &[15], "12.8");
        let error = choose(&[&card], &newer).unwrap_err();
        assert_eq!(
            error.causes,
            ["/opt/cuda-13.0: CUDA 13.0 is newer than the driver, which serves 12.8"]
        );
        assert_eq!(
            advice(&error),
            "update the GPU driver, or install a CUDA 12 toolkit beside it"
        );
    }

    #[test]
    fn a_gpu_that_the_toolkit_does_not_know_is_named() {
        let facts = facts(&[("12.4", 13)], &[12], "12.8");
        let error = choose(&[&card("12.0")], &facts).unwrap_err();
        assert_eq!(
            error.causes,
            ["/opt/cuda-12.4: CUDA 12.4 cannot build for Card (compute capability 12.0)"]
        );
        assert_eq!(advice(&error), "install the CUDA toolkit 12.8 or newer");
        let facts = self::facts(&[("13.0", 15)], &[13], "13.0");
        let error = choose(&[&card("7.0")], &facts).unwrap_err();
        assert_eq!(advice(&error), "install a CUDA 12 toolkit beside it");
    }

    #[test]
    fn a_compiler_too_new_and_a_missing_toolkit_are_refused_with_a_command() {
        let card = card("8.6");
        let error = choose(&[&card], &facts(&[("12.4", 13)], &[15], "12.8")).unwrap_err();
        assert_eq!(
            error.causes,
            ["/opt/cuda-12.4: CUDA 12.4 accepts gcc up to 13, and there is gcc 15.1.0"]
        );
        let error = choose(&[&card], &facts(&[], &[12], "12.8")).unwrap_err();
        assert_eq!(error.message, "this machine has a GPU but no CUDA toolkit");
        assert_eq!(
            error.hints[0].command.as_deref(),
            Some("sudo apt-get install nvidia-cuda-toolkit")
        );
    }
}
