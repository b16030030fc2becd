//! Operating system, processor, memory, package manager: what files say without asking anybody.

use std::{path::Path, sync::LazyLock};

use engine_provider_api::{Cpu, Memory, Os, PackageManager};
use regex::Regex;

use super::{asking::Versions, roots::Roots};

/// Reads os-release(5), the kernel's release and the C library's version.
pub(super) fn os(versions: &Versions<'_>) -> Os {
    let roots = versions.roots;
    let text = ["/etc/os-release", "/usr/lib/os-release"]
        .iter()
        .find_map(|path| roots.text(path))
        .unwrap_or_default();
    let field = |name: &str| os_release(&text, name);
    let id = field("ID");
    Os {
        id_like: field("ID_LIKE")
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        version: field("VERSION_ID"),
        name: Some(field("PRETTY_NAME"))
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| id.clone()),
        id,
        arch: std::env::consts::ARCH.to_owned(),
        kernel: roots.word("/proc/sys/kernel/osrelease").unwrap_or_default(),
        glibc: glibc(versions).unwrap_or_default(),
    }
}

/// A variable of os-release(5), quotes removed.
fn os_release(text: &str, name: &str) -> String {
    let mut lines = text.lines().rev();
    let value = lines.find_map(|line| {
        let (key, value) = line.trim().split_once('=')?;
        (key == name).then(|| value.trim())
    });
    let value = value.unwrap_or("");
    let quoted = ['"', '\'']
        .into_iter()
        .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    quoted.unwrap_or(value).replace("\\\"", "\"")
}

/// Version of glibc: the banner that stands in the library itself.
fn glibc(versions: &Versions<'_>) -> Option<String> {
    let arch = std::env::consts::ARCH;
    let places = [
        format!("/lib/{arch}-linux-gnu/libc.so.6"),
        "/lib64/libc.so.6".to_owned(),
        "/usr/lib64/libc.so.6".to_owned(),
        "/usr/lib/libc.so.6".to_owned(),
    ];
    let file = |path: &&String| versions.roots.real(path).is_file();
    versions.within(Path::new(places.iter().find(file)?), banner)
}

fn banner(library: &[u8]) -> Option<String> {
    let pattern = r"GNU C Library [^\n]{0,100}release version ([0-9]+\.[0-9]+)";
    let pattern = regex::bytes::Regex::new(pattern).expect("the pattern is a constant");
    let version = pattern.captures(library)?.get(1)?.as_bytes().to_owned();
    String::from_utf8(version).ok()
}

/// Reads /proc/cpuinfo; threads are those this process may use (affinity and cgroup quota).
pub(super) fn cpu(roots: &Roots) -> Cpu {
    let text = roots.text("/proc/cpuinfo").unwrap_or_default();
    let field = |names: &[&str]| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            names
                .contains(&name.trim())
                .then(|| value.trim().to_owned())
        })
    };
    let flags = field(&["flags", "Features"]).unwrap_or_default();
    let mut features: Vec<String> = flags
        .split_whitespace()
        .filter(|flag| is_instruction_set(flag))
        .map(str::to_owned)
        .collect();
    features.sort();
    features.dedup();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Cpu {
        model: field(&["model name", "Model", "CPU part"]).unwrap_or_default(),
        threads: u32::try_from(threads).unwrap_or(u32::MAX),
        features,
    }
}

/// Whether a flag of /proc/cpuinfo names instructions that compiled code may use. The others
/// (mitigations, power states, virtualisation) change with the kernel and would spoil cache keys.
fn is_instruction_set(flag: &str) -> bool {
    const STARTS: &[&str] = &[
        "avx", "amx", "sse", "ssse", "bmi", "vaes", "vpclmul", "asimd", "sve", "sme",
    ];
    const WHOLE: &[&str] = &[
        "abm",
        "adx",
        "aes",
        "atomics",
        "bf16",
        "crc32",
        "cx16",
        "f16c",
        "fma",
        "fma4",
        "fp",
        "fphp",
        "gfni",
        "i8mm",
        "lzcnt",
        "mmx",
        "movbe",
        "pclmulqdq",
        "pmull",
        "pni",
        "popcnt",
        "sha1",
        "sha2",
        "sha512",
        "sha_ni",
        "xop",
    ];
    WHOLE.contains(&flag) || STARTS.iter().any(|start| flag.starts_with(start))
}

