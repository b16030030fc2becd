//! What `nvidia-smi` prints.

use engine_provider_api::Gpu;

/// Its arguments; columns in the order [`parse`] reads them.
pub(super) const QUERY: &[&str] = &[
    "--query-gpu=index,uuid,name,compute_cap,memory.total,memory.free,driver_version,mig.mode.current",
    "--format=csv,noheader,nounits",
];

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub devices: Vec<Gpu>,
    pub driver: Option<String>,
    /// Whether some GPU is in slices, which only `nvidia-smi -L` lists.
    pub sliced: bool,
}

/// Reads comma-separated lines; the first that is not understood is the error.
pub(super) fn parse(text: &str) -> Result<Found, String> {
    let mut found = Found {
        devices: Vec::new(),
        driver: None,
        sliced: false,
    };
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (gpu, driver, sliced) = row(line).ok_or_else(|| line.to_owned())?;
        found.devices.push(gpu);
        found.driver = Some(driver);
        found.sliced |= sliced;
    }
    Ok(found)
}

fn row(line: &str) -> Option<(Gpu, String, bool)> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    // A product name may hold commas: it is what lies between the fixed columns.
    let [index, uuid, name @ .., capability, total, free, driver, mig] = fields.as_slice() else {
        return None;
    };
    let mebibytes = |text: &str| Some(text.parse::<u64>().ok()? * 1024 * 1024);
    let gpu = Gpu {
        index: index.parse().ok()?,
        uuid: (*uuid).to_owned(),
        name: name.join(", "),
        vendor: "nvidia".to_owned(),
        compute_capability: (*capability).to_owned(),
        memory_total_bytes: mebibytes(total)?,
        memory_free_bytes: mebibytes(free)?,
        mig: false,
    };
    Some((gpu, (*driver).to_owned(), *mig == "Enabled"))
}

/// Puts slices in the place of GPUs that are sliced; `list` is what `nvidia-smi -L` prints.
///
/// A slice's memory is read from its profile (`1g.10gb`), the only place that names it there.
pub(super) fn with_slices(devices: Vec<Gpu>, list: &str) -> Vec<Gpu> {
    let mut result = Vec::new();
    for device in devices {
        let slices = slices_of(&device, list);
        if slices.is_empty() {
            result.push(device);
        } else {
            result.extend(slices);
        }
    }
    result
}

fn slices_of(device: &Gpu, list: &str) -> Vec<Gpu> {
    let heading = format!("GPU {}:", device.index);
    list.lines()
        .skip_while(|line| !line.starts_with(&heading))
        .skip(1)
        .take_while(|line| !line.starts_with("GPU "))
        .filter_map(|line| {
            let line = line.trim().strip_prefix("MIG ")?;
            let profile = line.split_whitespace().next()?;
            let uuid = line.split("UUID:").nth(1)?.trim().trim_end_matches(')');
            let gigabytes = profile.split('.').nth(1)?.trim_end_matches("gb");
            let bytes = gigabytes.parse::<u64>().ok()? * 1024 * 1024 * 1024;
            Some(Gpu {
                uuid: uuid.to_owned(),
                name: format!("{} MIG {profile}", device.name),
                memory_total_bytes: bytes,
                memory_free_bytes: bytes,
                mig: true,
                ..device.clone()
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_slices_take_the_place_of_their_gpu() {
        let text = "0, GPU-aa, NVIDIA H100 80GB HBM3, 9.0, 81559, 81000, 570.86.15, Enabled\n\
                    1, GPU-bb, NVIDIA GeForce RTX 3090, 8.6, 24576, 24000, 570.86.15, [N/A]\n";
        let found = parse(text).unwrap();
        assert!(found.sliced);
        assert_eq!(found.driver.as_deref(), Some("570.86.15"));
        let list = "GPU 0: NVIDIA H100 (UUID: GPU-aa)\n  MIG 1g.10gb     Device  0: (UUID: MIG-1)\n  \
                    MIG 2g.20gb     Device  1: (UUID: MIG-2)\nGPU 1: RTX (UUID: GPU-bb)\n";
        let devices = with_slices(found.devices, list);
        let shown: Vec<String> = devices
            .iter()
            .map(|it| {
                format!(
                    "{} {} {} {}",
                    it.index,
                    it.uuid,
                    it.mig,
                    it.memory_total_bytes >> 30
                )
            })
            .collect();
        assert_eq!(
            shown,
            ["0 MIG-1 true 10", "0 MIG-2 true 20", "1 GPU-bb false 24"]
        );
    }

    #[test]
    fn a_line_that_is_not_understood_is_told() {
        assert_eq!(
            parse("No devices were found\n"),
            Err("No devices were found".to_owned())
        );
        assert_eq!(parse("").unwrap().devices, []);
    }
}
