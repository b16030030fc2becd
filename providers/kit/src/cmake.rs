//! How a program of a cmake project is built: what an operator may set, tools, commands.
//!
//! The source is linked into the working directory as `.source` and built there, so that every path the
//! compiler sees is below `{work}`: with `CCACHE_BASEDIR` and `-ffile-prefix-map` set to it, the
//! compiler cache serves every directory and commit, and equal sources give equal bytes.

use std::collections::BTreeMap;

use engine_provider_api::{
    Attempt, Command, Facts, Narration, Pool, Progress, ProviderError, RequireTools, Template, When,
};

use crate::tools::requirement;

/// Name of the link to the source in `{work}`: none that a directory of the source may have, because
/// its build directory has the same name there.
const SOURCE_LINK: &str = ".source";

/// What an operator set in `provisioning.source.build`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    definitions: Vec<Definition>,
    generator: Option<String>,
    cache_directory: Option<String>,
}

/// A cmake variable that an operator set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// Pool-file field it came from.
    pub field: String,
    /// Name without its type.
    pub name: String,
    /// Value.
    pub value: String,
    written: String,
}

impl Definition {
    /// Whether the value is one that cmake takes for true.
    #[must_use]
    pub fn is_on(&self) -> bool {
        ["ON", "1", "TRUE", "YES", "Y"].contains(&self.value.to_ascii_uppercase().as_str())
    }
}

impl Settings {
    /// Reads the settings; refuses what is no `-DNAME=VALUE`, variables in `managed`, and a
    /// generator other than Ninja and Unix Makefiles.
    pub fn read(pool: &Pool, managed: &[&str]) -> Result<Self, ProviderError> {
        let build = pool.provisioning.source.clone().unwrap_or_default().build;
        let supported = ["Ninja", "Unix Makefiles"];
        if let Some(other) = &build.generator
            && !supported.contains(&other.as_str())
        {
            let field = "provisioning.source.build.generator";
            let message = format!("generator `{other}` is not supported");
            return Err(
                ProviderError::invalid(field, message).hint("set `Ninja` or `Unix Makefiles`")
            );
        }
        let mut definitions = Vec::new();
        for (index, flag) in build.cmake_flags.iter().enumerate() {
            let field = format!("provisioning.source.build.cmake_flags[{index}]");
            let definition = definition(field, flag)?;
            if managed.contains(&definition.name.as_str()) {
                let message = format!("`{}` is set by the provider", definition.name);
                return Err(ProviderError::invalid(definition.field, message).hint("remove it"));
            }
            definitions.push(definition);
        }
        Ok(Self {
            definitions,
            generator: build.generator,
            cache_directory: build.cache_dir,
        })
    }

    /// Takes a variable out, so that it is not passed on.
    pub fn take(&mut self, name: &str) -> Option<Definition> {
        let at = self.definitions.iter().rposition(|one| one.name == name)?;
        Some(self.definitions.remove(at))
    }

    /// The last value an operator gave a variable.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Definition> {
        self.definitions.iter().rfind(|one| one.name == name)
    }

    /// Ninja where it is asked for or found; also where nothing is found, being the smaller one.
    fn ninja(&self, facts: &Facts) -> bool {
        match &self.generator {
            Some(generator) => generator == "Ninja",
            None => facts.tool("ninja").is_some() || facts.tool("make").is_none(),
        }
    }

    fn ccache(&self, facts: &Facts) -> bool {
        facts.tool("ccache").is_some() || self.cache_directory.is_some()
    }
}

fn definition(field: String, flag: &str) -> Result<Definition, ProviderError> {
    let parts = flag
        .strip_prefix("-D")
        .and_then(|rest| rest.split_once('='));
    let Some((name, value)) = parts else {
        let message = format!("`{flag}` defines no cmake variable");
        return Err(ProviderError::invalid(field, message).hint("write `-DNAME=VALUE`"));
    };
    Ok(Definition {
        field,
        name: name.split(':').next().unwrap_or(name).to_owned(),
        value: value.to_owned(),
        written: flag.to_owned(),
    })
}

/// One program of a cmake project and how it is built.
#[derive(Debug, Clone, Copy)]
pub struct Project<'a> {
    /// What the operator set.
    pub settings: &'a Settings,
    /// The machine.
    pub facts: &'a Facts,
    /// Step that obtained the source.
    pub source_step: &'a str,
    /// Target that is built.
    pub target: &'a str,
    /// Languages, as cmake names them; the compiler cache is put before each.
    pub languages: &'a [&'a str],
}

