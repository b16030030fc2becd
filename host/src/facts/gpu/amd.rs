//! AMD GPUs, from the files of the kernel's compute driver (kfd).

use std::collections::BTreeMap;

use engine_provider_api::Gpu;

use super::super::roots::Roots;

const NODES: &str = "/sys/class/kfd/kfd/topology/nodes";

/// GPUs that kfd lists, and one line about it; `None` where there is no kfd.
pub(super) fn devices(roots: &Roots) -> Option<(Vec<Gpu>, String)> {
    let nodes = roots.names(NODES);
    if nodes.is_empty() {
        return None;
    }
    let mut devices: Vec<Gpu> = Vec::new();
    for node in nodes {
        let index = u32::try_from(devices.len()).unwrap_or(u32::MAX);
        devices.extend(device(roots, &node, index));
    }
    let usable = roots.exists("/dev/kfd");
    let finding = match (devices.len(), usable) {
        (0, _) => "no GPU node".to_owned(),
        (count, true) => format!("{count} device(s)"),
        (count, false) => format!("{count} device(s), but /dev/kfd is not there"),
    };
    if !usable {
        devices.clear();
    }
    Some((devices, finding))
}

fn device(roots: &Roots, node: &str, index: u32) -> Option<Gpu> {
    let text = roots.text(format!("{NODES}/{node}/properties"))?;
    let properties = properties(&text);
    let number = |name: &str| properties.get(name).copied().unwrap_or(0);
    // Processors are nodes too; they have no vector units of this kind.
    if number("simd_count") == 0 {
        return None;
    }
    let banks = format!("{NODES}/{node}/mem_banks");
    let memory: u64 = roots
        .names(&banks)
        .iter()
        .filter_map(|bank| roots.text(format!("{banks}/{bank}/properties")))
        .filter_map(|text| self::properties(&text).get("size_in_bytes").copied())
        .sum();
    let name = roots
        .word(format!("{NODES}/{node}/name"))
        .unwrap_or_default();
    Some(Gpu {
        index,
        uuid: format!("GPU-{:016x}", number("unique_id")),
        name: target(number("gfx_target_version"), &name),
        vendor: "amd".to_owned(),
        compute_capability: String::new(),
        memory_total_bytes: memory,
        memory_free_bytes: memory,
        mig: false,
    })
}

/// `110000` is gfx1100: two digits each for major, minor and stepping, the last in hexadecimal.
fn target(version: u64, name: &str) -> String {
    let target = format!(
        "gfx{}{}{:x}",
        version / 10_000,
        version / 100 % 100,
        version % 100
    );
    match (version, name) {
        (0, name) => format!("AMD {name}"),
        (_, "") => format!("AMD {target}"),
        (_, name) => format!("AMD {name} ({target})"),
    }
}

fn properties(text: &str) -> BTreeMap<&str, u64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            Some((name, value.trim().parse().ok()?))
        })
        .collect()
}
