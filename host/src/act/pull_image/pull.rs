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
    let places = places(context, wanted, remote).map_err(failed)?;
    // Elsewhere that would be believed too.
    let plain_http = remote.plain_http && places.len() == 1;
    let found = credentials(context, wanted, places).await.map_err(failed)?;
    let _lent = lend(context, step, runtime, &found, &mut env)?;
    let _staged = staging.lend(context, step, &mut env)?;
    let job = Job {
        step,
        id: "pull",
        program: wanted.runtime.path.clone().into(),
        args: arguments(runtime, local, plain_http),
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

/// Arguments of the pull. A registry on this machine that answers without encryption is believed where
/// there is no other place: the digest says what must arrive. Docker does so by itself.
fn arguments(runtime: Runtime, local: &Reference, plain_http: bool) -> Vec<String> {
    let mut args = vec!["pull".to_owned()];
    if runtime == Runtime::Podman && plain_http {
        args.push("--tls-verify=false".to_owned());
    }
    args.push(local.to_string());
    args
}

/// Every place that the runtime may pull from.
fn places(
    context: &Context,
    wanted: &Wanted<'_>,
    remote: &RemoteImage,
) -> Result<Vec<Reference>, ImageError> {
    Ok(match Runtime::of(wanted.runtime) {
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
    })
}

/// The credentials for these places.
async fn credentials(
    context: &Context,
    wanted: &Wanted<'_>,
    places: Vec<Reference>,
) -> Result<Vec<(Reference, Found)>, ImageError> {
    let runtime = Runtime::of(wanted.runtime);
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
