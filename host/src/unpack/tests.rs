use std::{io::Write as _, os::unix::fs::MetadataExt as _, path::PathBuf};

use proptest::prelude::*;
use tar::EntryType;

use super::*;

/// A gzip-compressed tar archive with these entries: kind, name, content or link target.
pub(crate) fn archive(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
    gzip(&plain(entries))
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// The same, not compressed.
pub(crate) fn plain(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, content) in entries {
        let body = if kind.is_file() {
            content.as_bytes()
        } else {
            b""
        };
        let mut header = header(*kind, name, body.len() as u64);
        if !kind.is_file() && !content.is_empty() {
            header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
        }
        header.set_cksum();
        builder.append(&header, body).unwrap();
    }
    builder.into_inner().unwrap()
}

fn header(kind: EntryType, name: &str, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o6755);
    // Past the builder's own checks: hostile names are what is tested.
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(size);
    header
}

/// A zip archive with these entries: mode with the kind of file, name, content.
fn zipped(entries: &[(u32, &str, &str)]) -> Vec<u8> {
    let mut writer = ::zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    for (mode, name, content) in entries {
        let options = ::zip::write::SimpleFileOptions::default().unix_permissions(*mode);
        if mode & 0o170_000 == 0o120_000 {
            writer.add_symlink(*name, *content, options).unwrap();
        } else {
            writer.start_file(*name, options).unwrap();
            writer.write_all(content.as_bytes()).unwrap();
        }
    }
    writer.finish().unwrap().into_inner()
}

/// Where an archive went, and what became of it.
struct Unpacked {
    directory: tempfile::TempDir,
    result: Result<(), Refusal>,
}

