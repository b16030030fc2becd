//! Devices by the names of the Container Device Interface.
//!
//! Descriptions lie in directories, JSON or YAML; those of a later directory win. Two descriptions of
//! one device in the same directory make it unusable for every runtime, so it is not listed. A
//! description that cannot be read is told as evidence and hides nothing else. Format: the CDI
//! specification, version 0.3.0 and later (`kind`, `devices[].name`).

use std::collections::{BTreeMap, BTreeSet};

use engine_provider_api::Evidence;
use serde::Deserialize;

use super::Roots;

/// Directories that all runtimes read, the one that wins last.
pub(super) const USUAL_DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// Most bytes of one description that are read: those of eight GPUs with all their slices have less
/// than a tenth.
const SIZE_LIMIT: u64 = 8 * 1024 * 1024;

/// Who says what stands here, in evidence.
const SOURCE: &str = "cdi";

#[derive(Debug, Deserialize)]
struct Spec {
    kind: String,
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Debug, Deserialize)]
struct Device {
    name: String,
}

/// Full names of all devices, sorted, and what was wrong with descriptions.
pub(super) fn devices<'a>(
    roots: &Roots,
    directories: impl IntoIterator<Item = &'a str>,
) -> (Vec<String>, Vec<Evidence>) {
    let mut devices = BTreeSet::new();
    let mut evidence = Vec::new();
    for directory in directories {
        let mut here: BTreeMap<String, u32> = BTreeMap::new();
        let names = roots.names(directory);
        for name in names.iter().filter(|name| is_description(name)) {
            let path = format!("{directory}/{name}");
            match read(roots, &path) {
                Ok(names) => {
                    for name in names {
                        *here.entry(name).or_default() += 1;
                    }
                }
                Err(reason) => evidence.push(finding(format!("{path}: {reason}"))),
            }
        }
        for (name, times) in here {
            if times == 1 {
                devices.insert(name);
            } else {
                devices.remove(&name);
                evidence.push(finding(format!(
                    "`{name}` is described {times} times in {directory}: runtimes refuse it"
                )));
            }
        }
    }
    (devices.into_iter().collect(), evidence)
}

fn finding(finding: String) -> Evidence {
    Evidence {
        source: SOURCE.to_owned(),
        finding,
    }
}

fn is_description(name: &str) -> bool {
    name.ends_with(".json") || name.ends_with(".yaml")
}

fn read(roots: &Roots, path: &str) -> Result<Vec<String>, String> {
    let real = roots.real(path);
    let metadata = std::fs::metadata(&real).map_err(|error| error.to_string())?;
    if !metadata.is_file() || metadata.len() > SIZE_LIMIT {
        return Err("it is no description of devices".to_owned());
    }
    let text = std::fs::read_to_string(&real).map_err(|error| error.to_string())?;
    names(&text, path.ends_with(".json"))
}

/// Full names of the devices in one description.
fn names(text: &str, is_json: bool) -> Result<Vec<String>, String> {
    let one_line = |error: String| error.lines().next().unwrap_or_default().to_owned();
    let spec: Spec = if is_json {
        serde_json::from_str(text).map_err(|error| one_line(error.to_string()))?
    } else {
        serde_saphyr::from_str(text).map_err(|error| one_line(error.to_string()))?
    };
    let is_kind = spec
        .kind
        .split_once('/')
        .is_some_and(|(vendor, class)| is_word(vendor, b"-_.") && is_word(class, b"-_"));
    if !is_kind {
        return Err(format!(
            "`{}` is no kind of device",
            spec.kind.escape_debug()
        ));
    }
    let wrong = spec.devices.iter().find(|it| !is_word(&it.name, b"-_.:"));
    if let Some(device) = wrong {
        return Err(format!("`{}` is no device", device.name.escape_debug()));
    }
    let full = |device: Device| format!("{}={}", spec.kind, device.name);
    Ok(spec.devices.into_iter().map(full).collect())
}

fn is_word(text: &str, more: &[u8]) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::testing::FakeMachine;

    fn look(machine: &FakeMachine) -> (Vec<String>, Vec<String>) {
        let (devices, evidence) = devices(&machine.roots(), USUAL_DIRECTORIES);
        (devices, evidence.into_iter().map(|it| it.finding).collect())
    }

    #[test]
    fn devices_are_named_in_full_from_yaml_and_json() {
        let machine = FakeMachine::default();
        machine.write(
            "/etc/cdi/nvidia.yaml",
            "---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n  - name: \"0\"\n    containerEdits:\n      deviceNodes:\n        - path: /dev/nvidia0\n  - name: 0:1\n  - name: all\ncontainerEdits:\n  env:\n    - NVIDIA_VISIBLE_DEVICES=void\n",
        );
        machine.write(
            "/var/run/cdi/other.json",
            r#"{"cdiVersion":"0.6.0","kind":"vendor.com/net","devices":[{"name":"eth0","containerEdits":{}}]}"#,
        );
        machine.write("/etc/cdi/notes.txt", "nothing");
        let (devices, evidence) = look(&machine);
        assert_eq!(
            devices,
            [
                "nvidia.com/gpu=0",
                "nvidia.com/gpu=0:1",
                "nvidia.com/gpu=all",
                "vendor.com/net=eth0"
            ]
        );
        assert_eq!(evidence, [""; 0]);
        assert_eq!(look(&FakeMachine::default()), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_broken_description_is_evidence_and_hides_no_other() {
        let machine = FakeMachine::default();
        machine.write("/etc/cdi/a.json", "{");
        machine.write("/etc/cdi/b.yaml", "kind: gpu\ndevices: []\n");
        machine.write(
            "/etc/cdi/c.json",
            r#"{"kind":"nvidia.com/gpu","devices":[{"name":"0"}]}"#,
        );
        let (devices, evidence) = look(&machine);
        assert_eq!(devices, ["nvidia.com/gpu=0"]);
        assert_eq!(evidence.len(), 2);
        assert!(evidence[0].starts_with("/etc/cdi/a.json: "), "{evidence:?}");
        assert_eq!(evidence[1], "/etc/cdi/b.yaml: `gpu` is no kind of device");
    }

    #[test]
    fn what_is_described_twice_in_one_directory_is_refused_as_runtimes_do() {
        let machine = FakeMachine::default();
        let spec = r#"{"kind":"nvidia.com/gpu","devices":[{"name":"0"}]}"#;
        machine.write("/etc/cdi/a.json", spec);
        machine.write("/etc/cdi/b.json", spec);
        let (devices, evidence) = look(&machine);
        assert_eq!(devices, [""; 0]);
        assert_eq!(evidence.len(), 1);
        // A later directory decides.
        machine.write("/var/run/cdi/c.json", spec);
        assert_eq!(look(&machine).0, ["nvidia.com/gpu=0"]);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_name_that_is_none(text in "(kind: [a-z./ -]{0,12}\n)?(devices: \\[?.{0,30}\\]?)?.{0,20}", json: bool) {
            for name in names(&text, json).unwrap_or_default() {
                proptest::prop_assert!(!name.contains(char::is_whitespace) && name.contains('='), "{name}");
            }
        }
    }
}
