//! How `llama-server` is configured.
//!
//! One static program, so that it can be moved; no download during the build, and no git, whose
//! abbreviated commits differ between mirrors. `GGML_NATIVE` stays on: what is built here runs here,
//! and the processor's features are part of the key. OpenMP is off: its threads spin, which on a
//! busy machine stops everything.

use std::collections::BTreeMap;

use engine_provider_api::{
    BuildStep, Compiler, Facts, Pool, ProviderError, RequireTools, Template,
};
use engine_provider_kit::cmake::{Definition, Project, Settings, Variant, escaped};

use crate::{CLONE, backend::Backend, backend::Target, source::Source};

/// cmake variables that the rest of the plan relies on.
const MANAGED: &[&str] = &[
    "BUILD_SHARED_LIBS",
    "CMAKE_RUNTIME_OUTPUT_DIRECTORY",
    "GGML_BACKEND_DL",
    "GIT_EXE",
    "LLAMA_BUILD_SERVER",
    "LLAMA_BUILD_UI",
    "LLAMA_USE_PREBUILT_UI",
];

/// The same for every build.
const FIXED: &[&str] = &[
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_CCACHE=OFF",
    "-DGGML_OPENMP=OFF",
    "-DGIT_EXE=",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_NUMBER=0",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DCMAKE_C_FLAGS=-ffile-prefix-map={work}=.",
    "-DCMAKE_CXX_FLAGS=-ffile-prefix-map={work}=.",
];

/// Logs that another compiler can help against; a full disk, missing memory or a toolkit that is not
/// there is none. cmake folds nvcc's messages at any blank, hence `\s+`.
const COMPILER_AT_FAULT: &str = "unsupported\\s+(GNU|clang)\\s+version|\
    compiler identification is unknown|is not able to compile a simple test program|\
    Failed to detect .*(CUDA|architecture)|nvcc fatal.*ost compiler|internal compiler error|\
    unrecognized (command-line|command line) option|parameter packs not expanded";

/// Most attempts made; each costs a configure run and part of a build.
const ATTEMPTS: usize = 3;

/// What the operator's cmake flags say about the back end; the rest of them is passed on.
#[derive(Debug, Default)]
pub(crate) struct Given {
    settings: Settings,
    /// The back end they switch on, and where.
    pub wish: Option<(Backend, Definition)>,
    /// Back ends that they switch off.
    pub off: Vec<Backend>,
    pub notes: Vec<String>,
}

impl Given {
    pub(crate) fn read(pool: &Pool) -> Result<Self, ProviderError> {
        let mut given = Self {
            settings: Settings::read(pool, MANAGED)?,
            ..Self::default()
        };
        for backend in Backend::GPU {
            for name in backend.switches() {
                while let Some(switch) = given.settings.take(name) {
                    given.switch(backend, switch)?;
                }
            }
        }
        Ok(given)
    }

    fn switch(&mut self, backend: Backend, switch: Definition) -> Result<(), ProviderError> {
        let current = backend.switches()[0];
        if switch.name != current {
            let note = format!(
                "`{}` is called `{current}` now and was read as that",
                switch.name
            );
            self.notes.push(note);
        }
        match &self.wish {
            _ if !switch.is_on() => self.off.push(backend),
            Some((other, _)) if *other != backend => {
                let message = format!("`{}` is a second back end", switch.name);
                return Err(ProviderError::invalid(switch.field, message).hint("keep one of them"));
            }
            _ => self.wish = Some((backend, switch)),
        }
        Ok(())
    }
}

/// Everything that decides how the program is built.
#[derive(Clone, Copy)]
pub(crate) struct Recipe<'a> {
    pub given: &'a Given,
    pub facts: &'a Facts,
    pub source: &'a Source,
    pub target: &'a Target<'a>,
}

