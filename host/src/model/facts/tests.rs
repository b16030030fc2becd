use std::fs;

use engine_provider_api::ModelFacts;
use serde_json::json;

use super::{gguf::testing::Writer, *};
use crate::{
    fault::Fault as _,
    model::source::RemoteFile,
    net::testing::{Reply, Server, open_net},
};

fn write(directory: &Path, name: &str, bytes: &[u8]) {
    fs::write(directory.join(name), bytes).unwrap();
}

/// A file of that size with these first bytes, the rest a hole.
fn sparse(directory: &Path, name: &str, bytes: &[u8], size: u64) {
    write(directory, name, bytes);
    let file = fs::File::options().write(true).open(directory.join(name));
    file.unwrap().set_len(size).unwrap();
}

fn safetensors(tensors: serde_json::Value, bytes: usize) -> Vec<u8> {
    let json = tensors.to_string();
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend(json.as_bytes());
    file.resize(file.len() + bytes, 0);
    file
}

/// Compared by hand with what `gguf-dump` of the Python package `gguf` 0.19 prints of the same file.
#[test]
fn the_built_in_model_is_what_it_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/haiku/haiku.gguf");
    let facts = of_path(&path).unwrap().unwrap();
    insta::assert_json_snapshot!(facts, @r#"
    {
      "format": "gguf",
      "architecture": "llama",
      "parameters": 443008,
      "quantisation": "F16",
      "context_length": 512,
      "layers": 2,
      "embedding_length": 128,
      "feed_forward_length": 256,
      "attention_heads": 2,
      "kv_heads": [
        2
      ],
      "key_length": 64,
      "value_length": 64,
      "vocabulary": 896,
      "weight_bytes": 887296,
      "files": 1
    }
    "#);
}

#[test]
fn a_large_model_is_told_by_its_header_alone() {
    let directory = tempfile::tempdir().unwrap();
    // 131072 tokens, so that more than the first piece has to be read.
    let words = vec!["token"; 131_072];
    let bytes = Writer::llama()
        .texts("tokenizer.ggml.tokens", &words)
        .tensor("blk.0.attn_q.weight", &[8192, 8192], 12, 37_748_736)
        .header();
    let size = bytes.len() as u64 + 37_748_736;
    sparse(directory.path(), "x.gguf", &bytes, size);
    let facts = of_path(&directory.path().join("x.gguf")).unwrap().unwrap();
    assert_eq!(
        facts,
        ModelFacts {
            format: "gguf".to_owned(),
            architecture: Some("llama".to_owned()),
            parameters: Some(8192 * 8192),
            quantisation: Some("Q4_K_M".to_owned()),
            context_length: Some(131_072),
            layers: Some(80),
            embedding_length: Some(8192),
            feed_forward_length: Some(28_672),
            attention_heads: Some(64),
            kv_heads: vec![8],
            key_length: Some(128),
            value_length: Some(128),
            sliding_window: None,
            windowed_layers: Vec::new(),
            vocabulary: Some(131_072),
            weight_bytes: Some(37_748_736),
            files: Some(1),
        }
    );
    // The same as a blob, which has no suffix.
    sparse(directory.path(), "blob", &bytes, size);
    assert_eq!(
        of_path(&directory.path().join("blob")).unwrap(),
        Some(facts)
    );

    sparse(directory.path(), "x.gguf", &bytes, size - 1);
    let error = of_path(&directory.path().join("x.gguf")).unwrap_err();
    assert!(error.to_string().contains("is cut off"), "{error}");
    assert_eq!(error.kind(), "model-cut-off");
}

