//! What computes: CUDA, HIP, Vulkan or the processor, and on which GPUs.

use std::collections::BTreeMap;

use crate::cmake::Given;
use engine_provider_api::{Facts, Gpu, GpuPolicy, Pool, ProviderError, Toolkit};
use engine_provider_kit::{
    cuda::{self, Cuda},
    gpu::{self, Choice},
};

/// A compute back end of ggml.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The processor.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// AMD GPUs.
    Hip,
    /// GPUs of any vendor.
    Vulkan,
}

impl Backend {
    pub(crate) const GPU: [Self; 3] = [Self::Cuda, Self::Hip, Self::Vulkan];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::Vulkan => "vulkan",
        }
    }

    /// cmake options that switch it on: today's, then those of older releases.
    pub(crate) fn switches(self) -> &'static [&'static str] {
        match self {
            Self::Cpu => &[],
            Self::Cuda => &["GGML_CUDA", "LLAMA_CUBLAS", "LLAMA_CUDA"],
            Self::Hip => &["GGML_HIP", "GGML_HIPBLAS", "LLAMA_HIPBLAS"],
            Self::Vulkan => &["GGML_VULKAN", "LLAMA_VULKAN"],
        }
    }

    /// What llama-server calls its devices, before their number.
    pub(crate) fn device_prefix(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Cuda => "CUDA",
            Self::Hip => "ROCm",
            Self::Vulkan => "Vulkan",
        }
    }
}

/// A back end with what its build and run need.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub backend: Backend,
    /// GPUs in the order the engine sees them; empty for the processor.
    pub gpus: Vec<&'a Gpu>,
    pub cuda: Option<Cuda<'a>>,
    /// ROCm or Vulkan.
    pub toolkit: Option<&'a Toolkit>,
}

impl Backend {
    /// The back end that the name of a package, image or archive speaks of.
    pub(crate) fn in_name(name: &str) -> Option<Self> {
        let words = [
            ("cuda", Self::Cuda),
            ("rocm", Self::Hip),
            ("hip", Self::Hip),
            ("vulkan", Self::Vulkan),
        ];
        let names =
            |(word, _): &&(&str, Self)| name.split(['-', '_', '.']).any(|part| part == *word);
        words.iter().find(names).map(|(_, backend)| *backend)
    }
}

impl<'a> Target<'a> {
    const CPU: Self = Self {
        backend: Backend::Cpu,
        gpus: Vec::new(),
        cuda: None,
        toolkit: None,
    };

    /// Chooses; what the cmake flags ask for narrows the choice. Gives warnings beside it.
    pub(crate) fn choose(
        pool: &Pool,
        facts: &'a Facts,
        given: &Given,
    ) -> Result<(Self, Vec<String>), ProviderError> {
        if let (GpuPolicy::Forbid, Some((_, switch))) = (pool.gpu, &given.wish) {
            let message = format!("`{}` contradicts `gpu: forbid`", switch.name);
            let error = ProviderError::invalid(switch.field.clone(), message);
            return Err(error.hint("remove one of the two"));
        }
        let gpus = match gpu::choose(pool, &facts.gpus)? {
            Choice::Gpus(gpus) => gpus,
            Choice::Processor { warning } => return Ok((Self::CPU, warning.into_iter().collect())),
        };
        let wanted = |backend: &Backend| {
            let wished = given.wish.as_ref().is_none_or(|(wish, _)| wish == backend);
            wished && !given.off.contains(backend)
        };
        let mut refusals = Vec::new();
        for backend in candidates(&gpus[0].vendor).iter().copied().filter(wanted) {
            match Self::build_for(backend, gpus.clone(), facts) {
                Ok(target) => return Ok((target, Vec::new())),
                Err(error) => refusals.push(error),
            }
        }
        let mut refusals = refusals.into_iter();
        let first = refusals.next().unwrap_or_else(|| {
            let name = &gpus[0].name;
            ProviderError::unavailable(format!("no back end of llama.cpp is left for {name}"))
                .because("`cmake_flags` leave out all that serve it")
        });
        let error = refusals.fold(first, |error, other| error.because(other.message));
        if pool.gpu == GpuPolicy::Require {
            return Err(gpu::allow_processor(error));
        }
        let mut warnings = vec![format!(
            "{}: this pool runs on the processor",
            error.message
        )];
        warnings.extend(error.causes);
        Ok((Self::CPU, warnings))
    }

    /// Chooses for a program that was built elsewhere: its name promises a back end, or what is usual
    /// for the GPUs is expected of it until it is asked.
    pub(crate) fn found(
        pool: &Pool,
        facts: &'a Facts,
        promised: Option<Backend>,
    ) -> Result<(Self, Vec<String>), ProviderError> {
        let gpus = match gpu::choose(pool, &facts.gpus)? {
            Choice::Gpus(gpus) => gpus,
            Choice::Processor { warning } => return Ok((Self::CPU, warning.into_iter().collect())),
        };
        let serves = candidates(&gpus[0].vendor);
        let backend = promised.unwrap_or(serves[0]);
        if serves.contains(&backend) {
            let target = Self {
                backend,
                gpus,
                ..Self::CPU
            };
            return Ok((target, Vec::new()));
        }
        let (has, name, needs) = (backend.name(), &gpus[0].name, serves[0].name());
        Self::without(
            pool,
            format!("this llama-server is made for back end {has}, and {name} needs {needs}"),
            &format!("choose a build for {needs}"),
        )
    }

