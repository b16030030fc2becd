//! What a listing says about every kind of file that may lie among providers, running none of them.

#[expect(dead_code, reason = "it uses a part of the support")]
mod support;

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
};

use engine_host::{
    cli::provider::{State, inspect, list},
    fault::{Exit, Fault as _},
    provider::{Catalog, Search, Tier, elf},
};
use proptest::prelude::*;
use support::{hostile, sample, search};

fn place(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.join(format!("libengine_provider_{name}.so"));
    fs::write(&path, bytes).unwrap();
    path
}

/// The sample with every occurrence of one byte string replaced by another of equal length.
fn patched(from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = fs::read(sample()).unwrap();
    let places: Vec<usize> = bytes
        .windows(from.len())
        .enumerate()
        .filter_map(|(at, window)| (window == from).then_some(at))
        .collect();
    assert!(!places.is_empty(), "{} stands in it", from.escape_ascii());
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    bytes
}

/// The sample asking for a glibc of the future.
fn from_the_future() -> Vec<u8> {
    let bytes = fs::read(sample()).unwrap();
    let at = bytes
        .windows(11)
        .position(|window| {
            window.starts_with(b"GLIBC_2.") && window[8].is_ascii_digit() && window[10] == 0
        })
        .expect("the sample needs a versioned glibc");
    let version = bytes[at..at + 11].to_vec();
    patched(&version, b"GLIBC_2.99\0")
}

/// State and reason of the only candidate in a directory.
fn verdict(directory: &Path) -> (State, String) {
    let list = list(&search(&[directory]));
    assert_eq!(list.providers.len(), 1, "{list:?}");
    let one = &list.providers[0];
    (one.state, one.reason.clone().unwrap_or_default())
}

#[test]
fn every_broken_or_foreign_file_is_listed_with_one_line_that_says_why() {
    let whole = fs::read(sample()).unwrap();
    let mut for_arm = whole.clone();
    for_arm[18] = 183;
    let mut for_small_machines = whole.clone();
    for_small_machines[4] = 1;
    let mut program = whole.clone();
    program[16] = 2;
    let libc = fs::read("/proc/self/maps")
        .map(|maps| String::from_utf8_lossy(&maps).into_owned())
        .unwrap();
    let libc = libc
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(5))
        .find(|path| path.contains("libc.so"))
        .expect("this test has a C library");

    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", Vec::new(), "not an ELF file"),
        ("text", b"#!/bin/sh\nexit 0\n".to_vec(), "not an ELF file"),
        (
            "short header",
            whole[..40].to_vec(),
            "truncated: the ELF header ends at byte 64, the file at 40",
        ),
        (
            "half",
            whole[..whole.len() / 2].to_vec(),
            "truncated: the section table ends at byte ",
        ),
        ("arm", for_arm, "made for aarch64, this machine is x86_64"),
        ("32 bit", for_small_machines, "made for 32-bit machines"),
        ("program", program, "not a shared library but a program"),
        (
            "libc",
            fs::read(libc).unwrap(),
            "not an engine provider: it does not export the provider entry",
        ),
        (
            "no note",
            patched(b"EngineProvider\0", b"EngineXXXvider\0"),
            "not an engine provider: it carries no `.note.engine-provider` note",
        ),
        (
            "contract",
            patched(br#""contract":"1.2.0""#, br#""contract":"9.0.0""#),
            "contract `9.0.0` cannot be served by a host that speaks 1.2.0",
        ),
        (
            "name",
            patched(br#"{"name":"fixture""#, br#"{"name":"F/XTURE""#),
            "its manifest names it `F/XTURE`, which is no provider name ([a-z0-9-], at most 63)",
        ),
        (
            "manifest",
            patched(br#"{"name":"fixture""#, br#"{"name"="fixture""#),
            "its manifest cannot be read: not a Manifest document: expected `:` at line 1 column 8",
        ),
        (
            "future",
            from_the_future(),
            "needs glibc 2.99, this machine has 2.",
        ),
    ];
    for (case, bytes, reason) in cases {
        let directory = tempfile::tempdir().unwrap();
        place(directory.path(), "x", &bytes);
        let (state, said) = verdict(directory.path());
        assert_eq!(state, State::Refused, "{case}");
        assert!(said.starts_with(reason), "{case}: {said}");
        assert!(!said.contains('\n'), "{case}: {said}");
    }
}

#[test]
fn what_is_no_file_or_may_be_written_by_others_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("libengine_provider_x.so")).unwrap();
    assert_eq!(
        verdict(directory.path()).1,
        "not a regular file but a directory"
    );

    let directory = tempfile::tempdir().unwrap();
    let path = place(directory.path(), "x", &fs::read(sample()).unwrap());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o757)).unwrap();
    assert_eq!(
        verdict(directory.path()).1,
        "everybody may write it (mode 0757)"
    );

    let directory = tempfile::tempdir().unwrap();
    symlink(
        "/no/such/file",
        directory.path().join("libengine_provider_x.so"),
    )
    .unwrap();
    let (state, said) = verdict(directory.path());
    assert_eq!(state, State::Refused);
    assert!(said.starts_with("cannot be read: No such file"), "{said}");
}

