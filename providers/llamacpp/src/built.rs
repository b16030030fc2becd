//! What was really built or found, as the program itself tells it.

use engine_provider_api::{ErrorCode, Output, PrepareRequest, ProviderError};
use engine_provider_kit::{container, gpu, help::Help, observed};

use crate::{CLONE, DEVICES, Decision, HELP, VERSION, backend::Backend, origin::Origin, package};

/// What is known of the program; before it is there, what is planned.
pub(crate) struct Built {
    pub help: Option<Help>,
    /// What it is called, once that is known.
    pub version: Option<String>,
    /// Whether it sees the GPUs that were chosen; before the build, whether any were.
    pub on_gpu: bool,
    /// GPUs that it sees, once it has been asked.
    seen: Option<usize>,
}

impl Built {
    pub(crate) fn observe(
        decision: &Decision,
        request: &PrepareRequest,
    ) -> Result<Self, ProviderError> {
        observed::started(
            request.output(VERSION),
            decision.origin.called(),
            decision.facts,
        )?;
        let help = request
            .output(HELP)
            .map(text)
            .map(|text| Help::parse(&text));
        let planned = !decision.target.gpus.is_empty();
        let Some(devices) = request.output(DEVICES) else {
            return Ok(Self {
                help,
                version: unobserved_version(decision, request),
                on_gpu: planned,
                seen: None,
            });
        };
        let prefix = decision.target.backend.device_prefix();
        let seen = listed(devices, prefix);
        let on_gpu = planned && seen >= decision.target.gpus.len();
        if planned && !on_gpu && decision.requires_gpu() {
            return Err(too_few_devices(decision, seen, devices));
        }
        let version = match (&decision.origin, request.output(VERSION)) {
            (Origin::Source { source, .. }, Some(output)) => {
                let known = source.short_commit();
                Some(built_version(decision, request, known, output, on_gpu)?)
            }
            (Origin::Binary(binary), Some(output)) => {
                let text = text(output);
                Some(binary.version(build_said(&text)))
            }
            _ => unobserved_version(decision, request),
        };
        Ok(Self {
            help,
            version,
            on_gpu,
            seen: Some(seen),
        })
    }

    /// What to warn of where fewer GPUs are seen than were chosen, and the pool runs all the same.
    pub(crate) fn shortfall(&self, decision: &Decision) -> Option<String> {
        let seen = self
            .seen
            .filter(|seen| *seen < decision.target.gpus.len())?;
        Some(format!(
            "{}: it runs on the processor",
            too_few(decision, seen)
        ))
    }
}

/// Devices with this prefix in the output of `--list-devices`, one line each: `  CUDA0: NAME (…)`.
pub(crate) fn listed(output: &Output, prefix: &str) -> usize {
    let number = |line: &str| {
        let (name, _) = line.trim_start().split_once(':')?;
        name.strip_prefix(prefix)?.parse::<u32>().ok()
    };
    output.stdout.lines().filter_map(number).count()
}

fn too_few(decision: &Decision, seen: usize) -> String {
    format!(
        "{} for {} sees {seen} of the {} GPUs of pool `{}`",
        decision.origin.called(),
        decision.target.backend.name(),
        decision.target.gpus.len(),
        decision.pool.id,
    )
}

fn too_few_devices(decision: &Decision, seen: usize, output: &Output) -> ProviderError {
    let error = ProviderError::unavailable(too_few(decision, seen));
    let lines = output.stdout.lines().chain(output.stderr.lines());
    let said = lines.filter(|line| !line.trim().is_empty()).take(8);
    let error = said.fold(error, |error, line| error.because(line.trim()));
    let error = error.hint("check that the user engines run as may open the GPU's device files");
    gpu::allow_processor(error)
}

/// What packages, images and most downloads are called does not depend on looking at the program.
fn unobserved_version(decision: &Decision, request: &PrepareRequest) -> Option<String> {
    match &decision.origin {
        Origin::Package(_) => package::version(request.artifact(package::INSTALL)),
        Origin::Image(_) => Some(container::version(request)),
        Origin::Binary(binary) => binary.known_version(),
        Origin::Source { .. } => None,
    }
}

/// The build in `version: 7000 (…)` or `version: … (build 7000, …)`.
fn build_said(text: &str) -> Option<&str> {
    let rest = text.split_once("version: ")?.1;
    let rest = rest.split_once("(build ").map_or(rest, |(_, rest)| rest);
    let number = rest.split([',', ' ', ')', '\n']).next()?;
    (!number.is_empty()).then_some(number)
}

/// The version from what was observed. A program that names another commit than the one checked
/// out is refused: something else was built.
fn built_version(
    decision: &Decision,
    request: &PrepareRequest,
    known_commit: Option<&str>,
    output: &Output,
    on_gpu: bool,
) -> Result<String, ProviderError> {
    let said = text(output);
    let said = said.split_once("commit ").map_or("", |(_, rest)| rest);
    let said = said.split([')', ' ', '\n']).next().unwrap_or_default();
    let checked_out = request
        .artifact(CLONE)
        .and_then(|clone| clone.commit.as_deref());
    let commit = checked_out.or(known_commit).unwrap_or(said);
    let known = said.len() >= 7 && said.bytes().all(|byte| byte.is_ascii_hexdigit());
    if known && !commit.starts_with(said) {
        let message =
            format!("llama-server says it is commit {said}, but {commit} was checked out");
        return Err(ProviderError::new(ErrorCode::Internal, message));
    }
    let backend = if on_gpu {
        decision.target.backend
    } else {
        Backend::Cpu
    };
    Ok(format!(
        "{}-{}",
        &commit[..commit.len().min(12)],
        backend.name()
    ))
}

/// Both streams: llama-server prints its version to stderr, and other versions may not.
pub(crate) fn text(output: &Output) -> String {
    format!("{}\n{}", output.stdout, output.stderr)
}
