use super::*;
use crate::fault::{Exit, Fault as _};

fn directory(text: Option<&str>) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    if let Some(text) = text {
        std::fs::write(directory.path().join(USUAL_FILE), text).unwrap();
    }
    directory
}

fn pick(
    text: Option<&str>,
    pool: Option<&str>,
    provider: Option<&str>,
) -> Result<String, ConfigError> {
    let directory = directory(text);
    let selection = Selection {
        config: None,
        pool: pool.map(str::to_owned),
        provider: provider.map(str::to_owned),
        directory: directory.path().to_owned(),
    };
    select(&selection, &PoolFiles::default(), &Surroundings::default()).map(|selected| {
        match selected {
            Selected::Pool(wanted) => format!("{} ({})", wanted.pool.id, wanted.notices.len()),
            Selected::DefaultPool { engine } => format!("default of {engine}"),
        }
    })
}

const THREE: &str = "pools:\n  - {id: a, engine: vllm}\n  - {id: b, engine: llamacpp}\n  - {id: c, engine: llamacpp}\n";

#[test]
fn the_first_pool_of_the_engine_is_taken_unless_another_is_named() {
    assert_eq!(pick(Some(THREE), None, Some("llamacpp")).unwrap(), "b (0)");
    assert_eq!(pick(Some(THREE), Some("c"), None).unwrap(), "c (0)");
    assert_eq!(pick(Some(THREE), None, None).unwrap(), "a (1)");
    assert_eq!(
        pick(None, None, Some("llamacpp")).unwrap(),
        "default of llamacpp"
    );
}

#[test]
fn what_cannot_be_picked_is_told_with_what_can() {
    let told = |result: Result<String, ConfigError>| {
        let error = result.unwrap_err();
        let hints: Vec<String> = error.hints().into_iter().map(|hint| hint.text).collect();
        let text = error.to_string();
        let name = text.split("pools.yaml").last().unwrap_or(&text).to_owned();
        (error.exit(), format!("{name} [{}]", hints.join("; ")))
    };
    assert_eq!(
        told(pick(Some(THREE), Some("d"), None)),
        (
            Exit::NotFound,
            "` has no pool `d` [did you mean `--pool a`?]".to_owned()
        )
    );
    assert_eq!(
        told(pick(Some(THREE), None, Some("triton"))),
        (
            Exit::NotFound,
            "` has no pool of engine `triton` [it has pools of `llamacpp`, `vllm`]".to_owned()
        )
    );
    assert_eq!(
        told(pick(Some(THREE), Some("a"), Some("llamacpp"))).0,
        Exit::Usage
    );
    assert_eq!(told(pick(None, None, None)).0, Exit::Usage);
}

#[test]
fn a_named_file_that_is_missing_is_an_error_not_the_default_pool() {
    let selection = Selection {
        config: Some("nowhere.yaml".into()),
        provider: Some("llamacpp".to_owned()),
        ..Selection::default()
    };
    let error = select(&selection, &PoolFiles::default(), &Surroundings::default()).unwrap_err();
    assert_eq!(error.to_string(), "`nowhere.yaml` cannot be read");
    assert_eq!(error.exit(), Exit::Config);
}

#[test]
fn a_pool_that_starts_on_demand_is_started_now_and_says_so() {
    let text = "pools:\n  - {id: a, engine: llamacpp, preload: false}\n";
    assert_eq!(pick(Some(text), None, None).unwrap(), "a (1)");
}

#[test]
fn a_pool_is_only_looked_for_in_a_file() {
    assert_eq!(
        pick(None, Some("default"), Some("llamacpp")).unwrap(),
        "default of llamacpp"
    );
    let error = pick(None, Some("chat"), Some("llamacpp")).unwrap_err();
    assert_eq!(error.exit(), Exit::NotFound);
}

#[test]
fn a_container_runtime_of_the_command_line_goes_where_its_mode_looks() {
    use engine_provider_api::{Binary, Container};

    let wanted = || Wanted::of_default(Pool::new("p", "toy"));
    let mut in_container = wanted();
    in_container.use_runtime("docker", Mode::Container);
    let container = in_container.pool.provisioning.container.unwrap();
    assert_eq!(container.runtime.as_deref(), Some("docker"));
    let mut from_image = wanted();
    from_image.pool.provisioning.binary = Some(Binary {
        image: Some(Container::default()),
        ..Binary::default()
    });
    from_image.use_runtime("podman", Mode::Binary);
    assert!(from_image.notices.is_empty());
    let binary = from_image.pool.provisioning.binary.unwrap();
    assert_eq!(binary.image.unwrap().runtime.as_deref(), Some("podman"));
    // Where nothing runs in a container, nothing changes but a word to the operator.
    let mut from_source = wanted();
    from_source.use_runtime("podman", Mode::Source);
    assert_eq!(from_source.pool.provisioning.container, None);
    assert_eq!(from_source.notices.len(), 1);
}