/// Installed memory, or what this process's control group may use where that is less.
pub(super) fn memory(roots: &Roots) -> Memory {
    let text = roots.text("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kibibytes: Option<u64> = line.and_then(|it| it.split_whitespace().next()?.parse().ok());
        kibibytes.unwrap_or(0) * 1024
    };
    let mut memory = Memory {
        total_bytes: field("MemTotal"),
        available_bytes: field("MemAvailable"),
    };
    for (limit, used) in cgroup_limits(roots) {
        memory.total_bytes = memory.total_bytes.min(limit);
        memory.available_bytes = memory.available_bytes.min(limit.saturating_sub(used));
    }
    memory
}

/// Bytes of files that a control group is charged for and can let go of, as `memory.stat` tells. What
/// has just been downloaded and hashed is among it.
fn cached_files(stat: &str) -> u64 {
    let total = |names: [&str; 2]| {
        let fields = stat.lines().filter_map(|line| line.split_once(' '));
        let wanted = fields.filter(|(name, _)| names.contains(name));
        let bytes = wanted.filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok());
        bytes.reduce(u64::saturating_add)
    };
    // Version 1 has figures with and without the groups below.
    total(["total_inactive_file", "total_active_file"])
        .or_else(|| total(["inactive_file", "active_file"]))
        .unwrap_or(0)
}

/// Limit and use of this process's control group and all above it, in bytes.
fn cgroup_limits(roots: &Roots) -> Vec<(u64, u64)> {
    let text = roots.text("/proc/self/cgroup").unwrap_or_default();
    let number = |path: &Path| roots.word(path)?.parse::<u64>().ok();
    let mut limits = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (mount, limit, usage) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            "memory" => (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            ),
            _ => continue,
        };
        let inner = Path::new(mount).join(group.trim_start_matches('/'));
        for directory in inner.ancestors().take_while(|path| path.starts_with(mount)) {
            // "max", or a missing file, is no limit.
            if let Some(bytes) = number(&directory.join(limit)) {
                let used = number(&directory.join(usage)).unwrap_or(0);
                let stat = roots
                    .text(directory.join("memory.stat"))
                    .unwrap_or_default();
                limits.push((bytes, used.saturating_sub(cached_files(&stat))));
            }
        }
    }
    limits
}

/// The package manager of the distribution's family, where it is there.
pub(super) fn package_manager(roots: &Roots, os: &Os) -> Option<PackageManager> {
    const FAMILIES: &[(&str, &[&str], &[&str])] = &[
        (
            "pacman",
            &["arch", "cachyos", "manjaro", "endeavouros"],
            &["/usr/bin/pacman"],
        ),
        ("apt", &["debian", "ubuntu"], &["/usr/bin/apt-get"]),
        (
            "dnf",
            &["fedora", "rhel", "centos", "rocky", "almalinux", "amzn"],
            &["/usr/bin/dnf", "/usr/bin/dnf5"],
        ),
    ];
    let names: Vec<&str> = std::iter::once(os.id.as_str())
        .chain(os.id_like.iter().map(String::as_str))
        .collect();
    let is_family = |ids: &[&str]| names.iter().any(|name| ids.contains(name));
    let found = |programs: &[&str]| {
        let path = programs.iter().find(|path| roots.is_program(path))?;
        Some((*path).to_owned())
    };
    // The distribution's own family first: pacman on a Debian machine is a visitor.
    let by_family = FAMILIES.iter().filter(|(_, ids, _)| is_family(ids));
    let others = FAMILIES.iter().filter(|(_, ids, _)| !is_family(ids));
    by_family.chain(others).find_map(|(family, _, programs)| {
        Some(PackageManager {
            family: (*family).to_owned(),
            path: found(programs)?,
        })
    })
}

