//! The runtime's own command, and what its failure means.

use engine_provider_api::Step;

use super::{ImageError, PullFault, Wanted, lend::lend, staging::Staging};
use crate::{
    act::{
        ActError, Context,
        command::{self, Job},
        meter::{Layers, Meter},
    },
    container::{self, Found, Reference, Registries, RemoteImage, Runtime},
    process::{Network, Privileges},
};

/// Pulls an image by digest.
pub(super) async fn pull(
    context: &Context,
    step: &Step,
    wanted: &Wanted<'_>,
    remote: &RemoteImage,
    local: &Reference,
    staging: &Staging,
) -> Result<(), ActError> {
    let failed = |error| ActError::image(step, error);
    let runtime = Runtime::of(wanted.runtime);
    let mut env = context.passed_environment();
    env.extend(container::environment(&context.environment));
    let found = credentials(context, wanted, remote).await.map_err(failed)?;
    let _lent = lend(context, step, runtime, &found, &mut env)?;
    let _staged = staging.lend(context, step, &mut env)?;
    let job = Job {
        step,
        id: "pull",
        program: wanted.runtime.path.clone().into(),
        args: arguments(runtime, local, remote.plain_http),
        env,
        directory: "/".into(),
        identity: None,
        network: Network::Host,
        privileges: Privileges::Usual,
        meter: Some(Meter::Layers(Layers::of(&remote.layers))),
        limit: None,
    };
    match command::run(context, job).await {
        Err(ActError::Command { failure, .. }) => Err(failed(ImageError::Pull {
            image: local.to_string(),
            registry: local.registry().to_owned(),
            fault: PullFault::of(&command::read_log(&failure.log, 1 << 20), failure.disk_full),
            failure,
        })),
        other => other,
    }
}

/// Arguments of the pull. A registry on this machine that answers without encryption is believed:
/// the digest says what must arrive. Docker does so by itself.
fn arguments(runtime: Runtime, local: &Reference, plain_http: bool) -> Vec<String> {
    let mut args = vec!["pull".to_owned()];
    if runtime == Runtime::Podman && plain_http {
        args.push("--tls-verify=false".to_owned());
    }
    args.push(local.to_string());
    args
}

/// The credentials for every place that the runtime may pull from.
async fn credentials(
    context: &Context,
    wanted: &Wanted<'_>,
    remote: &RemoteImage,
) -> Result<Vec<(Reference, Found)>, ImageError> {
    let runtime = Runtime::of(wanted.runtime);
    let places = match runtime {
        Runtime::Docker => vec![remote.endpoint.reference.clone()],
        Runtime::Podman => Registries::read(&context.environment)
            .and_then(|registries| registries.endpoints(&wanted.reference))
            .map(|endpoints| {
                endpoints
                    .into_iter()
                    .map(|endpoint| endpoint.reference)
                    .collect()
            })
            .map_err(|error| wanted.absent(error.into()))?,
    };
    let mut all = Vec::new();
    for place in places {
        let found = container::find_credentials(
            &context.environment,
            context.narrator.secrets(),
            runtime,
            &place,
        )
        .await
        .map_err(|error| wanted.absent(error.into()))?;
        all.extend(found.map(|found| (place, found)));
    }
    Ok(all)
}
