//! Archives, good and evil.

use std::io::Write as _;

use crate::{SERVER, stand_in};

/// Something in a tar archive: name, mode, content.
pub(crate) type Entry<'a> = (&'a str, u32, &'a [u8]);

pub(crate) fn tar(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, mode, content) in entries {
        let mut header = tar::Header::new_gnu();
        // Past the builder's own checks of names.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_mode(*mode);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

/// A release as tar.zst: `llama-b7000/llama-server` and what it becomes.
pub(crate) fn release() -> Vec<u8> {
    zstd(&tar(&[
        ("llama-b7000/llama-server", 0o755, SERVER.as_bytes()),
        ("llama-b7000/llama-stand-in", 0o755, &stand_in()),
        ("llama-b7000/LICENSE", 0o644, b"free"),
    ]))
}

/// The same as zip, laid out as releases that are packed so.
pub(crate) fn zipped_release() -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    let server = stand_in();
    for (name, content) in [
        ("build/bin/llama-server", SERVER.as_bytes()),
        ("build/bin/llama-stand-in", &server),
    ] {
        writer
            .start_file(name, options.unix_permissions(0o755))
            .unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}