/// First version number in a text: digits with at least one dot.
pub(super) fn version_in(text: &str) -> Option<String> {
    static VERSION: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[0-9]+(?:\.[0-9]+)+").expect("the pattern is a constant"));
    Some(VERSION.find(text)?.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{asking::Processes, testing::FakeMachine};

    fn os(roots: &Roots) -> Os {
        super::os(&Versions::new(&Processes, roots, None, None))
    }

    #[test]
    fn the_system_is_read_from_its_files() {
        let machine = FakeMachine::default();
        machine.write(
            "/etc/os-release",
            "ID=cachyos\nID_LIKE=\"arch\"\nPRETTY_NAME='CachyOS'\n# x\n",
        );
        machine.write("/proc/sys/kernel/osrelease", "6.12.1\n");
        machine.write(
            "/usr/lib/libc.so.6",
            "\0\u{1}GNU C Library (GNU libc) stable release version 2.40.\nCopyright\0",
        );
        machine.program("/usr/bin/pacman", "");
        machine.program("/usr/bin/apt-get", "");
        let os = os(&machine.roots());
        assert_eq!(
            (os.id.as_str(), os.name.as_str(), os.version.as_str()),
            ("cachyos", "CachyOS", "")
        );
        assert_eq!((os.kernel.as_str(), os.glibc.as_str()), ("6.12.1", "2.40"));
        let manager = package_manager(&machine.roots(), &os).unwrap();
        assert_eq!(manager.family, "pacman");
    }

    #[test]
    fn a_machine_without_files_is_no_error() {
        let machine = FakeMachine::default();
        let roots = machine.roots();
        assert_eq!(os(&roots).id, "");
        assert_eq!(memory(&roots), Memory::default());
        assert_eq!(package_manager(&roots, &os(&roots)), None);
        assert!(cpu(&roots).threads >= 1);
    }

    #[test]
    fn memory_is_what_the_control_group_leaves() {
        let machine = FakeMachine::default();
        machine.write(
            "/proc/meminfo",
            "MemTotal: 1000 kB\nMemAvailable:  900 kB\n",
        );
        machine.write("/proc/self/cgroup", "0::/a/b\n");
        machine.write("/sys/fs/cgroup/a/memory.max", "409600\n");
        machine.write("/sys/fs/cgroup/a/memory.current", "102400\n");
        machine.write("/sys/fs/cgroup/a/b/memory.max", "max\n");
        let seen = memory(&machine.roots());
        assert_eq!((seen.total_bytes, seen.available_bytes), (409_600, 307_200));
        // Files that were read are let go of where room is needed.
        let stat = "anon 20480\ninactive_file 40960\nactive_file 20480\n";
        machine.write("/sys/fs/cgroup/a/memory.stat", stat);
        assert_eq!(memory(&machine.roots()).available_bytes, 368_640);
    }

    #[test]
    fn only_instructions_count_as_features() {
        let machine = FakeMachine::default();
        machine.write(
            "/proc/cpuinfo",
            "model name\t: X 1\nflags\t\t: fpu vme avx2 sse4_2 avx512f ibrs fma hypervisor\n",
        );
        let cpu = cpu(&machine.roots());
        assert_eq!(cpu.model, "X 1");
        assert_eq!(cpu.features, ["avx2", "avx512f", "fma", "sse4_2"]);
    }

    #[test]
    fn versions_are_found_in_what_tools_print() {
        for (text, version) in [
            ("git version 2.39.5", "2.39.5"),
            ("gcc (Debian 12.2.0-14+deb12u1) 12.2.0", "12.2.0"),
            ("GNU Make 4.3\nBuilt for", "4.3"),
            ("Docker version 20.10.24+dfsg1, build 297e128", "20.10.24"),
            (
                "Copyright (c) 2005-2024\nCuda compilation tools, release 12.4, V12.4.131",
                "12.4",
            ),
        ] {
            assert_eq!(version_in(text).as_deref(), Some(version));
        }
        assert_eq!(version_in("none"), None);
    }
}