#[test]
fn a_link_does_not_make_somebody_elses_file_ours() {
    if !rustix::process::geteuid().is_root() {
        // Only root can make a file of somebody else. The rule itself is tested beside the code.
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let theirs = directory.path().join("theirs");
    fs::copy(sample(), &theirs).unwrap();
    chown(&theirs, Some(4242), Some(4242)).unwrap();
    symlink(&theirs, directory.path().join("libengine_provider_x.so")).unwrap();
    let (state, said) = verdict(directory.path());
    assert_eq!(state, State::Refused);
    assert!(said.starts_with("owned by user 4242"), "{said}");
}

#[test]
fn listing_and_inspecting_run_nothing_of_a_library() {
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "load:abort");
    assert_eq!(verdict(directory.path()).0, State::Chosen);
    let report = inspect(path.to_str().unwrap(), &search(&[])).unwrap();
    assert_eq!(
        (report.name.as_str(), report.version.as_str()),
        ("hostile", "0.1.0")
    );
}

#[test]
fn the_first_tier_wins_whatever_its_version_and_the_loser_is_listed() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = place(first.path(), "old", &fs::read(sample()).unwrap());
    let newer = patched(br#""version":"0.1.0""#, br#""version":"9.1.0""#);
    let newer_path = place(second.path(), "new", &newer);
    let mut search = Search::nowhere(Some(support::host()));
    search.add(Tier::Environment, first.path());
    search.add(Tier::User, second.path());

    let catalog = Catalog::search(&search);
    assert_eq!(catalog.select("fixture", None).unwrap().path, path);
    let exact = semver::Version::new(9, 1, 0);
    assert_eq!(
        catalog.select("fixture", Some(&exact)).unwrap().path,
        newer_path
    );
    let list = list(&search);
    let reason = list.providers[1].reason.clone().unwrap();
    assert_eq!(reason, format!("shadowed by {}", path.display()));
}

#[test]
fn a_provider_beside_the_executable_came_with_it_and_a_link_to_one_elsewhere_did_not() {
    let built = inspect(sample().to_str().unwrap(), &search(&[])).unwrap();
    assert!(!built.sandbox_required);
    let directory = tempfile::tempdir().unwrap();
    let copy = place(directory.path(), "x", &fs::read(sample()).unwrap());
    assert!(
        inspect(copy.to_str().unwrap(), &search(&[]))
            .unwrap()
            .sandbox_required
    );
}

