//! Files that are taken out of an image, which itself never runs.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use e2e::{Built, Image, ImageFile};
use serde_json::json;

use crate::{Stage, under_both};

const PROGRAM: ImageFile<'_> = ImageFile {
    path: "opt/engine-7/bin/server",
    content: b"#!/bin/sh\necho 'version: 7 (script)' >&2\n",
    mode: 0o755,
};

/// Prepares the pool, and gives where the files of the image lie.
fn taken_out(stage: &Stage, more: &[&str]) -> PathBuf {
    let arguments = [&["prepare", "--json", "--allow-binary-downloads"], more].concat();
    let prepared = stage.machine.run(&arguments).code(0).json();
    let program = PathBuf::from(prepared["command"]["bin"].as_str().unwrap());
    let inside = stage.pool["provisioning"]["binary"]["program"]
        .as_str()
        .unwrap();
    let tree = program.to_str().unwrap().strip_suffix(inside);
    PathBuf::from(tree.unwrap_or_else(|| panic!("{prepared}")))
}

/// Makes the pool one whose program is taken out of this image, alone where no paths are given.
fn of_a_binary(stage: &mut Stage, image: Image, program: &str, paths: &[&str]) {
    stage.image = image;
    stage.digest = stage.registry.push("tests/engine", "tools", &stage.image);
    let repository = stage.repository();
    let runtime = stage.containers.kind().name();
    stage.pool["options"] = json!({"paths": paths});
    stage.pool["provisioning"] = json!({"binary": {
        "image": {"image": repository, "digest": stage.digest, "runtime": runtime},
        "program": program,
    }});
    stage.write();
}

fn alone(stage: &mut Stage) {
    let image = Stage::image().file(&PROGRAM);
    of_a_binary(stage, image, "/opt/engine-7/bin/server", &[]);
}

/// Laid out as CUDA's images are: a directory with its version in its name, reached through links, absolute
/// and relative, that lead to links.
fn linked(library: &[u8]) -> Image {
    Stage::image()
        .file(&PROGRAM)
        .file(&ImageFile {
            path: "opt/engine-7/targets/lib/libx.so.1",
            content: library,
            mode: 0o644,
        })
        .link("opt/engine-7/targets/lib/libx.so", "libx.so.1")
        .link("opt/engine-7/lib64", "targets/lib")
        .link("etc/alternatives/engine", "/opt/engine-7")
        .link("opt/engine", "/etc/alternatives/engine")
        .link("srv/server", "../opt/engine/bin/server")
        .file(&ImageFile {
            path: "srv/out/note",
            content: b"beside a link",
            mode: 0o644,
        })
        .link("srv/out/hosts", "../../etc/hosts")
}

/// A library that takes symbols from a C library that does not exist yet.
fn of_tomorrow() -> Vec<u8> {
    let mut library = fs::read(Built::debug().directory.join("fake-engine")).unwrap();
    let (now, then) = (b"GLIBC_2.3", b"GLIBC_9.3");
    let mut changed = 0;
    for at in 0..library.len() - now.len() {
        if library[at..].starts_with(now) {
            library[at..at + then.len()].copy_from_slice(then);
            changed += 1;
        }
    }
    assert!(changed > 0, "it takes no symbols of this C library");
    library
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).unwrap().is_symlink()
}

under_both! {
    fn an_image_that_somebody_else_pulled_stays_when_files_were_taken_out_of_it(kind) {
        let mut stage = Stage::new(kind);
        alone(&mut stage);
        stage.containers.run(&["pull", "--quiet", &stage.reference()]);
        stage.registry.stop();
        let _ = taken_out(&stage, &["--offline"]);
        assert_eq!(
            stage.containers.digests_of(&stage.repository()),
            std::slice::from_ref(&stage.digest)
        );
        stage.assert_clean();
    }

    fn a_program_is_taken_out_of_an_image_that_never_runs(kind) {
        let mut stage = Stage::new(kind);
        alone(&mut stage);
        let run = stage.machine.run(&["prepare"]).code(4);
        run.says("--allow-binary-downloads");
        let program = taken_out(&stage, &[]).join(PROGRAM.path);
        assert_eq!(fs::read(program).unwrap(), PROGRAM.content);
        stage.assert_clean();
        stage.assert_no_image();
    }

    fn what_is_reached_through_links_lies_where_it_was_asked_for(kind) {
        let mut stage = Stage::new(kind);
        let paths = ["/opt/engine/bin", "/opt/engine/lib64", "/srv/server"];
        of_a_binary(&mut stage, linked(b"no library"), "/opt/engine/bin/server", &paths);
        let tree = taken_out(&stage, &[]);
        for path in ["opt/engine/bin/server", "srv/server"] {
            let path = tree.join(path);
            assert!(!is_link(&path), "{}", path.display());
            assert_eq!(fs::read(&path).unwrap(), PROGRAM.content);
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o111, 0o111, "{}", path.display());
        }
        let libraries = tree.join("opt/engine/lib64");
        assert!(!is_link(&libraries));
        assert!(is_link(&libraries.join("libx.so")));
        assert_eq!(fs::read(libraries.join("libx.so")).unwrap(), b"no library");
        // Nothing but what was asked for.
        for (directory, names) in [("", vec!["opt", "srv"]), ("opt", vec!["engine"])] {
            let mut found: Vec<_> = fs::read_dir(tree.join(directory))
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            found.sort();
            assert_eq!(found, names);
        }
        stage.assert_clean();
        stage.assert_no_image();
    }

    fn links_out_of_what_is_taken_and_libraries_for_a_newer_machine_are_refused(kind) {
        let mut stage = Stage::new(kind);
        let allow = ["prepare", "--allow-binary-downloads"];
        of_a_binary(&mut stage, linked(b""), "/srv/server", &["/srv/server", "/srv/out"]);
        let run = stage.machine.run(&allow).code(9);
        run.says("link out of it");
        stage.assert_clean();
        stage.assert_no_image();

        // The program needs nothing; what it would load from another directory does.
        let paths = ["/opt/engine/bin", "/opt/engine/lib64"];
        of_a_binary(&mut stage, linked(&of_tomorrow()), "/opt/engine/bin/server", &paths);
        let run = stage.machine.run(&allow).code(5);
        run.says("/opt/engine/lib64/libx.so.1");
        run.says("9.3");
        stage.assert_clean();
        stage.assert_no_image();
    }
}