/// What is different about one attempt.
#[derive(Debug, Clone, Default)]
pub struct Variant {
    /// For people, for example `with gcc 12.4.0 for CUDA`.
    pub title: String,
    /// Arguments of the configure run; a variable that the operator sets is left to the operator.
    pub arguments: Vec<String>,
}

impl Project<'_> {
    /// Tools without which the build fails.
    #[must_use]
    pub fn tools(&self, oldest_cmake: &str) -> RequireTools {
        let ninja = self.settings.ninja(self.facts);
        let mut tools = vec![
            requirement("git", "obtaining the source", ""),
            requirement("cmake", "configuring the build", oldest_cmake),
            requirement(
                if ninja { "ninja" } else { "make" },
                "running the build",
                "",
            ),
            requirement("cc", "compiling C", ""),
            requirement("cxx", "compiling C++", ""),
        ];
        if self.settings.ccache(self.facts) {
            tools.push(requirement("ccache", "compiling nothing twice", "4.0"));
        }
        RequireTools { tools }
    }

    /// Ordered attempts; all but the first are made only where the log of a failure matches `when`.
    #[must_use]
    pub fn attempts(
        &self,
        variants: Vec<Variant>,
        env: &BTreeMap<String, Template>,
        when: &str,
    ) -> Vec<Attempt> {
        let attempt = |(number, variant): (usize, Variant)| Attempt {
            title: variant.title,
            when: (number > 0).then(|| When {
                log: Some(when.to_owned()),
                ..When::default()
            }),
            commands: self.commands(&variant.arguments, env),
        };
        variants.into_iter().enumerate().map(attempt).collect()
    }

    fn commands(&self, arguments: &[String], env: &BTreeMap<String, Template>) -> Vec<Command> {
        let ninja = self.settings.ninja(self.facts);
        let mut env = env.clone();
        env.extend(self.cache_environment());
        let source = format!("{{{}.path}}", self.source_step);
        let link = ["-E", "create_symlink", &source, SOURCE_LINK].map(Template::from);
        let build = [
            "--build",
            ".",
            "--target",
            self.target,
            "--parallel",
            "{jobs}",
        ];
        let command = |id: &str, args: Vec<Template>, progress| Command {
            id: id.to_owned(),
            program: "{tool.cmake}".into(),
            args,
            env: env.clone(),
            directory: None,
            progress,
            narration: narration(id),
        };
        let progress = if ninja {
            Progress::Counter
        } else {
            Progress::Percent
        };
        let link = Command {
            narration: Narration::default(),
            ..command("link-source", link.to_vec(), None)
        };
        vec![
            link,
            command("cmake-configure", self.configure(arguments), None),
            command(
                "cmake-build",
                build.map(Template::from).to_vec(),
                Some(progress),
            ),
        ]
    }

    fn configure(&self, arguments: &[String]) -> Vec<Template> {
        let generator = match self.settings.ninja(self.facts) {
            true => ["Ninja", "-DCMAKE_MAKE_PROGRAM={tool.ninja}"],
            false => ["Unix Makefiles", "-DCMAKE_MAKE_PROGRAM={tool.make}"],
        };
        let mut args: Vec<Template> = ["-S", SOURCE_LINK, "-B", ".", "-G"]
            .map(Template::from)
            .to_vec();
        args.extend(generator.map(Template::from));
        let kept = |argument: &&String| {
            let name = argument
                .strip_prefix("-D")
                .and_then(|rest| rest.split_once('='));
            name.is_none_or(|(name, _)| self.settings.get(name).is_none())
        };
        args.extend(arguments.iter().filter(kept).map(Template::new));
        if self.settings.ccache(self.facts) {
            let launcher = |language: &&str| {
                format!("-DCMAKE_{language}_COMPILER_LAUNCHER={{tool.ccache}}").into()
            };
            args.extend(self.languages.iter().map(launcher));
        }
        let given = self.settings.definitions.iter();
        args.extend(given.map(|one| Template::literal(&one.written)));
        args
    }

    fn cache_environment(&self) -> BTreeMap<String, Template> {
        if !self.settings.ccache(self.facts) {
            return BTreeMap::new();
        }
        let directory = self.settings.cache_directory.as_deref();
        BTreeMap::from([
            (
                "CCACHE_DIR".to_owned(),
                directory.map_or("{cache.ccache}".into(), Template::literal),
            ),
            ("CCACHE_BASEDIR".to_owned(), "{work}".into()),
            ("CCACHE_NOHASHDIR".to_owned(), "1".into()),
        ])
    }
}

