//! The commands that build `llama-server`.
//!
//! One static program, so that it can be moved; no download and no git during the build; relative
//! paths, so that the compiler cache serves every directory and commit: the source is linked into
//! the working directory as `src`, and `CCACHE_BASEDIR` is the working directory.
//!
//! `GGML_NATIVE` stays on: what is built here runs here, and the processor's features are part of
//! the key. OpenMP is off: its threads spin, which on a busy machine stops everything.

use std::collections::BTreeMap;

use engine_provider_api::{
    Attempt, BuildStep, Command, Compiler, Narration, Pool, Progress, ProviderError, RequireTools,
    Template, When,
};
use engine_provider_kit::tools::requirement;

use crate::{Backend, CLONE, Decision};

/// What an operator gave in `provisioning.source.build`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Given {
    flags: Vec<String>,
    generator: Option<String>,
    cache_directory: Option<String>,
    /// Back end that the flags switch on.
    pub wish: Option<Backend>,
    /// Back ends that they switch off.
    pub off: Vec<Backend>,
    pub notes: Vec<String>,
}

/// cmake variables that the rest of the plan relies on.
const MANAGED: &[&str] = &[
    "BUILD_SHARED_LIBS",
    "GGML_BACKEND_DL",
    "LLAMA_BUILD_SERVER",
    "LLAMA_BUILD_UI",
    "LLAMA_USE_PREBUILT_UI",
    "CMAKE_RUNTIME_OUTPUT_DIRECTORY",
];

/// Names that older releases had for the switches of back ends.
const FORMER: &[(&str, Backend)] = &[
    ("LLAMA_CUBLAS", Backend::Cuda),
    ("LLAMA_CUDA", Backend::Cuda),
    ("LLAMA_HIPBLAS", Backend::Hip),
    ("GGML_HIPBLAS", Backend::Hip),
    ("LLAMA_VULKAN", Backend::Vulkan),
];

impl Given {
    pub(crate) fn read(pool: &Pool) -> Result<Self, ProviderError> {
        let source = pool.provisioning.source.clone().unwrap_or_default();
        let mut given = Self {
            generator: source.build.generator,
            cache_directory: source.build.cache_dir,
            ..Self::default()
        };
        let known = |generator: &str| ["Ninja", "Unix Makefiles"].contains(&generator);
        if let Some(other) = given.generator.as_deref().filter(|name| !known(name)) {
            let message = format!("generator `{other}` is not supported");
            return Err(
                ProviderError::invalid("provisioning.source.build.generator", message)
                    .hint("set `Ninja` or `Unix Makefiles`"),
            );
        }
        for (index, flag) in source.build.cmake_flags.iter().enumerate() {
            let field = format!("provisioning.source.build.cmake_flags[{index}]");
            given.add(field, flag)?;
        }
        Ok(given)
    }

    fn add(&mut self, field: String, flag: &str) -> Result<(), ProviderError> {
        let (name, value) = definition(flag).ok_or_else(|| {
            ProviderError::invalid(&field, format!("`{flag}` defines no cmake variable"))
                .hint("write `-DNAME=VALUE`")
        })?;
        if MANAGED.contains(&name) {
            let message = format!("`{name}` is set by the provider: one static program is built");
            return Err(ProviderError::invalid(field, message).hint("remove it"));
        }
        let former = FORMER.iter().find(|(former, _)| *former == name);
        let current = Backend::GPU
            .into_iter()
            .find(|backend| backend.switch() == name);
        let Some(backend) = former.map(|(_, backend)| *backend).or(current) else {
            self.flags.push(flag.to_owned());
            return Ok(());
        };
        if former.is_some() {
            let note = format!(
                "`{name}` is called `{}` now and was read as that",
                backend.switch()
            );
            self.notes.push(note);
        }
        if !is_on(value) {
            self.off.push(backend);
        } else if self.wish.is_some_and(|other| other != backend) {
            return Err(
                ProviderError::invalid(field, "two back ends are switched on")
                    .hint("keep one of them"),
            );
        } else {
            self.wish = Some(backend);
        }
        Ok(())
    }

    fn value(&self, name: &str) -> Option<&str> {
        let defined = |flag: &String| definition(flag).is_some_and(|(other, _)| other == name);
        let flag = self.flags.iter().rfind(|flag| defined(flag))?;
        definition(flag).map(|(_, value)| value)
    }
}

/// `-DNAME:TYPE=VALUE` as name and value.
fn definition(flag: &str) -> Option<(&str, &str)> {
    let (name, value) = flag.strip_prefix("-D")?.split_once('=')?;
    Some((name.split(':').next().unwrap_or(name), value))
}

fn is_on(value: &str) -> bool {
    ["ON", "1", "TRUE", "YES", "Y"].contains(&value.to_ascii_uppercase().as_str())
}