#[test]
fn parts_are_added_up_and_a_missing_one_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let part = |writer: Writer, number: u16| {
        let bytes = writer
            .u16("split.no", number)
            .u16("split.count", 2)
            .tensor("t", &[1024], 1, 2048)
            .header();
        [bytes, vec![0; 2048]].concat()
    };
    let first = directory.path().join("m-00001-of-00002.gguf");
    write(
        directory.path(),
        "m-00001-of-00002.gguf",
        &part(Writer::llama(), 0),
    );
    let error = of_path(&first).unwrap_err().to_string();
    assert!(
        error.contains("is part 1 of 2: ") && error.contains("m-00002-of-00002.gguf is missing")
    );

    write(
        directory.path(),
        "m-00002-of-00002.gguf",
        &part(Writer::new(3, false), 1),
    );
    for path in [first.as_path(), directory.path()] {
        let facts = of_path(path).unwrap().unwrap();
        assert_eq!(facts.parameters, Some(2048));
        assert_eq!(facts.weight_bytes, Some(4096));
        assert_eq!(facts.files, Some(2));
        assert_eq!(facts.layers, Some(80));
    }

    // Two first parts are no model.
    write(
        directory.path(),
        "m-00002-of-00002.gguf",
        &part(Writer::llama(), 0),
    );
    let error = of_path(&first).unwrap_err().to_string();
    assert!(
        error.contains("it stands in the place of part 2"),
        "{error}"
    );
}

#[test]
fn layers_that_keep_nothing_are_told_apart() {
    let facts = |writer: Writer| {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "x.gguf", &writer.header());
        of_path(directory.path()).unwrap().unwrap()
    };
    let of = |architecture: &str| {
        let key = |name: &str| format!("{architecture}.{name}");
        Writer::new(3, false)
            .text("general.architecture", architecture)
            .u32(&key("block_count"), 4)
            .u32(&key("embedding_length"), 64)
            .u32(&key("attention.head_count"), 4)
    };
    let given = of("jamba").numbers("jamba.attention.head_count_kv", &[0, 0, 2, 0]);
    assert_eq!(facts(given).kv_heads, [0, 0, 2, 0]);
    let every = of("qwen3next")
        .u32("qwen3next.attention.head_count_kv", 2)
        .u32("qwen3next.full_attention_interval", 4);
    assert_eq!(facts(every).kv_heads, [0, 0, 0, 2]);
    let shared = of("gemma3n").u32("gemma3n.attention.shared_kv_layers", 3);
    assert_eq!(facts(shared).kv_heads, [4, 0, 0, 0]);
    let latent = of("deepseek2")
        .u32("deepseek2.attention.head_count_kv", 1)
        .u32("deepseek2.attention.key_length", 576)
        .u32("deepseek2.attention.value_length", 512)
        .u32("deepseek2.attention.key_length_mla", 192);
    let latent = facts(latent);
    assert_eq!(
        (latent.kv_heads, latent.key_length, latent.value_length),
        (vec![1], Some(576), Some(0))
    );
    let alike = of("llama").numbers("llama.attention.head_count_kv", &[2; 4]);
    assert_eq!(facts(alike).kv_heads, [2]);
}