#[test]
fn an_unknown_name_gets_the_nearest_one_or_the_build_command_and_the_directories() {
    let directory = tempfile::tempdir().unwrap();
    place(directory.path(), "x", &fs::read(sample()).unwrap());
    let fault = inspect("fixtrue", &search(&[directory.path()])).unwrap_err();
    assert_eq!(fault.to_string(), "no provider `fixtrue` found");
    assert_eq!(fault.exit(), Exit::Provider);
    let hints = fault.hints();
    assert_eq!(hints[0].text, "did you mean `fixture`?");
    assert_eq!(hints[1].command.as_deref(), Some("{host} provider list"));
    assert!(fault.details()[0].text.contains("--provider-path"));

    // One that resembles none that is there has yet to be built.
    let fault = inspect("toy", &search(&[directory.path()])).unwrap_err();
    let hints = fault.hints();
    let build = hints[0].command.as_deref().unwrap();
    assert!(build.starts_with("cargo build"), "{build}");
    assert!(build.ends_with("-p engine-provider-toy"), "{build}");
}

#[test]
fn a_name_that_is_only_there_broken_is_not_called_missing() {
    let directory = tempfile::tempdir().unwrap();
    place(directory.path(), "my_engine", b"no library");
    let fault = inspect("my-engine", &search(&[directory.path()])).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "provider `my-engine` cannot be used: not an ELF file"
    );
}

#[test]
fn the_listing_reads_well() {
    let directory = tempfile::tempdir().unwrap();
    place(directory.path(), "broken", b"");
    place(directory.path(), "fixture", &fs::read(sample()).unwrap());
    place(
        directory.path(),
        "fixture_again",
        &fs::read(sample()).unwrap(),
    );
    let mut out = Vec::new();
    list(&search(&[directory.path()])).write(&mut out).unwrap();
    let text = String::from_utf8(out)
        .unwrap()
        .replace(directory.path().to_str().unwrap(), "DIR");
    let text: Vec<&str> = text.lines().map(str::trim_end).collect();
    insta::assert_snapshot!(text.join("\n"), @r"
    NAME     VERSION  MODES                                         FOUND            PATH
    fixture  0.1.0    source, container, package, binary, external  --provider-path  DIR/libengine_provider_fixture.so

    Not used:
      DIR/libengine_provider_fixture_again.so
          fixture 0.1.0: same version as DIR/libengine_provider_fixture.so

    Cannot be used:
      DIR/libengine_provider_broken.so
          broken: not an ELF file
    ");
}

#[test]
fn the_inspection_reads_well() {
    let mut report = inspect(sample().to_str().unwrap(), &search(&[])).unwrap();
    assert_eq!(report.sha256.len(), 64);
    report.sha256 = "DIGEST".to_owned();
    report.path = "PATH".to_owned();
    report.needs_glibc = Some("2.NN".to_owned());
    let mut out = Vec::new();
    report.write(&mut out).unwrap();
    insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
           name  fixture
        version  0.1.0
          about  Builds and runs fixture-server.
          modes  source, container, package, binary, external
       contract  1.2.0
           path  PATH
          found  named by path
         sha256  DIGEST
        sandbox  as far as this machine can; it came with this program
    needs glibc  2.NN
    ");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Neither noise nor a damaged library makes the reader panic, loop or ask for much memory.
    #[test]
    fn no_bytes_panic_the_header_check(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        near_end in any::<bool>(),
    ) {
        static SAMPLE: std::sync::LazyLock<Vec<u8>> =
            std::sync::LazyLock::new(|| fs::read(sample()).unwrap());
        // Damage is done where the reader looks: headers first, section table last.
        let mut head = SAMPLE[..8192].to_vec();
        let mut tail = SAMPLE[SAMPLE.len() - 8192..].to_vec();
        for (index, byte) in damage {
            let target = if near_end { &mut tail } else { &mut head };
            let at = index.index(target.len());
            target[at] = byte;
        }
        let data = Patched { head, whole: &SAMPLE, tail };
        let cache = object::ReadCache::new(std::io::Cursor::new(data.bytes()));
        let _ = elf::examine(&cache, &elf::Machine::this(None));
    }
}

struct Patched<'a> {
    head: Vec<u8>,
    whole: &'a [u8],
    tail: Vec<u8>,
}

impl Patched<'_> {
    fn bytes(&self) -> Vec<u8> {
        let middle = &self.whole[self.head.len()..self.whole.len() - self.tail.len()];
        [&self.head[..], middle, &self.tail[..]].concat()
    }
}
