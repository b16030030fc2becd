//! Registries that ask who one is.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use e2e::{CREDENTIALS, ContainerKind, Registry, Run, basic};
use rustix::process::Signal;
use serde_json::json;

use crate::{
    Stage,
    stage::{command_lines_with, files_with},
    under_both,
};

fn private(kind: ContainerKind) -> Stage {
    let stage = Stage::with(kind, Registry::private(), Stage::image());
    stage.write();
    stage
}

/// A file of credentials as `podman login` and `docker login` write it.
fn write_file(path: &Path, registry: &Registry, auth: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let document = json!({"auths": {registry.address(): {"auth": auth}}});
    fs::write(path, document.to_string()).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Provisions and ends, and asserts that the password was to be seen nowhere.
fn succeeds_secretly(stage: &Stage, more: &[&str]) -> Run {
    let mut run = None;
    let secrets = [CREDENTIALS.1.to_owned(), basic()];
    let seen = command_lines_with(&secrets[0], || {
        let arguments = [&["--log-format=json"], more].concat();
        let mut running = stage.machine.provision(&arguments);
        running.wait_ready();
        run = Some(running.end(Signal::INT).code(130));
    });
    let run = run.unwrap();
    assert!(seen.is_empty(), "{seen:#?}");
    for secret in &secrets {
        assert!(!run.stderr.contains(secret), "{}", run.stderr);
        assert!(!run.stdout.contains(secret), "{}", run.stdout);
        assert_eq!(
            files_with(&stage.machine.home(), secret),
            Vec::<String>::new()
        );
    }
    stage.assert_clean();
    run
}

under_both! {
    fn without_credentials_it_is_refused_with_the_command_to_log_in(kind) {
        let stage = private(kind);
        let run = stage.machine.run(&["provision"]).code(8);
        run.says(&format!("{} login {}", kind.name(), stage.registry.address()));
        stage.assert_clean();
        stage.assert_no_image();
    }

    fn with_wrong_credentials_it_is_refused_and_they_are_not_shown(kind) {
        let mut stage = private(kind);
        let wrong = "dGVzdGVyOndyb25nLXBhc3N3b3Jk";
        let file = stage.machine.root().join("credentials/config.json");
        write_file(&file, &stage.registry, wrong);
        lend_file(&mut stage, kind, &file);
        let run = stage.machine.run(&["provision"]).code(8);
        run.says(&format!("{} login {}", kind.name(), stage.registry.address()));
        assert!(!run.stderr.contains(wrong) && !run.stderr.contains("wrong-password"), "{run:?}");
        stage.assert_clean();
        stage.assert_no_image();
    }

    fn a_file_of_credentials_named_by_the_environment_is_used(kind) {
        let mut stage = private(kind);
        let file = stage.machine.root().join("credentials/config.json");
        write_file(&file, &stage.registry, &basic());
        lend_file(&mut stage, kind, &file);
        let _ = succeeds_secretly(&stage, &[]);
    }

    fn a_credential_helper_is_asked(kind) {
        let mut stage = private(kind);
        let directory = stage.machine.root().join("helpers");
        fs::create_dir_all(&directory).unwrap();
        let helper = directory.join("docker-credential-fixture");
        let (user, password) = CREDENTIALS;
        // The protocol of credential helpers: the registry on standard input, JSON back.
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = get ] || exit 1\ncat >/dev/null\n\
             echo '{{\"ServerURL\":\"x\",\"Username\":\"{user}\",\"Secret\":\"{password}\"}}'\n"
        );
        fs::write(&helper, script).unwrap();
        fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", directory.display());
        stage.machine.lend("PATH", &path);
        let file = stage.machine.root().join("credentials/config.json");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let document = json!({"credHelpers": {stage.registry.address(): "fixture"}});
        fs::write(&file, document.to_string()).unwrap();
        lend_file(&mut stage, kind, &file);
        let _ = succeeds_secretly(&stage, &[]);
    }

    fn a_file_of_credentials_named_by_a_flag_is_used(kind) {
        let stage = private(kind);
        let file = stage.machine.root().join("credentials/config.json");
        write_file(&file, &stage.registry, &basic());
        let _ = succeeds_secretly(&stage, &["--authfile", file.to_str().unwrap()]);
    }
}

/// Names a file of credentials the way each runtime wants it.
fn lend_file(stage: &mut Stage, kind: ContainerKind, file: &Path) {
    match kind {
        ContainerKind::Podman => {
            stage
                .machine
                .lend("REGISTRY_AUTH_FILE", file.to_str().unwrap());
        }
        ContainerKind::Docker => {
            let directory = file.parent().unwrap();
            stage
                .machine
                .lend("DOCKER_CONFIG", directory.to_str().unwrap());
        }
    }
}
