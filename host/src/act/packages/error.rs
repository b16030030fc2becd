//! Why a program of the distribution's packages cannot be had.

use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    process::ProcessError,
};

/// Why a program of the distribution's packages cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// This system's package manager is none that is known.
    #[error("no package manager that is known is here, so `{program}` cannot come from a package")]
    NoManager {
        /// The program.
        program: String,
    },
    /// The plan knows packages for other systems only.
    #[error("no package of this system ({family}) is known to carry `{program}`")]
    NoTable {
        /// The program.
        program: String,
        /// Family of this system.
        family: &'static str,
        /// Families it is known for.
        known: Vec<String>,
    },
    /// The package manager cannot be asked like this.
    #[error("package `{package}` cannot be chosen like this: {reason}")]
    Objection {
        /// The package.
        package: String,
        /// Why.
        reason: &'static str,
    },
    /// An installed version is newer than the one asked for.
    #[error(
        "package `{package}` is installed in version {installed}, not older version {wanted}: \
         it is not downgraded from here"
    )]
    Newer {
        /// The package.
        package: String,
        /// Version there is.
        installed: String,
        /// Version asked for.
        wanted: String,
        /// What a person would type.
        command: String,
    },
    /// The repository has another version.
    #[error(
        "package `{package}` is asked for in version {wanted}, and repository `{repository}` \
         offers {offered}"
    )]
    OtherOffered {
        /// The package.
        package: String,
        /// Version asked for.
        wanted: String,
        /// Version it has.
        offered: String,
        /// The repository.
        repository: String,
    },
    /// Versions of the Arch User Repository cannot be chosen.
    #[error(
        "package `{package}` is asked for in version {wanted}, and the Arch User Repository \
         builds the newest only"
    )]
    AurVersion {
        /// The package.
        package: String,
        /// Version asked for.
        wanted: String,
    },
    /// No repository has it.
    #[error("no repository of this system has package `{package}`")]
    Unknown {
        /// The package as it was asked for.
        package: String,
        /// What a person would type to learn of newer ones.
        refresh: String,
    },
    /// After the installation it is not there, or in another version.
    #[error("package `{package}` is {} after its installation", there(installed.as_deref(), wanted.as_deref()))]
    NotAsked {
        /// The package.
        package: String,
        /// Version there is.
        installed: Option<String>,
        /// Version asked for.
        wanted: Option<String>,
    },
    /// The package does not carry the program.
    #[error("package `{package}` {version} has no program `{program}`")]
    NoProgram {
        /// The package.
        package: String,
        /// Its version.
        version: String,
        /// The program.
        program: String,
        /// Programs it has.
        has: Vec<String>,
    },
    /// The database could not be asked.
    #[error("the package database could not be asked")]
    Ask {
        /// Why.
        #[source]
        source: ProcessError,
    },
}

fn there(installed: Option<&str>, wanted: Option<&str>) -> String {
    match (installed, wanted) {
        (None, _) => "not there".to_owned(),
        (Some(installed), None) => format!("version {installed}"),
        (Some(installed), Some(wanted)) => format!("version {installed}, not {wanted},"),
    }
}

impl From<ProcessError> for PackageError {
    fn from(source: ProcessError) -> Self {
        Self::Ask { source }
    }
}

impl Fault for PackageError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoManager { .. } | Self::NoTable { .. } => Exit::Unavailable,
            Self::Objection { .. } => Exit::Config,
            Self::Ask { source } => source.exit(),
            _ => Exit::Step,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        let ask_for = |version: &str| {
            hint(
                format!("ask for that one: `package: {{version: \"{version}\"}}`"),
                None,
            )
        };
        match self {
            Self::NoManager { .. } | Self::NoTable { .. } => vec![hint(
                "choose another way with `--mode`, for example source or container",
                None,
            )],
            Self::Newer {
                installed, command, ..
            } => vec![
                ask_for(installed),
                hint("or install the older one yourself", Some(command)),
            ],
            Self::OtherOffered { offered, .. } => vec![
                ask_for(offered),
                hint(
                    "or install the other one yourself: it is used once it is there",
                    None,
                ),
            ],
            Self::AurVersion { package, .. } => vec![hint(
                "leave `package.version` out, or build that version yourself",
                Some(&format!("paru -S --needed {package}")),
            )],
            Self::Unknown { refresh, .. } => vec![
                hint("let this system look for newer packages", Some(refresh)),
                hint("or see which other ways there are", Some("{host} doctor")),
            ],
            Self::NoProgram { .. } => vec![hint(
                "name the package that carries it in `package.name`",
                None,
            )],
            Self::Ask { source } => source.hints(),
            Self::Objection { .. } | Self::NotAsked { .. } => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        let list = |name, words: &[String]| match words {
            [] => Vec::new(),
            words => vec![Detail::new(name, words.join(", "))],
        };
        match self {
            Self::NoTable { known, .. } => list("known for", known),
            Self::NoProgram { has, .. } => list("it has", has),
            Self::Ask { source } => source.details(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::NoManager { .. } => "no-package-manager",
            Self::NoTable { .. } => "no-package-for-system",
            Self::Objection { .. } => "bad-package",
            Self::Newer { .. } => "package-newer",
            Self::OtherOffered { .. } | Self::AurVersion { .. } => "package-version",
            Self::Unknown { .. } => "no-package",
            Self::NotAsked { .. } => "package-not-installed",
            Self::NoProgram { .. } => "package-without-program",
            Self::Ask { source } => source.kind(),
        }
    }
}
