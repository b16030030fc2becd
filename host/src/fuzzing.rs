//! What is fed with bytes of strangers, and what must hold whatever they are.
//!
//! One function for each reader. `fuzz/` calls them with what a fuzzer makes up; here they are called with
//! damaged copies of sound documents, as property tests that need no fuzzer. None of them may panic, take
//! more memory than its limits, or leave what it promises.

use std::path::Path;

use engine_provider_api::{Document as _, Manifest, Unpack};

use crate::{lock as lock_file, model::facts, provider, unpack};

/// The header of a GGUF file: read or refused, and described where it is read.
pub fn gguf(bytes: &[u8]) {
    let Ok(header) = facts::gguf::Header::read(bytes) else {
        return;
    };
    assert!(header.version == 2 || header.version == 3);
    facts::of_headers(&[header]);
}

/// The header of a safetensors file.
pub fn safetensors(bytes: &[u8]) {
    let _ = facts::safetensors::Header::read(bytes);
}

/// A repository's `config.json` and its index of weights.
pub fn repository(bytes: &[u8]) {
    facts::of_repository(bytes);
}

/// An archive, its format chosen by the first byte: unpacked inside its directory, or refused with nothing
/// left of it.
pub fn archive(bytes: &[u8]) {
    let Some((format, bytes)) = bytes.split_first() else {
        return;
    };
    let how = match format % 5 {
        0 => Some(Unpack::TarGz),
        1 => Some(Unpack::TarZst),
        2 => Some(Unpack::TarXz),
        3 => Some(Unpack::Zip),
        // Compression hides most of what a fuzzer changes: a plain tar stream is a target of its own.
        _ => None,
    };
    unpack::unpack_hostile(how, bytes);
}

/// The manifest of a provider, as it stands in its ELF note.
pub fn manifest(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(manifest) = Manifest::read(&text) {
        // What was read can be written and read again.
        let again = Manifest::read(&manifest.write()).expect("what is written can be read");
        assert_eq!(manifest, again);
    }
}

/// The ELF file that calls itself a provider.
pub fn elf(bytes: &[u8]) {
    let machine = provider::elf::Machine::this(provider::elf::Glibc::parse("2.36"));
    let _ = provider::elf::examine(bytes, &machine);
    let _ = provider::elf::needed_glibc(bytes);
}

/// The lock file.
pub fn lock(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let path = Path::new(lock_file::FILE);
    if let Ok(document) = lock_file::parse(&text, path) {
        // What was read can be written and read again.
        let written = lock_file::render(&document);
        let again = lock_file::parse(&written, path).expect("what is written can be read");
        assert_eq!(lock_file::render(&again), written);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// Places and bytes that are changed there, and where the document is cut off.
    type Damage = (Vec<(prop::sample::Index, u8)>, prop::sample::Index, bool);

    fn damage() -> impl Strategy<Value = Damage> {
        let changes = vec((any::<prop::sample::Index>(), any::<u8>()), 0..8);
        (changes, any::<prop::sample::Index>(), any::<bool>())
    }

    fn damaged(sound: &[u8], (changes, end, cut): Damage) -> Vec<u8> {
        let mut bytes = sound.to_vec();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        bytes
    }

    fn haiku() -> &'static [u8] {
        // The header and some of the tensors.
        &crate::model::BUILTINS[0].bytes[..40_000]
    }

    fn tar() -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut add = |kind, name: &str, link: &str, body: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(0o755);
            header.set_size(body.len() as u64);
            if link.is_empty() {
                builder.append_data(&mut header, name, body).unwrap();
            } else {
                builder.append_link(&mut header, name, link).unwrap();
            }
        };
        add(tar::EntryType::Directory, "d/", "", b"");
        add(tar::EntryType::Regular, "d/file", "", b"content");
        add(tar::EntryType::Symlink, "d/link", "file", b"");
        add(tar::EntryType::Link, "hard", "d/file", b"");
        builder.into_inner().unwrap()
    }

    fn zip() -> Vec<u8> {
        let mut writer = ::zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let options = ::zip::write::SimpleFileOptions::default();
        writer.start_file("d/file", options).unwrap();
        writer.write_all(b"content").unwrap();
        writer.add_symlink("d/link", "file", options).unwrap();
        writer.finish().unwrap().into_inner()
    }

    const MANIFEST: &[u8] = include_bytes!("../../provider-api/tests/documents/1.1/Manifest.json");
    const LOCK: &[u8] = b"schema = 1\n[pools.chat.engine.source.source]\nkind = \"checkout\"\n\
        commit = \"a\"\nmirrors = [\"https://a.test/x\"]\n[pools.chat.model]\ndigest = \"sha256:bb\"\n\
        reference = \"builtin:haiku\"\n[pools.chat.provider]\ncontract = \"1.1.0\"\nname = \"x\"\n\
        version = \"1.0.0\"\n[pools.chat.provider.targets]\nx = \"sha256:aa\"\n";
    const CONFIG: &[u8] = br#"{"architectures": ["A"], "num_hidden_layers": 2, "hidden_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": ["linear_attention", "x"],
        "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "awq", "bits": 4},
        "metadata": {"total_size": 1e9}, "weight_map": {"a": "b"}, "kv_lora_rank": 5}"#;
    const SAFETENSORS: &[u8] =
        b"\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}  ";

    #[test]
    fn what_is_damaged_here_is_sound_to_begin_with() {
        assert!(facts::gguf::Header::read(haiku()).is_ok());
        assert!(facts::safetensors::Header::read(SAFETENSORS).is_ok());
        assert!(Manifest::read(std::str::from_utf8(MANIFEST).unwrap()).is_ok());
        let text = std::str::from_utf8(LOCK).unwrap();
        assert!(lock_file::parse(text, Path::new("x")).is_ok());
        assert!(unpack::unpack_hostile(None, &tar()));
        assert!(unpack::unpack_hostile(Some(Unpack::Zip), &zip()));
    }

    proptest! {
        #[test]
        fn a_damaged_gguf_header_is_read_or_refused(damage in damage()) {
            gguf(&damaged(haiku(), damage));
        }

        #[test]
        fn a_damaged_description_is_read_or_refused(damage in damage()) {
            safetensors(&damaged(SAFETENSORS, damage.clone()));
            repository(&damaged(CONFIG, damage.clone()));
            manifest(&damaged(MANIFEST, damage.clone()));
            lock(&damaged(LOCK, damage));
        }

        #[test]
        fn noise_is_refused(bytes in vec(any::<u8>(), 0..512)) {
            gguf(&[b"GGUF\x03\0\0\0".as_slice(), &bytes].concat());
            safetensors(&bytes);
            repository(&bytes);
            manifest(&bytes);
            lock(&bytes);
            elf(&[b"\x7fELF\x02\x01\x01\0".as_slice(), &bytes].concat());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_damaged_archive_stays_in_its_directory_or_is_refused(damage in damage()) {
            let bytes = damaged(&tar(), damage.clone());
            archive(&[&[4], bytes.as_slice()].concat());
            let bytes = damaged(&zip(), damage);
            archive(&[&[3], bytes.as_slice()].concat());
        }

        #[test]
        fn a_damaged_program_is_read_or_refused(damage in damage()) {
            let program = std::fs::read("/bin/true").unwrap();
            elf(&damaged(&program, damage));
        }
    }
}