impl Unpacked {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("into").join(name)
    }

    fn reason(&self) -> &str {
        match &self.result {
            Err(Refusal::Archive(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    /// Nothing in the directory, nothing beside it.
    #[track_caller]
    fn assert_nothing_left(&self) {
        assert_eq!(fs::read_dir(self.path("")).unwrap().count(), 0);
        let mut beside: Vec<_> = fs::read_dir(self.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        beside.sort();
        assert_eq!(beside, ["archive", "into"]);
    }
}

fn unpack_as(how: Unpack, bytes: &[u8], programs: Programs) -> Unpacked {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("archive");
    fs::write(&path, bytes).unwrap();
    let into = directory.path().join("into");
    fs::create_dir(&into).unwrap();
    let result = super::archive(how, &path, &into, programs);
    Unpacked { directory, result }
}

fn unpack(entries: &[(EntryType, &str, &str)]) -> Unpacked {
    unpack_as(Unpack::TarGz, &archive(entries), Programs::Kept)
}

const FILE: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

#[test]
fn every_format_gives_the_same_tree() {
    let tar = plain(&[
        (EntryType::Directory, "top/", ""),
        (EntryType::Regular, "top/bin/engine", "x"),
        (EntryType::Symlink, "top/engine", "bin/engine"),
    ]);
    let mut xz = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::default()).unwrap();
    xz.write_all(&tar).unwrap();
    let zip = zipped(&[
        (FILE, "top/bin/engine", "x"),
        (LINK, "top/engine", "bin/engine"),
    ]);
    for (how, bytes) in [
        (Unpack::TarGz, gzip(&tar)),
        (Unpack::TarZst, zstd::encode_all(&tar[..], 1).unwrap()),
        (Unpack::TarXz, xz.finish().unwrap()),
        (Unpack::Zip, zip),
    ] {
        for (programs, mode) in [(Programs::Kept, 0o755), (Programs::Refused, 0o644)] {
            let unpacked = unpack_as(how, &bytes, programs);
            assert!(unpacked.result.is_ok(), "{how:?}: {:?}", unpacked.result);
            let engine = unpacked.path("top/engine");
            assert_eq!(fs::read(&engine).unwrap(), b"x", "{how:?}");
            let found = fs::metadata(engine).unwrap().mode() & 0o7777;
            assert_eq!(found, mode, "{how:?}: no set-user-id bit either");
        }
        let half = unpack_as(how, &bytes[..bytes.len() / 2], Programs::Kept);
        half.reason();
        half.assert_nothing_left();
        unpack_as(how, b"<html>not found</html>", Programs::Kept).assert_nothing_left();
    }
    let directory = tempfile::tempdir().unwrap();
    super::tar(&tar[..], directory.path()).unwrap();
    assert!(directory.path().join("top/engine").exists());
}

#[test]
fn what_leads_out_or_is_no_file_is_refused_and_nothing_is_left() {
    use EntryType::{Block, Char, Directory, Fifo, Link, Regular, Symlink};
    let long = "d/".repeat(49);
    type Case<'a> = (&'a [(EntryType, &'a str, &'a str)], &'a str);
    let cases: [Case<'_>; 18] = [
        (
            &[(Regular, "../escaped", "x")],
            "`../escaped` leads out of it",
        ),
        (&[(Regular, "a/../../escaped", "x")], "leads out of it"),
        (&[(Regular, "/escaped", "x")], "`/escaped` leads out of it"),
        (
            &[(Symlink, "link", "..")],
            "`link` is a link out of it, to `..`",
        ),
        (
            &[(Symlink, "link", "/etc")],
            "`link` is a link out of it, to `/etc`",
        ),
        (
            &[
                (Symlink, "b", "."),
                (Symlink, "a", "b/b/../../x"),
                (Regular, "f", ""),
            ],
            "`a` is a link out of it",
        ),
        (
            &[(Symlink, "a", "b"), (Symlink, "b", "a")],
            "is a link out of it",
        ),
        (
            &[(Symlink, "link", "."), (Regular, "link/escaped", "x")],
            "`link/escaped` lies behind link `link`",
        ),
        (
            &[(Symlink, "link", "f"), (Regular, "link", "x")],
            "`link` is in it twice",
        ),
        (
            &[(Regular, "f", "1"), (Regular, "./f", "2")],
            "`f` is in it twice",
        ),
        (
            &[(Regular, "f", "1"), (Regular, "f/g", "2")],
            "a file and a directory",
        ),
        (
            &[(Directory, "f/", ""), (Regular, "f", "2")],
            "`f` is in it twice",
        ),
        (&[(Link, "hard", "etc/passwd")], "which is no earlier file"),
        (
            &[(Link, "hard", "/etc/passwd")],
            "`/etc/passwd` leads out of it",
        ),
        (
            &[(Char, "device", "")],
            "`device` is a device, which is not accepted",
        ),
        (&[(Block, "device", "")], "is a device"),
        (&[(Fifo, "pipe", "")], "`pipe` is a pipe"),
        (&[(Regular, "a\nb", "x")], r"`a\nb` is no name for a file"),
    ];
    for (entries, reason) in cases {
        let mut all = vec![(Regular, "first", "x")];
        all.extend(entries);
        let unpacked = unpack(&all);
        assert!(unpacked.reason().contains(reason), "{}", unpacked.reason());
        unpacked.assert_nothing_left();
    }
    let deep = unpack(&[(Regular, &format!("{long}x"), "x")]);
    assert!(deep.result.is_ok(), "{:?}", deep.result);
    assert_eq!(
        unpack(&[(Directory, "d/", "")]).reason(),
        "there is no file in it"
    );
}

#[test]
fn zip_archives_are_held_to_the_same_rules() {
    type Case<'a> = (&'a [(u32, &'a str, &'a str)], &'a str);
    let cases: [Case<'_>; 6] = [
        (&[(FILE, "../escaped", "x")], "`../escaped` leads out of it"),
        (&[(FILE, "/escaped", "x")], "leads out of it"),
        (&[(LINK, "link", "../..")], "`link` is a link out of it"),
        (&[(LINK, "link", "/etc")], "`link` is a link out of it"),
        (
            &[(LINK, "link", "."), (FILE, "link/x", "x")],
            "lies behind link",
        ),
        (
            &[(FILE, "f", "x"), (FILE, "f/g", "x")],
            "a file and a directory",
        ),
    ];
    for (entries, reason) in cases {
        let unpacked = unpack_as(Unpack::Zip, &zipped(entries), Programs::Kept);
        assert!(unpacked.reason().contains(reason), "{}", unpacked.reason());
        unpacked.assert_nothing_left();
    }
    // The library writes no devices: the mode stands in the upper half of the external attributes.
    let mut device = zipped(&[(FILE, "device", "x")]);
    let header = device
        .windows(4)
        .position(|bytes| bytes == b"PK\x01\x02")
        .unwrap();
    let mode: u32 = 0o020_666 << 16;
    device[header + 38..header + 42].copy_from_slice(&mode.to_le_bytes());
    let unpacked = unpack_as(Unpack::Zip, &device, Programs::Kept);
    assert_eq!(
        unpacked.reason(),
        "`device` is neither file, directory nor link"
    );
}

#[test]
fn a_hard_link_inside_becomes_a_copy() {
    let unpacked = unpack(&[
        (EntryType::Regular, "a", "x"),
        (EntryType::Link, "b", "a"),
        (EntryType::Symlink, "c", "a"),
        (EntryType::Link, "d", "c"),
    ]);
    unpacked.result.as_ref().unwrap();
    let inode = |name| fs::metadata(unpacked.path(name)).unwrap().ino();
    assert_ne!(inode("a"), inode("b"));
    assert_eq!(fs::read(unpacked.path("b")).unwrap(), b"x");
    assert_eq!(fs::read_link(unpacked.path("d")).unwrap(), Path::new("a"));
}

#[test]
fn bombs_are_refused_by_what_they_become() {
    // 300 MB of zeros in some hundred bytes.
    let mut zst = zstd::Encoder::new(Vec::new(), 1).unwrap();
    let size = 300 << 20;
    let mut big = header(EntryType::Regular, "big", size);
    big.set_cksum();
    zst.write_all(big.as_bytes()).unwrap();
    io::copy(&mut io::repeat(0).take(size), &mut zst).unwrap();
    let bomb = zst.finish().unwrap();
    assert!(bomb.len() < 100_000, "{}", bomb.len());
    let unpacked = unpack_as(Unpack::TarZst, &bomb, Programs::Kept);
    assert_eq!(unpacked.reason(), "it unpacks to more than 268435456 bytes");
    unpacked.assert_nothing_left();

    // A name that would be held in memory.
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let size = 8 << 20;
    let mut long = header(EntryType::GNULongName, "././@LongLink", size);
    long.set_cksum();
    gz.write_all(long.as_bytes()).unwrap();
    io::copy(&mut io::repeat(b'a').take(size), &mut gz).unwrap();
    let unpacked = unpack_as(Unpack::TarGz, &gz.finish().unwrap(), Programs::Kept);
    assert!(
        unpacked.reason().contains("the name or attributes"),
        "{}",
        unpacked.reason()
    );

    let limits = Limits {
        content_bytes: 1000,
        entries: 2,
    };
    let directory = tempfile::tempdir().unwrap();
    let tree = || Tree::new(directory.path(), Programs::Kept, limits);
    let many = plain(&[
        (EntryType::Directory, "a", ""),
        (EntryType::Directory, "b", ""),
        (EntryType::Directory, "c", ""),
    ]);
    let refusal = stream::tar(&many[..], tree()).unwrap_err();
    assert!(
        matches!(&refusal, Refusal::Archive(reason) if reason.contains("1000 bytes")),
        "{refusal:?}"
    );
    let limits = Limits {
        content_bytes: 1 << 20,
        ..limits
    };
    let tree = Tree::new(directory.path(), Programs::Kept, limits);
    let refusal = stream::tar(&many[..], tree).unwrap_err();
    assert!(
        matches!(&refusal, Refusal::Archive(reason) if reason.contains("2 entries")),
        "{refusal:?}"
    );
}

#[test]
fn a_cut_archive_is_damaged_and_not_a_full_disk() {
    let whole = archive(&[(EntryType::Regular, "a", &"x".repeat(100_000))]);
    let unpacked = unpack_as(Unpack::TarGz, &whole[..whole.len() / 2], Programs::Kept);
    assert!(
        unpacked.reason().contains("damaged"),
        "{}",
        unpacked.reason()
    );
}

/// Names that climb, repeat, pass through each other and are ordinary.
fn any_name() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => "[abc]",
        1 => Just("..".to_owned()),
        1 => Just(".".to_owned()),
        1 => Just(String::new()),
    ];
    prop::collection::vec(part, 1..5).prop_map(|parts| parts.join("/"))
}

fn any_entry() -> impl Strategy<Value = (EntryType, String, String)> {
    let kind = prop_oneof![
        3 => Just(EntryType::Regular),
        3 => Just(EntryType::Symlink),
        2 => Just(EntryType::Link),
        2 => Just(EntryType::Directory),
        1 => Just(EntryType::Fifo),
    ];
    (kind, any_name(), any_name())
}

/// Every path below a directory that is not where it says, and every file that others write to.
fn escapes(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let canonical = root.canonicalize().unwrap();
    let mut ahead = vec![root.to_owned()];
    while let Some(directory) = ahead.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let path = entry.path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                ahead.push(path.clone());
            }
            let leads = path
                .canonicalize()
                .is_ok_and(|path| !path.starts_with(&canonical));
            let special =
                metadata.is_file() && (metadata.nlink() > 1 || metadata.mode() & 0o7000 != 0);
            if leads || special {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_tar_archive_reaches_outside(entries in prop::collection::vec(any_entry(), 1..8)) {
        let entries: Vec<(EntryType, &str, &str)> = entries
            .iter()
            .map(|(kind, name, content)| (*kind, name.as_str(), content.as_str()))
            .collect();
        let unpacked = unpack(&entries);
        prop_assert_eq!(escapes(&unpacked.path("")), Vec::<String>::new());
        match &unpacked.result {
            Ok(()) => {}
            Err(Refusal::Archive(_)) => unpacked.assert_nothing_left(),
            Err(other) => prop_assert!(false, "{:?}", other),
        }
        prop_assert_eq!(fs::read_dir(unpacked.directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn no_zip_archive_reaches_outside(entries in prop::collection::btree_map(any_name(), (any::<bool>(), any_name()), 1..8)) {
        let entries: Vec<(u32, &str, &str)> = entries
            .iter()
            .filter(|(name, _)| !name.ends_with('/'))
            .map(|(name, (link, content))| (if *link { LINK } else { FILE }, name.as_str(), content.as_str()))
            .collect();
        let unpacked = unpack_as(Unpack::Zip, &zipped(&entries), Programs::Kept);
        prop_assert_eq!(escapes(&unpacked.path("")), Vec::<String>::new());
        prop_assert_eq!(fs::read_dir(unpacked.directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn damaged_archives_are_refused_and_never_panic(at in 0usize..2000, value in any::<u8>()) {
        let tar = plain(&[(EntryType::Regular, "a", "some text"), (EntryType::Symlink, "b", "a")]);
        let zip = zipped(&[(FILE, "a", "some text"), (LINK, "b", "a")]);
        for (how, mut bytes) in [(Unpack::TarZst, zstd::encode_all(&tar[..], 1).unwrap()), (Unpack::Zip, zip)] {
            let at = at % bytes.len();
            bytes[at] = value;
            let unpacked = unpack_as(how, &bytes, Programs::Kept);
            prop_assert_eq!(escapes(&unpacked.path("")), Vec::<String>::new());
        }
        let mut raw = tar;
        let at = at % raw.len();
        raw[at] = value;
        let unpacked = unpack_as(Unpack::TarGz, &gzip(&raw), Programs::Kept);
        prop_assert_eq!(escapes(&unpacked.path("")), Vec::<String>::new());
    }
}

#[test]
fn directories_that_names_imply_count_as_entries() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits {
        content_bytes: 100,
        entries: 10,
    };
    let mut tree = Tree::new(directory.path(), Programs::Kept, limits);
    tree.file(Path::new("a/b/c/1"), false, &mut &b"x"[..])
        .unwrap();
    tree.file(Path::new("a/b/c/2"), false, &mut &b"x"[..])
        .unwrap();
    let many = Path::new("k/l/m/n/o/p/q/r/s/t/u/v/3");
    match tree.file(many, false, &mut &b"x"[..]) {
        Err(Refusal::Archive(reason)) => assert_eq!(reason, "it has more than 10 entries"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sparse_file_is_refused_in_its_newer_form_too() {
    let mut builder = tar::Builder::new(Vec::new());
    let extensions = [
        ("GNU.sparse.major", &b"1"[..]),
        ("GNU.sparse.name", b"model"),
    ];
    builder.append_pax_extensions(extensions).unwrap();
    let mut header = header(EntryType::Regular, "GNUSparseFile.0/model", 4);
    header.set_cksum();
    builder.append(&header, &b"1\n0\n"[..]).unwrap();
    let bytes = gzip(&builder.into_inner().unwrap());
    let unpacked = unpack_as(Unpack::TarGz, &bytes, Programs::Kept);
    assert!(
        unpacked.reason().contains("a sparse file"),
        "{}",
        unpacked.reason()
    );
    unpacked.assert_nothing_left();
}