/// The words of `cmake-configure`, which says that a later attempt is made, and of `cmake-build`.
fn narration(id: &str) -> Narration {
    let configure = id == "cmake-configure";
    Narration {
        start: id.to_owned(),
        retry: if configure { "cmake-retry" } else { id }.to_owned(),
        failed: "cmake-failed".to_owned(),
    }
}

/// A machine's own text, such as a toolkit's path, for use inside a template.
#[must_use]
pub fn escaped(text: &str) -> String {
    Template::literal(text).as_str().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pool(build: serde_json::Value) -> Pool {
        serde_json::from_value(json!({
            "id": "a", "engine": "toy", "provisioning": { "source": { "build": build } },
        }))
        .unwrap()
    }

    fn commands(build: serde_json::Value, tools: &[&str]) -> Vec<Command> {
        let settings = Settings::read(&pool(build), &[]).unwrap();
        let tools: serde_json::Map<_, _> = tools
            .iter()
            .map(|name| {
                (
                    (*name).to_owned(),
                    json!({ "path": format!("/usr/bin/{name}") }),
                )
            })
            .collect();
        let facts = serde_json::from_value(json!({ "tools": tools })).unwrap();
        let project = Project {
            settings: &settings,
            facts: &facts,
            source_step: "clone",
            target: "toy",
            languages: &["C", "CXX"],
        };
        project.commands(&["-DA=own".to_owned()], &BTreeMap::new())
    }

    fn line(command: &Command) -> String {
        let args: Vec<&str> = command.args.iter().map(Template::as_str).collect();
        args.join(" ")
    }

    #[test]
    fn the_generator_is_asked_for_else_found_else_the_smaller_one() {
        let generator = |build, tools: &[&str]| line(&commands(build, tools)[1]);
        assert!(generator(json!({}), &["make", "ninja"]).contains("-G Ninja"));
        assert!(generator(json!({}), &["make"]).contains("-G Unix Makefiles"));
        assert!(generator(json!({}), &[]).contains("-G Ninja"));
        let asked = json!({ "generator": "Unix Makefiles" });
        assert!(generator(asked, &["ninja"]).contains("-G Unix Makefiles"));
        assert!(Settings::read(&pool(json!({ "generator": "Xcode" })), &[]).is_err());
    }

    #[test]
    fn the_compiler_cache_is_used_where_found_or_asked_for() {
        assert!(commands(json!({}), &["ninja"])[1].env.is_empty());
        let found = commands(json!({}), &["ccache"]);
        assert_eq!(found[1].env["CCACHE_DIR"].as_str(), "{cache.ccache}");
        assert!(line(&found[1]).contains("-DCMAKE_CXX_COMPILER_LAUNCHER={tool.ccache}"));
        let asked = commands(json!({ "cache_dir": "/var/cache/{x}" }), &[]);
        assert_eq!(asked[2].env["CCACHE_DIR"].as_str(), "/var/cache/{{x}}");
    }

    #[test]
    fn what_an_operator_sets_takes_the_place_of_the_providers_and_managed_variables_are_refused() {
        let flags = json!({ "cmake_flags": ["-DA:BOOL=ON", "-DB=x y"] });
        let set = line(&commands(flags.clone(), &[])[1]);
        assert!(
            set.ends_with("-DA:BOOL=ON -DB=x y") && !set.contains("own"),
            "{set}"
        );
        assert!(line(&commands(json!({}), &[])[1]).ends_with("-DA=own"));
        let mut settings = Settings::read(&pool(flags.clone()), &[]).unwrap();
        assert!(settings.take("A").unwrap().is_on());
        assert_eq!(settings.get("A"), None);
        let error = Settings::read(&pool(flags), &["B"]).unwrap_err();
        assert_eq!(error.message, "`B` is set by the provider");
        let field = "provisioning.source.build.cmake_flags[1]";
        assert_eq!(error.field.as_deref(), Some(field));
        let error = Settings::read(&pool(json!({ "cmake_flags": ["--fresh"] })), &[]).unwrap_err();
        assert_eq!(error.message, "`--fresh` defines no cmake variable");
    }
}
