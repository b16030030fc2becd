//! The fuzz targets, built with a stable compiler and run over their seeds: none of them is to be found broken
//! only by whoever next has a fuzzer at hand.

#![allow(
    unused_attributes,
    reason = "each target says `no_main` of the program that it is elsewhere"
)]

use std::{collections::BTreeSet, fs, path::PathBuf};

// Of the fuzzer's library they use one macro.
extern crate self as libfuzzer_sys;

/// Makes of a target a function in place of a program.
#[macro_export]
macro_rules! fuzz_target {
    (|$bytes:ident: &[u8]| $body:expr) => {
        pub(crate) fn run($bytes: &[u8]) {
            $body
        }
    };
}

#[path = "../../fuzz/fuzz_targets/archive.rs"]
mod archive;
#[path = "../../fuzz/fuzz_targets/elf.rs"]
mod elf;
#[path = "../../fuzz/fuzz_targets/gguf.rs"]
mod gguf;
#[path = "../../fuzz/fuzz_targets/lock.rs"]
mod lock;
#[path = "../../fuzz/fuzz_targets/manifest.rs"]
mod manifest;
#[path = "../../fuzz/fuzz_targets/repository.rs"]
mod repository;
#[path = "../../fuzz/fuzz_targets/safetensors.rs"]
mod safetensors;

/// A target's name and its function.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 7] = [
    ("archive", archive::run),
    ("elf", elf::run),
    ("gguf", gguf::run),
    ("lock", lock::run),
    ("manifest", manifest::run),
    ("repository", repository::run),
    ("safetensors", safetensors::run),
];

/// Bytes of a seed at most, as `fuzz/README.md` has it.
const LIMIT_BYTES: usize = 64 << 10;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_reader_of_what_strangers_wrote_has_a_target_a_program_and_a_line() {
    let targets: BTreeSet<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    let readers = read("host/src/fuzzing.rs");
    let readers = readers.lines().filter_map(|line| {
        let line = line.strip_prefix("pub fn ")?;
        line.strip_suffix("(bytes: &[u8]) {")
    });
    assert_eq!(readers.collect::<BTreeSet<_>>(), targets);
    let files = fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap();
    let files: BTreeSet<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let named = targets.iter().map(|name| format!("{name}.rs"));
    assert_eq!(files, named.collect());
    let manifest: toml::Table = read("fuzz/Cargo.toml").parse().unwrap();
    let programs = manifest["bin"].as_array().unwrap().iter();
    let programs = programs.map(|program| {
        let name = program["name"].as_str().unwrap();
        let path = format!("fuzz_targets/{name}.rs");
        assert_eq!(program["path"].as_str(), Some(&*path));
        name
    });
    assert_eq!(programs.collect::<BTreeSet<_>>(), targets);
    let readme = read("fuzz/README.md");
    for name in targets {
        assert!(readme.contains(&format!("\n| `{name}` |")), "{name}");
    }
}

/// What a fuzzer would begin with.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let beginning = |path: PathBuf| {
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(LIMIT_BYTES);
        bytes
    };
    match target {
        "gguf" => vec![beginning(root().join("models/haiku/haiku.gguf"))],
        "elf" => vec![beginning(std::env::current_exe().unwrap())],
        "manifest" => ["1.0", "1.1", "1.2"]
            .map(|minor| {
                root().join(format!(
                    "provider-api/tests/documents/{minor}/Manifest.json"
                ))
            })
            .map(beginning)
            .into(),
        "archive" => (0..5)
            .map(|format| [&[format][..], &tar("a/b", b"text")].concat())
            .collect(),
        "lock" => vec![
            b"schema = 1\n\n[pools.a.model]\nreference = \"builtin:haiku\"\n\
              digest = \"sha256:00\"\n"
                .to_vec(),
        ],
        "repository" => vec![
            br#"{"model_type": "llama", "num_hidden_layers": 2}"#.to_vec(),
            br#"{"metadata": {"total_size": 8}, "weight_map": {"a": "m.safetensors"}}"#.to_vec(),
        ],
        "safetensors" => {
            let header = br#"{"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}"#;
            let length = u64::try_from(header.len()).unwrap().to_le_bytes();
            vec![[&length[..], header, &[0; 4]].concat()]
        }
        other => panic!("`{other}` has no seed"),
    }
}

/// A tar stream with one file.
fn tar(name: &str, content: &[u8]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, name, content).unwrap();
    archive.into_inner().unwrap()
}

#[test]
fn every_target_runs_over_its_seeds_and_over_what_is_left_of_them() {
    for (name, run) in TARGETS {
        for seed in seeds(name) {
            run(&seed);
            for end in [0, 1, seed.len() / 3, seed.len() - 1] {
                run(&seed[..end]);
            }
            for at in [1, 4, 8, 9, seed.len() / 2].map(|at| at % seed.len()) {
                let mut other = seed.clone();
                other[at] ^= 0x41;
                run(&other);
            }
        }
    }
}
