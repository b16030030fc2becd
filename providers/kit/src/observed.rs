//! Whether a program that was asked something started at all.

use engine_provider_api::{Facts, Output, ProviderError};

/// Shared libraries that a program from elsewhere most often lacks, and the packages that carry them.
const PACKAGES: &[(&str, &str, &str)] = &[
    ("libgomp.so.1", "apt", "libgomp1"),
    ("libgomp.so.1", "dnf", "libgomp"),
    ("libgomp.so.1", "pacman", "gcc-libs"),
    ("libcurl.so.4", "apt", "libcurl4"),
    ("libcurl.so.4", "dnf", "libcurl"),
    ("libcurl.so.4", "pacman", "curl"),
    ("libssl.so.3", "apt", "libssl3"),
    ("libssl.so.3", "dnf", "openssl-libs"),
    ("libssl.so.3", "pacman", "openssl"),
    ("libvulkan.so.1", "apt", "libvulkan1"),
    ("libvulkan.so.1", "dnf", "vulkan-loader"),
    ("libvulkan.so.1", "pacman", "vulkan-icd-loader"),
];

/// Refuses a program that the loader could not start: a library is missing, or too old. `called` is
/// what it is called in the message.
pub fn started(output: Option<&Output>, called: &str, facts: &Facts) -> Result<(), ProviderError> {
    let Some(reason) = output.and_then(not_loaded) else {
        return Ok(());
    };
    let message = format!("{called} does not start on this machine");
    let error = ProviderError::unavailable(message).because(reason);
    let library = reason.split(':').next().unwrap_or_default();
    if reason.contains("version `") {
        return Err(error.hint("take a build for a distribution as old as this one"));
    }
    Err(match package(library, facts) {
        Some(command) => error.fix(format!("install {library}"), command),
        None => error.hint(format!("install the package that carries {library}")),
    })
}

/// What the loader said: `libgomp.so.1: cannot open shared object file: …`, or
/// `/lib/libc.so.6: version `GLIBC_2.38' not found (required by …)`.
fn not_loaded(output: &Output) -> Option<&str> {
    let mut lines = output.stderr.lines();
    lines.find_map(|line| {
        let missing = "error while loading shared libraries: ";
        let from = line.find(missing).map(|at| at + missing.len());
        let old = || {
            let version = line.find(": version `")?;
            let path = line[..version].rfind(": ").map_or(0, |at| at + 2);
            line.contains("' not found").then_some(path)
        };
        from.or_else(old).map(|from| line[from..].trim())
    })
}

fn package(library: &str, facts: &Facts) -> Option<String> {
    let family = &facts.package_manager.as_ref()?.family;
    let python = library
        .strip_prefix("libpython")
        .and_then(|rest| rest.split_once(".so"));
    let package = match python {
        Some((version, _)) if family == "apt" => format!("libpython{version}"),
        Some(_) => return None,
        None => {
            let row = PACKAGES
                .iter()
                .find(|row| row.0 == library && row.1 == family);
            row?.2.to_owned()
        }
    };
    Some(match family.as_str() {
        "dnf" => format!("sudo dnf install {package}"),
        "pacman" => format!("sudo pacman -S {package}"),
        _ => format!("sudo apt-get install {package}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_provider_api::PackageManager;

    fn refusal(stderr: &str, family: &str) -> ProviderError {
        let output = Output {
            exit: Some(127),
            stderr: stderr.to_owned(),
            ..Output::default()
        };
        let facts = Facts {
            package_manager: Some(PackageManager {
                family: family.to_owned(),
                ..PackageManager::default()
            }),
            ..Facts::default()
        };
        started(Some(&output), "the tool", &facts).unwrap_err()
    }

    #[test]
    fn a_missing_library_is_named_with_the_package_that_carries_it() {
        let said = "/x/tool: error while loading shared libraries: libgomp.so.1: cannot open shared \
                    object file: No such file or directory\n";
        let error = refusal(said, "apt");
        assert_eq!(error.message, "the tool does not start on this machine");
        assert!(error.causes[0].starts_with("libgomp.so.1: cannot open"));
        let command = error.hints[0].command.as_deref();
        assert_eq!(command, Some("sudo apt-get install libgomp1"));
        let other = said.replace("libgomp.so.1", "libodd.so.7");
        let hint = &refusal(&other, "apt").hints[0];
        assert_eq!(hint.text, "install the package that carries libodd.so.7");
        let python = said.replace("libgomp.so.1", "libpython3.11.so.1.0");
        let command = refusal(&python, "apt").hints[0].command.clone();
        assert_eq!(
            command.as_deref(),
            Some("sudo apt-get install libpython3.11")
        );
    }

    #[test]
    fn a_library_that_is_too_old_is_named() {
        let said = "/x/tool: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found \
                    (required by /x/tool)\n";
        let error = refusal(said, "apt");
        assert!(error.causes[0].starts_with("/lib/x86_64-linux-gnu/libc.so.6: version"));
        assert!(error.hints[0].text.contains("as old as this one"));
    }

    #[test]
    fn a_program_that_says_something_has_started() {
        for stderr in ["", "version: 1", "Expected 9 arguments, found 1 arguments."] {
            let output = Output {
                exit: Some(1),
                stderr: stderr.to_owned(),
                ..Output::default()
            };
            assert!(started(Some(&output), "x", &Facts::default()).is_ok());
        }
        assert!(started(None, "x", &Facts::default()).is_ok());
    }
}
