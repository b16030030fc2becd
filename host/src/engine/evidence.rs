//! Whether an engine sits on the GPU, by its own words. Pure: works on the text of a log.

use std::collections::BTreeMap;

use engine_provider_api::GpuEvidence;
use regex::Regex;

/// Judges a log: what it says for the GPU, in words, where it is a witness at all. `Err` says what is missing;
/// it may still come while output is on its way.
pub(super) fn judge(evidence: &GpuEvidence, log: &str) -> Result<Option<String>, String> {
    for pattern in &evidence.disproofs {
        let pattern = compile(pattern)?;
        if let Some(line) = log.lines().find(|line| pattern.is_match(line)) {
            return Err(format!("its log says `{}`", line.trim()));
        }
    }
    let mut proof = None;
    for pattern in &evidence.proofs {
        let compiled = compile(pattern)?;
        let found = log.lines().find_map(|line| compiled.find(line));
        let Some(found) = found else {
            return Err(format!("its log has no line that matches `{pattern}`"));
        };
        proof.get_or_insert_with(|| format!("its log says `{}`", found.as_str().trim()));
    }
    if evidence.buffers.is_empty() {
        // The log does not tell which device holds what.
        return Ok(proof);
    }
    let held = buffers(&evidence.buffers, log)?;
    let total: f64 = held.values().sum();
    if held.is_empty() || total <= 0.0 {
        return Err("its log names no buffers".to_owned());
    }
    let on = |device: &String| held.get(device).copied().unwrap_or(0.0);
    if let Some(empty) = evidence.devices.iter().find(|device| on(device) <= 0.0) {
        return Err(format!("{empty} holds nothing; {}", words(&held)));
    }
    let share = 100.0 * evidence.devices.iter().map(on).sum::<f64>() / total;
    if share < f64::from(evidence.least_percent) {
        return Err(format!(
            "{share:.0} % of its buffers lie on {}, at least {} % must; {}",
            evidence.devices.join(", "),
            evidence.least_percent,
            words(&held)
        ));
    }
    Ok(Some(words(&held)))
}

/// MiB per device, over all lines that name a buffer.
fn buffers(patterns: &[String], log: &str) -> Result<BTreeMap<String, f64>, String> {
    let mut held = BTreeMap::new();
    for pattern in patterns {
        let pattern = compile(pattern)?;
        for captures in log.lines().filter_map(|line| pattern.captures(line)) {
            let device = captures.name("device").map(|group| group.as_str());
            let mib = captures
                .name("mib")
                .and_then(|group| group.as_str().parse().ok());
            if let (Some(device), Some(mib)) = (device, mib) {
                let mib: f64 = mib;
                *held.entry(device.to_owned()).or_default() += mib;
            }
        }
    }
    Ok(held)
}

fn words(held: &BTreeMap<String, f64>) -> String {
    let shares: Vec<String> = held
        .iter()
        .map(|(device, mib)| format!("{device} {mib:.0} MiB"))
        .collect();
    format!("its log says {}", shares.join(", "))
}

fn compile(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern).map_err(|_| format!("the provider's pattern `{pattern}` cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence() -> GpuEvidence {
        GpuEvidence {
            devices: vec!["CUDA0".to_owned()],
            buffers: vec![
                r"(?P<device>\S+) (?:model|KV) buffer size\s*=\s*(?P<mib>[0-9.]+) MiB".to_owned(),
            ],
            least_percent: 90,
            disproofs: vec![r"CPU\S* KV buffer".to_owned()],
            ..GpuEvidence::default()
        }
    }

    #[test]
    fn a_model_on_the_gpu_is_believed() {
        let log = "load: CPU_Mapped model buffer size =   52.00 MiB\n\
                   load: CUDA0 model buffer size =  918.57 MiB\n\
                   kv: CUDA0 KV buffer size =  128.00 MiB\n";
        let said = "its log says CPU_Mapped 52 MiB, CUDA0 1047 MiB".to_owned();
        assert_eq!(judge(&evidence(), log), Ok(Some(said)));
    }

    #[test]
    fn a_model_in_main_memory_is_not() {
        let log = "load: CPU_Mapped model buffer size = 918.57 MiB\n";
        assert_eq!(
            judge(&evidence(), log).unwrap_err(),
            "CUDA0 holds nothing; its log says CPU_Mapped 919 MiB"
        );
        let half = format!("{log}load: CUDA0 model buffer size = 900 MiB\n");
        assert_eq!(
            judge(&evidence(), &half).unwrap_err(),
            "49 % of its buffers lie on CUDA0, at least 90 % must; its log says CPU_Mapped 919 MiB, CUDA0 900 MiB"
        );
        let spilled = "CUDA0 model buffer size = 900 MiB\nkv: CPU KV buffer size = 1 MiB";
        assert_eq!(
            judge(&evidence(), spilled).unwrap_err(),
            "its log says `kv: CPU KV buffer size = 1 MiB`"
        );
        assert_eq!(
            judge(&evidence(), "").unwrap_err(),
            "its log names no buffers"
        );
    }

    #[test]
    fn every_proof_must_be_there_where_the_log_tells_no_buffers() {
        let evidence = GpuEvidence {
            proofs: vec!["device=cuda".to_owned(), "Model loading took".to_owned()],
            disproofs: vec!["falling back to CPU".to_owned()],
            ..GpuEvidence::default()
        };
        let log = "INFO device=cuda\nINFO Model loading took 1 GiB\n";
        let said = "its log says `device=cuda`".to_owned();
        assert_eq!(judge(&evidence, log), Ok(Some(said)));
        assert_eq!(
            judge(&evidence, "INFO device=cuda\n").unwrap_err(),
            "its log has no line that matches `Model loading took`"
        );
        assert!(judge(&evidence, &format!("{log}falling back to CPU\n")).is_err());
        // One that never tells is no witness.
        assert_eq!(judge(&GpuEvidence::default(), log), Ok(None));
    }
}