/// Tools without which the build fails.
pub(crate) fn tools(decision: &Decision) -> RequireTools {
    let minimum = match decision.target.backend {
        Backend::Hip => "3.21",
        _ => "3.18",
    };
    let driver = if ninja(decision) { "ninja" } else { "make" };
    let mut tools = vec![
        requirement("git", "obtaining the source", "2.20"),
        requirement("cmake", "configuring the build", minimum),
        requirement(driver, "running the build", ""),
        requirement("cc", "compiling C", ""),
        requirement("cxx", "compiling C++", ""),
    ];
    if ccache(decision) {
        tools.push(requirement("ccache", "compiling nothing twice", "4.0"));
    }
    RequireTools { tools }
}

/// Ninja where it is asked for or found, and where nothing is found, since it is the smaller one.
fn ninja(decision: &Decision) -> bool {
    match &decision.cmake.generator {
        Some(generator) => generator == "Ninja",
        None => decision.facts.tool("ninja").is_some() || decision.facts.tool("make").is_none(),
    }
}

fn ccache(decision: &Decision) -> bool {
    decision.facts.tool("ccache").is_some() || decision.cmake.cache_directory.is_some()
}

/// The build step.
pub(crate) fn build(decision: &Decision) -> BuildStep {
    let attempts = toolchains(decision)
        .into_iter()
        .enumerate()
        .map(|(number, toolchain)| attempt(decision, toolchain, number > 0))
        .collect();
    BuildStep {
        attempts,
        outputs: vec!["bin/llama-server".to_owned()],
        network: Vec::new(),
        native: decision.cmake.value("GGML_NATIVE").is_none_or(is_on),
        labels: labels(decision),
    }
}

fn labels(decision: &Decision) -> BTreeMap<String, String> {
    let target = &decision.target;
    let mut labels = BTreeMap::from([("backend".to_owned(), target.backend.name().to_owned())]);
    if let Some(cuda) = &target.cuda {
        labels.insert("cuda".to_owned(), cuda.toolkit.version.clone());
    }
    if let Some(toolkit) = target.toolkit {
        labels.insert("toolkit".to_owned(), toolkit.version.clone());
    }
    labels
}

/// Compilers for one attempt.
struct Toolchain<'a> {
    title: String,
    compiler: Option<&'a Compiler>,
}

/// Most attempts made; each costs a configure run and part of a build.
const ATTEMPTS: usize = 3;

/// Logs that another compiler can help against; a full disk or missing memory is none.
const COMPILER_AT_FAULT: &str = "unsupported (GNU|clang) version|unsupported Microsoft|\
    is not able to compile a simple test program|compiler identification is unknown|\
    Failed to (detect|find) .*(CUDA|nvcc|architecture)|No CMAKE_CUDA_COMPILER could be found|\
    nvcc fatal|internal compiler error|unrecognized (command-line|command line) option|\
    parameter packs not expanded|error: identifier \"_|error: .*__builtin_|is not supported by gcc";

fn toolchains<'a>(decision: &Decision<'a>) -> Vec<Toolchain<'a>> {
    if let Some(cuda) = &decision.target.cuda {
        let with = |compiler: &&'a Compiler| Toolchain {
            title: format!("with {} {} for CUDA", compiler.family, compiler.version),
            compiler: Some(*compiler),
        };
        return cuda.hosts.iter().take(ATTEMPTS).map(with).collect();
    }
    let usual = decision.facts.tool("cc");
    let other = |compiler: &&Compiler| {
        usual.is_some_and(|cc| cc.path != compiler.c && cc.version != compiler.version)
    };
    let first = Toolchain {
        title: "with the system's compiler".to_owned(),
        compiler: None,
    };
    let others = decision.facts.compilers.iter().filter(other);
    let others = others.map(|compiler| Toolchain {
        title: format!("with {} {}", compiler.family, compiler.version),
        compiler: Some(compiler),
    });
    std::iter::once(first)
        .chain(others)
        .take(ATTEMPTS)
        .collect()
}

fn attempt(decision: &Decision, toolchain: Toolchain, again: bool) -> Attempt {
    let arguments = configure(decision, toolchain.compiler);
    let env = environment(decision);
    let cmake = |id: &str, args: Vec<Template>, start: &str| Command {
        id: id.to_owned(),
        program: "{tool.cmake}".into(),
        args,
        env: env.clone(),
        directory: None,
        progress: None,
        narration: Narration {
            start: start.to_owned(),
            retry: "cmake-retry".to_owned(),
            failed: "cmake-failed".to_owned(),
        },
    };
    let link = ["-E", "create_symlink", &format!("{{{CLONE}.path}}"), "src"];
    let build = [
        "--build",
        ".",
        "--target",
        "llama-server",
        "--parallel",
        "{jobs}",
    ];
    let templates = |args: &[&str]| args.iter().map(|&text| text.into()).collect();
    let progress = if ninja(decision) {
        Progress::Counter
    } else {
        Progress::Percent
    };
    Attempt {
        title: toolchain.title,
        when: again.then(|| When {
            log: Some(COMPILER_AT_FAULT.to_owned()),
            ..When::default()
        }),
        commands: vec![
            cmake("link-source", templates(&link), ""),
            cmake("cmake-configure", arguments, "cmake-configure"),
            Command {
                progress: Some(progress),
                ..cmake("cmake-build", templates(&build), "cmake-build")
            },
        ],
    }
}