#[test]
fn a_repository_is_told_by_its_config_and_index() {
    let directory = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896,
        "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "max_position_embeddings": 32768, "vocab_size": 151_936,
        "torch_dtype": "bfloat16", "use_sliding_window": false, "sliding_window": 32768});
    write(
        directory.path(),
        "config.json",
        config.to_string().as_bytes(),
    );
    let index = json!({"metadata": {"total_size": 988_065_536_u64},
        "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}});
    write(
        directory.path(),
        "model.safetensors.index.json",
        index.to_string().as_bytes(),
    );
    insta::assert_json_snapshot!(of_path(directory.path()).unwrap(), @r#"
    {
      "format": "safetensors",
      "architecture": "Qwen2ForCausalLM",
      "parameters": 494032768,
      "quantisation": "BF16",
      "context_length": 32768,
      "layers": 24,
      "embedding_length": 896,
      "feed_forward_length": 4864,
      "attention_heads": 14,
      "kv_heads": [
        2
      ],
      "key_length": 64,
      "value_length": 64,
      "vocabulary": 151936,
      "weight_bytes": 988065536,
      "files": 2
    }
    "#);
}

#[test]
fn weights_are_weighed_by_their_headers_where_there_is_no_index() {
    let directory = tempfile::tempdir().unwrap();
    let tensors = json!({"__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 8], "data_offsets": [0, 64]},
        "b": {"dtype": "BF16", "shape": [512], "data_offsets": [64, 1088]}});
    write(
        directory.path(),
        "model.safetensors",
        &safetensors(tensors.clone(), 1088),
    );
    let facts = of_path(directory.path()).unwrap().unwrap();
    assert_eq!(facts.weight_bytes, Some(1088));
    assert_eq!(facts.parameters, Some(528));
    assert_eq!(facts.quantisation.as_deref(), Some("BF16"));

    write(
        directory.path(),
        "model.safetensors",
        &safetensors(tensors, 1087),
    );
    let error = of_path(directory.path()).unwrap_err();
    assert!(error.to_string().contains("is cut off"), "{error}");
    let wrong = json!({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}});
    write(
        directory.path(),
        "model.safetensors",
        &safetensors(wrong, 8),
    );
    let error = of_path(directory.path()).unwrap_err();
    assert!(
        error.to_string().contains("tensor `a` cannot be"),
        "{error}"
    );
    write(directory.path(), "model.safetensors", b"<html>404</html>");
    let error = of_path(directory.path()).unwrap_err();
    assert!(error.to_string().contains("a web page"), "{error}");
}

#[test]
fn weights_made_smaller_are_not_counted_and_latent_attention_keeps_one_head() {
    let config = |config: serde_json::Value| repository::describe(config.to_string().as_bytes());
    let awq = json!({"quantization_config": {"quant_method": "awq", "bits": 4}, "hidden_size": 64});
    let facts = config(awq).unwrap();
    assert_eq!(facts.quantisation.as_deref(), Some("awq-4bit"));
    assert_eq!(repository::parameters(1000, &facts), None);
    let latent = json!({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 128});
    let facts = config(latent).unwrap();
    assert_eq!(
        (facts.kv_heads, facts.key_length, facts.value_length),
        (vec![1], Some(576), Some(0))
    );
    let seeing = json!({"architectures": ["LlavaForConditionalGeneration"],
        "text_config": {"num_hidden_layers": 32, "layer_types": ["linear_attention", "full_attention"],
        "num_key_value_heads": 2}});
    let facts = config(seeing).unwrap();
    assert_eq!((facts.layers, facts.kv_heads), (Some(32), vec![0, 2]));
    for bad in ["[]", "", "{", "null"] {
        assert!(repository::describe(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn a_file_of_no_known_format_is_nothing_wrong() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "model.bin", b"whatever");
    assert_eq!(of_path(&directory.path().join("model.bin")).unwrap(), None);
    assert_eq!(of_path(directory.path()).unwrap(), None);
    write(directory.path(), "x.gguf", b"<html>");
    let error = of_path(&directory.path().join("x.gguf")).unwrap_err();
    assert!(
        error.to_string().contains("x.gguf begins with `<html>`"),
        "{error}"
    );
    assert_eq!(error.kind(), "model-unreadable");
    let error = of_path(&directory.path().join("none.gguf")).unwrap_err();
    assert!(matches!(error, FactsError::Io { .. }), "{error}");
}

fn remote(server: &Server, names: &[&str]) -> Resolved {
    let files = names.iter().map(|name| RemoteFile {
        name: (*name).to_owned(),
        sources: vec![server.url("gone").into(), server.url(name).into()],
        size_bytes: Some(40_000_000_000),
        digest: None,
        version: None,
        kept_as: None,
        git_blob: None,
        is_archive: false,
        local: None,
    });
    Resolved {
        reference: "x".to_owned(),
        pinned: "x".to_owned(),
        revision: None,
        licence: None,
        files: files.collect(),
        picked_from: Vec::new(),
    }
}

async fn look_at(server: &Server, names: &[&str]) -> Result<Option<ModelFacts>, FactsError> {
    of_remote(
        &open_net(),
        &remote(server, names),
        &CancellationToken::new(),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_elsewhere_is_told_by_its_first_bytes() {
    let words = vec!["token"; 40_000];
    let bytes = Writer::llama()
        .texts("tokenizer.ggml.tokens", &words)
        .tensor("t", &[1024], 1, 2048)
        .header();
    // Longer than the first piece.
    assert!(bytes.len() > 300_000);
    let whole = [bytes, vec![0; 4_000_000]].concat();
    let server = Server::start(move |_, request| match request.path.as_str() {
        "/gone" => Reply::status(404),
        _ => Reply::file(request, &whole),
    });
    let facts = look_at(&server, &["x.gguf"]).await.unwrap().unwrap();
    assert_eq!(facts.vocabulary, Some(40_000));
    assert_eq!(facts.weight_bytes, Some(2048));
    let requests = server.requests();
    let asked = requests.iter().filter(|request| request.path != "/gone");
    let ranges: Vec<_> = asked.map(|request| request.range().unwrap()).collect();
    assert_eq!(ranges, [(0, Some(262_143)), (262_144, Some(1_048_575))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_page_in_the_place_of_a_model_is_named_before_it_is_fetched() {
    let server = Server::start(|_, request| match request.path.as_str() {
        "/gone" => Reply::status(404),
        _ => Reply::ok(b"<!DOCTYPE html><title>Sign in</title>"),
    });
    let error = look_at(&server, &["x.gguf"]).await.unwrap_err();
    assert!(
        error.to_string().contains("it looks like a web page"),
        "{error}"
    );
    let server = Server::start(|_, _| Reply::status(404));
    let error = look_at(&server, &["config.json", "x.safetensors"])
        .await
        .unwrap_err();
    assert!(matches!(error, FactsError::Net { .. }), "{error}");
}

#[test]
fn of_an_index_the_files_are_counted_and_too_many_are_refused() {
    let index = |map: &str| {
        let text =
            format!(r#"{{"metadata": {{"total_size": 8.0, "x": [1]}}, "weight_map": {{{map}}}}}"#);
        super::repository::index(text.as_bytes())
    };
    let counted = index(r#""a": "1", "b": "2", "c": "1""#).unwrap();
    assert_eq!((counted.files, counted.total_bytes), (2, Some(8)));
    let many: Vec<String> = (0..70_000)
        .map(|file| format!(r#""{file}": "{file}""#))
        .collect();
    assert!(index(&many.join(",")).is_err());
    for odd in [
        r#"{"metadata": null}"#,
        r#"{"metadata": {"total_size": "8"}}"#,
    ] {
        assert_eq!(
            super::repository::index(odd.as_bytes())
                .unwrap()
                .total_bytes,
            None,
            "{odd}"
        );
    }
}

#[test]
fn layers_with_a_window_are_told_from_those_that_see_everything() {
    let layers = |architecture: &str, with: fn(Writer) -> Writer| {
        let writer = Writer::new(3, false)
            .text("general.architecture", architecture)
            .u32(&format!("{architecture}.block_count"), 6)
            .u32(&format!("{architecture}.attention.sliding_window"), 512);
        let header = gguf::Header::read(with(writer).header().as_slice()).unwrap();
        let facts = of_headers(&[header]).unwrap();
        let letter = |windowed: &bool| if *windowed { 'w' } else { 'a' };
        facts.windowed_layers.iter().map(letter).collect::<String>()
    };
    assert_eq!(layers("gemma3", |it| it), "wwwwwa");
    assert_eq!(layers("gpt-oss", |it| it), "wawawa");
    assert_eq!(layers("llama", |it| it), "", "nobody says which");
    let period = |it: Writer| it.u32("gemma3.attention.sliding_window_pattern", 3);
    assert_eq!(layers("gemma3", period), "wwawwa");
    let none = |it: Writer| it.u32("gemma3.attention.sliding_window_pattern", 1);
    assert_eq!(layers("gemma3", none), "aaaaaa");
    let each = |it: Writer| {
        let truths = [
            &[7, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0][..],
            &[1, 0, 1, 1, 0, 0],
        ]
        .concat();
        it.raw("gemma3n.attention.sliding_window_pattern", 9, &truths)
    };
    assert_eq!(layers("gemma3n", each), "wawwaa");
    let too_few = |it: Writer| it.numbers("gemma3n.attention.sliding_window_pattern", &[1]);
    assert_eq!(layers("gemma3n", too_few), "");
}

#[test]
fn a_repository_says_it_layer_by_layer_or_as_a_period() {
    let layers = |more: serde_json::Value| {
        let mut config = json!({"num_hidden_layers": 4, "sliding_window": 512});
        config
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let facts = repository::describe(config.to_string().as_bytes()).unwrap();
        facts.windowed_layers
    };
    let kinds = [
        "sliding_attention",
        "full_attention",
        "sliding_attention",
        "x",
    ];
    assert_eq!(
        layers(json!({"layer_types": kinds})),
        [true, false, true, false]
    );
    assert_eq!(
        layers(json!({"sliding_window_pattern": 2})),
        [true, false, true, false]
    );
    assert_eq!(
        layers(json!({"use_sliding_window": false})),
        Vec::<bool>::new()
    );
}
