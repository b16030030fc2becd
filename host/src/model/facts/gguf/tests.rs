use proptest::prelude::*;

use super::{testing::Writer, *};

fn full(version: u32, big_endian: bool) -> Writer {
    Writer::new(version, big_endian)
        .text("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .u16("split.count", 1)
        .numbers("llama.attention.head_count_kv", &[2, 4])
        .texts("tokenizer.ggml.tokens", &["a", "bc", ""])
        .raw("tokenizer.ggml.add_bos_token", 7, &[1])
        .raw("llama.rope.freq_base", 6, &[0; 4])
        .raw("general.negative", 1, &[0xff])
        .text("tokenizer.chat_template", &"x".repeat(10_000))
        .tensor("token_embd.weight", &[256, 10], 12, 1440)
        .tensor("norm.weight", &[256], 0, 1024)
}

#[test]
fn versions_2_and_3_in_both_byte_orders_say_the_same() {
    for (version, big_endian) in [(2, false), (3, false), (3, true), (2, true)] {
        let bytes = full(version, big_endian).header();
        let header = Header::read(bytes.as_slice()).unwrap();
        assert_eq!((header.version, header.big_endian), (version, big_endian));
        assert_eq!(header.text("general.architecture"), Some("llama"));
        assert_eq!(header.number("llama.block_count"), Some(2));
        let heads = &header.pairs["llama.attention.head_count_kv"];
        assert_eq!(heads, &Value::Numbers(vec![2, 4]));
        assert_eq!(header.pairs["tokenizer.ggml.tokens"], Value::Length(3));
        assert_eq!(header.number("tokenizer.ggml.add_bos_token"), Some(1));
        for unkept in [
            "llama.rope.freq_base",
            "general.negative",
            "tokenizer.chat_template",
        ] {
            assert!(!header.pairs.contains_key(unkept), "{unkept}");
        }
        // Q4_K: 256 numbers in 144 bytes.
        assert_eq!(header.tensors, 2);
        assert_eq!(header.parameters, 2560 + 256);
        assert_eq!(header.tensor_bytes, Some(1440 + 1024));
        assert_eq!(header.end, Some(bytes.len() as u64 + 1440 + 1024));
    }
}

#[test]
fn what_is_no_gguf_file_is_told_by_what_it_looks_like() {
    for (bytes, told) in [
        (
            &b"<!DOCTYPE html><html>"[..],
            "begins with `<!DOCTYPE html><`, not with `GGUF`: it looks like a web page",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "a Git LFS pointer",
        ),
        (b"{\"error\":\"Unauthorized\"}", "it looks like JSON"),
        (b"PK\x03\x04...........................", "a ZIP archive"),
        (
            b"\x10\0\0\0\0\0\0\0{\"__metadata__\"",
            "it looks like safetensors",
        ),
        (&[0; 64], "zeros, as of a download that was never finished"),
        (b"", "begins with nothing, not with `GGUF`: it is empty"),
        (
            b"\x7fELF",
            "begins with `\\x7fELF`, not with `GGUF`: it is another kind of file",
        ),
    ] {
        let error = Header::read(bytes).unwrap_err();
        assert!(matches!(error, HeaderError::Magic { .. }), "{error}");
        assert!(error.to_string().contains(told), "{error}");
    }
}

#[test]
fn a_header_cut_at_any_byte_says_so() {
    let bytes = full(3, false).header();
    // Without the padding after it.
    let whole = (0..bytes.len())
        .find(|end| Header::read(&bytes[..*end]).is_ok())
        .unwrap();
    assert!(bytes.len() - whole < 32);
    for end in 4..whole {
        let error = Header::read(&bytes[..end]).unwrap_err();
        assert!(
            matches!(error, HeaderError::Truncated { .. }),
            "{end}: {error}"
        );
    }
}

fn claim(at: usize, number: u64) -> HeaderError {
    let mut bytes = full(3, false).header();
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    Header::read(bytes.as_slice()).unwrap_err()
}

#[test]
fn absurd_counts_are_refused_before_anything_is_set_aside() {
    let error = claim(8, u64::MAX);
    assert_eq!(
        error.to_string(),
        "claims 18446744073709551615 tensors, and at most 1048576 make sense"
    );
    let error = claim(16, 1 << 40);
    assert_eq!(
        error.to_string(),
        "claims 1099511627776 pairs, and at most 65536 make sense"
    );
    let error = claim(24, 1 << 60);
    assert!(error.to_string().contains("bytes in a key"), "{error}");

    let header = |writer: Writer| Header::read(writer.header().as_slice()).unwrap_err();
    let mut array = 8_u32.to_le_bytes().to_vec();
    array.extend((1_u64 << 50).to_le_bytes());
    let error = header(Writer::new(3, false).raw("a", 9, &array));
    assert!(error.to_string().contains("entries of an array"), "{error}");
    let error = header(Writer::new(3, false).raw("a", 8, &(60_u64 << 20).to_le_bytes()));
    assert!(matches!(error, HeaderError::Truncated { .. }), "{error}");
    let error = header(Writer::new(3, false).raw("a", 8, &(1_u64 << 62).to_le_bytes()));
    assert!(error.to_string().contains("bytes in a text"), "{error}");
    let error = header(Writer::new(3, false).raw("a", 13, &[]));
    assert_eq!(error, HeaderError::ValueType { kind: 13 });
    let error = header(Writer::new(3, false).tensor("t", &[1 << 40, 1 << 40], 0, 0));
    assert!(
        error.to_string().contains("larger than any memory"),
        "{error}"
    );
    let error = header(Writer::new(3, false).tensor("t", &[100, 2], 12, 0));
    assert!(error.to_string().contains("no whole blocks"), "{error}");
    let error = header(Writer::new(3, false).tensor("t", &[1; 5], 0, 0));
    assert!(error.to_string().contains("dimensions"), "{error}");
    let error = header(Writer::new(1, false));
    assert_eq!(
        error.to_string(),
        "is GGUF of version 1; versions 2 and 3 are read"
    );
}

/// Arrays in arrays in arrays, as deep as the file likes.
#[test]
fn nested_arrays_end_somewhere() {
    let one = [9_u32.to_le_bytes().as_slice(), &1_u64.to_le_bytes()].concat();
    let deep = one.repeat(10_000);
    let error = Header::read(Writer::new(3, false).raw("a", 9, &deep).header().as_slice());
    assert!(error.unwrap_err().to_string().contains("too deep"));
}

#[test]
fn what_would_fill_the_memory_with_small_values_is_refused() {
    let mut numbers = 0_u32.to_le_bytes().to_vec();
    numbers.extend(4096_u64.to_le_bytes());
    numbers.extend([7; 4096]);
    let mut writer = Writer::new(3, false);
    for index in 0..200 {
        writer = writer.raw(&format!("k{index}"), 9, &numbers);
    }
    let error = Header::read(writer.header().as_slice()).unwrap_err();
    assert!(
        error.to_string().contains("bytes of small values"),
        "{error}"
    );
}

#[test]
fn a_tensor_of_an_unknown_type_leaves_the_bytes_unknown_and_the_rest_told() {
    let bytes = full(3, false).tensor("new", &[64], 999, 64).header();
    let header = Header::read(bytes.as_slice()).unwrap();
    assert_eq!(header.tensor_bytes, None);
    assert_eq!(header.end, None);
    assert_eq!(header.parameters, 2560 + 256 + 64);
}

#[test]
fn no_type_is_listed_twice_and_all_have_whole_blocks() {
    let mut numbers: Vec<u32> = (0..64).filter(|n| TensorType::find(*n).is_some()).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), types::TYPES.len());
    assert!(
        types::TYPES
            .iter()
            .all(|kind| kind.block > 0 && kind.block_bytes > 0)
    );
}

proptest! {
    /// One flipped byte, or noise: an answer or an error, never a panic, never much memory.
    #[test]
    fn damaged_headers_are_read_or_refused(at in 0_usize..600, byte: u8, end in 0_usize..12_000) {
        let mut bytes = full(3, false).header();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(end.max(24));
        let _ = Header::read(bytes.as_slice());
    }
}