impl<'a> Recipe<'a> {
    fn project(self) -> Project<'a> {
        Project {
            settings: &self.given.settings,
            facts: self.facts,
            source_step: CLONE,
            target: "llama-server",
            languages: match self.target.backend {
                Backend::Cuda => &["C", "CXX", "CUDA"],
                Backend::Hip => &["C", "CXX", "HIP"],
                Backend::Cpu | Backend::Vulkan => &["C", "CXX"],
            },
        }
    }

    pub(crate) fn tools(self) -> RequireTools {
        let hip = self.target.backend == Backend::Hip;
        self.project().tools(if hip { "3.21" } else { "3.18" })
    }

    pub(crate) fn build(self) -> BuildStep {
        let native = self.given.settings.get("GGML_NATIVE");
        let attempts =
            self.project()
                .attempts(self.variants(), &self.environment(), COMPILER_AT_FAULT);
        BuildStep {
            attempts,
            outputs: vec!["bin/llama-server".to_owned()],
            native: native.is_none_or(Definition::is_on),
            labels: self.target.labels(),
            ..BuildStep::default()
        }
    }

    /// One variant per compiler: those CUDA accepts, else the system's own and then any other.
    fn variants(self) -> Vec<Variant> {
        let with = |compiler: &Compiler, purpose: &str| Variant {
            title: format!("with {} {}{purpose}", compiler.family, compiler.version),
            arguments: self.arguments(Some(compiler)),
        };
        if let Some(cuda) = &self.target.cuda {
            let hosts = cuda.hosts.iter().take(ATTEMPTS);
            return hosts.map(|compiler| with(compiler, " for CUDA")).collect();
        }
        let usual = self.facts.tool("cc");
        let other = |compiler: &&Compiler| {
            usual.is_some_and(|cc| cc.path != compiler.c && cc.version != compiler.version)
        };
        let first = Variant {
            title: "with the system's compiler".to_owned(),
            arguments: self.arguments(None),
        };
        let others = self.facts.compilers.iter().filter(other);
        let others = others.map(|compiler| with(compiler, ""));
        std::iter::once(first)
            .chain(others)
            .take(ATTEMPTS)
            .collect()
    }

    fn arguments(self, compiler: Option<&Compiler>) -> Vec<String> {
        let mut args: Vec<String> = FIXED.iter().map(|&text| text.to_owned()).collect();
        let commit = self.source.short_commit();
        args.extend(commit.map(|commit| format!("-DLLAMA_BUILD_COMMIT={commit}")));
        let (c, cxx) = match compiler {
            Some(compiler) if self.target.cuda.is_none() => {
                (escaped(&compiler.c), escaped(&compiler.cxx))
            }
            _ => ("{tool.cc}".to_owned(), "{tool.cxx}".to_owned()),
        };
        args.push(format!("-DCMAKE_C_COMPILER={c}"));
        args.push(format!("-DCMAKE_CXX_COMPILER={cxx}"));
        if let Some(switch) = self.target.backend.switches().first() {
            args.push(format!("-D{switch}=ON"));
        }
        match (&self.target.cuda, self.target.toolkit) {
            (Some(_), _) => args.extend(self.cuda(compiler)),
            (None, Some(toolkit)) => {
                let root = escaped(&toolkit.root);
                args.push(format!("-DCMAKE_PREFIX_PATH={root}"));
                args.push(format!("-DCMAKE_BUILD_RPATH={root}/lib"));
            }
            (None, None) => {}
        }
        args
    }

    /// The CUDA hints, which every attempt keeps: a toolkit off `PATH` is found by them alone.
    fn cuda(self, host: Option<&Compiler>) -> Vec<String> {
        let Some(cuda) = &self.target.cuda else {
            return Vec::new();
        };
        let root = escaped(&cuda.toolkit.root);
        let host = host.map(|host| format!("-DCMAKE_CUDA_HOST_COMPILER={}", escaped(&host.cxx)));
        let mut args = vec![
            format!("-DCUDAToolkit_ROOT={root}"),
            format!("-DCMAKE_CUDA_COMPILER={}", escaped(&cuda.toolkit.nvcc)),
            format!("-DCMAKE_CUDA_ARCHITECTURES={}", cuda.architectures),
            "-DCMAKE_CUDA_FLAGS=-Xcompiler=-ffile-prefix-map={work}=.".to_owned(),
            format!("-DCMAKE_BUILD_RPATH={root}/lib64"),
            // Found or not found by chance, it would change the bytes and not the key.
            "-DGGML_CUDA_NCCL=OFF".to_owned(),
        ];
        args.extend(host);
        args
    }

    fn environment(self) -> BTreeMap<String, Template> {
        let rocm = self
            .target
            .toolkit
            .filter(|_| self.target.backend == Backend::Hip);
        let Some(rocm) = rocm else {
            return BTreeMap::new();
        };
        let clang = format!("{}/llvm/bin/clang++", rocm.root);
        [
            ("ROCM_PATH", &rocm.root),
            ("HIP_PATH", &rocm.root),
            ("HIPCXX", &clang),
        ]
        .map(|(name, value)| (name.to_owned(), Template::literal(value)))
        .into()
    }
}