    /// The processor, or a refusal where a GPU is required.
    pub(crate) fn without(
        pool: &Pool,
        misfit: String,
        advice: &str,
    ) -> Result<(Self, Vec<String>), ProviderError> {
        if pool.gpu == GpuPolicy::Require {
            let error = ProviderError::unavailable(misfit).hint(advice);
            return Err(gpu::allow_processor(error));
        }
        let warning = format!("{misfit}: this pool runs on the processor");
        Ok((Self::CPU, vec![warning]))
    }

    /// Takes the back end whose devices the program lists, where it lists enough of them.
    pub(crate) fn settle(&mut self, listed: impl Fn(Backend) -> usize) {
        let Some(first) = self.gpus.first() else {
            return;
        };
        let enough = |backend: &&Backend| listed(**backend) >= self.gpus.len();
        let others = candidates(&first.vendor).iter();
        let found = std::iter::once(&self.backend).chain(others).find(enough);
        if let Some(backend) = found {
            self.backend = *backend;
        }
    }

    fn build_for(
        backend: Backend,
        gpus: Vec<&'a Gpu>,
        facts: &'a Facts,
    ) -> Result<Self, ProviderError> {
        let missing = |what: &str| {
            ProviderError::unavailable(format!("this machine has a GPU but no {what}"))
        };
        let (mut cuda, mut toolkit) = (None, None);
        match backend {
            Backend::Cuda => cuda = Some(cuda::choose(&gpus, facts)?),
            Backend::Hip => {
                let rocm = facts.rocm.as_ref().ok_or_else(|| {
                    missing("ROCm toolkit").hint("install ROCm with hipBLAS and rocBLAS")
                })?;
                toolkit = Some(rocm);
            }
            Backend::Vulkan | Backend::Cpu => {
                let vulkan = facts.vulkan.as_ref().ok_or_else(|| {
                    missing("Vulkan toolkit").hint("install the Vulkan headers and glslc")
                })?;
                toolkit = Some(vulkan);
            }
        }
        Ok(Self {
            backend,
            gpus,
            cuda,
            toolkit,
        })
    }

    /// The engine's names for the GPUs, in order.
    pub(crate) fn devices(&self) -> Vec<String> {
        let prefix = self.backend.device_prefix();
        (0..self.gpus.len())
            .map(|number| format!("{prefix}{number}"))
            .collect()
    }

    /// The variable that shows the engine these GPUs, in this order, and no others.
    pub(crate) fn mask(&self) -> Option<(&'static str, String)> {
        let join = |part: fn(&Gpu) -> String| {
            let parts: Vec<String> = self.gpus.iter().map(|gpu| part(gpu)).collect();
            parts.join(",")
        };
        match self.backend {
            Backend::Cpu => None,
            Backend::Cuda => Some(("CUDA_VISIBLE_DEVICES", join(|gpu| gpu.uuid.clone()))),
            Backend::Hip => Some(("ROCR_VISIBLE_DEVICES", join(|gpu| gpu.uuid.clone()))),
            // Vulkan knows no driver ids.
            Backend::Vulkan => Some(("GGML_VK_VISIBLE_DEVICES", join(|gpu| gpu.index.to_string()))),
        }
    }

    /// What is recorded with the build, and part of its key.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::from([("backend".to_owned(), self.backend.name().to_owned())]);
        let cuda = self.cuda.as_ref().map(|cuda| &cuda.toolkit.version);
        let version = cuda.or(self.toolkit.map(|toolkit| &toolkit.version));
        labels.extend(version.map(|version| ("toolkit".to_owned(), version.clone())));
        let architectures = self.cuda.as_ref().map(|cuda| cuda.architectures.clone());
        labels.extend(architectures.map(|names| ("architectures".to_owned(), names)));
        labels
    }

    pub(crate) fn note(&self) -> String {
        let names: Vec<&str> = self.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
        let (names, change) = (
            names.join(", "),
            "`GGML_*` in `cmake_flags` chooses another",
        );
        match (&self.cuda, self.toolkit) {
            (Some(cuda), _) => format!(
                "back end cuda {} from {} with {} {} for {names}; {change}",
                cuda.toolkit.version,
                cuda.toolkit.root,
                cuda.hosts[0].family,
                cuda.hosts[0].version,
            ),
            (None, Some(toolkit)) => format!(
                "back end {} from {} for {names}; {change}",
                self.backend.name(),
                toolkit.root
            ),
            (None, None) if !self.gpus.is_empty() => {
                format!("back end {} for {names}", self.backend.name())
            }
            (None, None) => "back end cpu; `gpu: require` asks for a GPU".to_owned(),
        }
    }
}

/// Back ends for a vendor's GPUs, best first.
fn candidates(vendor: &str) -> &'static [Backend] {
    match vendor {
        "nvidia" => &[Backend::Cuda, Backend::Vulkan],
        "amd" => &[Backend::Hip, Backend::Vulkan],
        _ => &[Backend::Vulkan],
    }
}