fn configure(decision: &Decision, compiler: Option<&Compiler>) -> Vec<Template> {
    let mut args: Vec<String> = ["-S", "src", "-B", ".", "-G"].map(str::to_owned).to_vec();
    if ninja(decision) {
        args.extend(["Ninja", "-DCMAKE_MAKE_PROGRAM={tool.ninja}"].map(str::to_owned));
    } else {
        args.push("Unix Makefiles".to_owned());
        args.push("-DCMAKE_MAKE_PROGRAM={tool.make}".to_owned());
    }
    args.extend(FIXED.iter().map(|&text| text.to_owned()));
    let commit = decision.source.short_commit();
    args.extend(commit.map(|commit| format!("-DLLAMA_BUILD_COMMIT={commit}")));
    args.extend(backend_arguments(decision, compiler));
    if ccache(decision) {
        for language in languages(decision.target.backend) {
            args.push(format!(
                "-DCMAKE_{language}_COMPILER_LAUNCHER={{tool.ccache}}"
            ));
        }
    }
    let given = decision
        .cmake
        .flags
        .iter()
        .map(|flag| Template::literal(flag));
    args.into_iter().map(Template::new).chain(given).collect()
}

/// The same for every build. `GIT_EXE` empty: a commit abbreviated by git differs between mirrors.
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

fn languages(backend: Backend) -> &'static [&'static str] {
    match backend {
        Backend::Cuda => &["C", "CXX", "CUDA"],
        Backend::Hip => &["C", "CXX", "HIP"],
        Backend::Cpu | Backend::Vulkan => &["C", "CXX"],
    }
}

fn backend_arguments(decision: &Decision, compiler: Option<&Compiler>) -> Vec<String> {
    let target = &decision.target;
    let mut args = Vec::new();
    if target.backend != Backend::Cpu {
        args.push(format!("-D{}=ON", target.backend.switch()));
    }
    let path = |text: &str| Template::literal(text).as_str().to_owned();
    let (c, cxx) = match (&target.cuda, compiler) {
        (None, Some(compiler)) => (path(&compiler.c), path(&compiler.cxx)),
        _ => ("{tool.cc}".to_owned(), "{tool.cxx}".to_owned()),
    };
    args.push(format!("-DCMAKE_C_COMPILER={c}"));
    args.push(format!("-DCMAKE_CXX_COMPILER={cxx}"));
    if let Some(cuda) = &target.cuda {
        let root = path(&cuda.toolkit.root);
        args.push(format!("-DCUDAToolkit_ROOT={root}"));
        args.push(format!(
            "-DCMAKE_CUDA_COMPILER={}",
            path(&cuda.toolkit.nvcc)
        ));
        args.push(format!("-DCMAKE_CUDA_ARCHITECTURES={}", cuda.architectures));
        let host = compiler.map_or_else(String::new, |compiler| path(&compiler.cxx));
        args.push(format!("-DCMAKE_CUDA_HOST_COMPILER={host}"));
        args.push("-DCMAKE_CUDA_FLAGS=-Xcompiler=-ffile-prefix-map={work}=.".to_owned());
        args.push(format!("-DCMAKE_BUILD_RPATH={root}/lib64"));
        // Found or not found by chance, it would change the bytes and not the key.
        args.push("-DGGML_CUDA_NCCL=OFF".to_owned());
    } else if let Some(toolkit) = target.toolkit {
        let root = path(&toolkit.root);
        args.push(format!("-DCMAKE_PREFIX_PATH={root}"));
        if target.backend == Backend::Hip {
            args.push(format!("-DCMAKE_HIP_COMPILER={root}/llvm/bin/clang++"));
            args.push(format!("-DCMAKE_BUILD_RPATH={root}/lib"));
        }
    }
    args
}

fn environment(decision: &Decision) -> BTreeMap<String, Template> {
    let mut environment = BTreeMap::new();
    let mut set = |name: &str, value: Template| environment.insert(name.to_owned(), value);
    if ccache(decision) {
        let directory = decision.cmake.cache_directory.as_deref();
        let directory = directory.map_or("{cache.ccache}".into(), Template::literal);
        set("CCACHE_DIR", directory);
        set("CCACHE_BASEDIR", "{work}".into());
        set("CCACHE_NOHASHDIR", "1".into());
    }
    if let (Backend::Hip, Some(rocm)) = (decision.target.backend, decision.target.toolkit) {
        set("ROCM_PATH", Template::literal(&rocm.root));
        set("HIP_PATH", Template::literal(&rocm.root));
    }
    environment
}
