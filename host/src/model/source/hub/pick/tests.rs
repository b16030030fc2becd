use super::*;
use crate::fault::Fault as _;

fn repository(paths: &[&str]) -> Repository {
    let file = |path: &&str| File {
        path: (*path).to_owned(),
        size_bytes: Some(1 << 30),
        ..File::default()
    };
    let mut files: Vec<File> = paths.iter().map(file).collect();
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Repository {
        files,
        ..Repository::default()
    }
}

fn pick(
    reference: &str,
    quant: Option<&str>,
    formats: &[&str],
    paths: &[&str],
) -> Result<(Vec<String>, Vec<String>), HubError> {
    let name = HubName::parse(reference).unwrap();
    let formats: Vec<String> = formats.iter().map(|&format| format.to_owned()).collect();
    let wish = Wish {
        name: &name,
        quant,
        formats: &formats,
        include: &[],
        exclude: &[],
    };
    let repository = repository(paths);
    let picked = one(wish, &repository)?;
    let names = picked.files.iter().map(|(name, _)| name.clone()).collect();
    Ok((names, picked.from))
}

const QUANTS: &[&str] = &[
    ".gitattributes",
    "README.md",
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "m-Q8_0-00001-of-00002.gguf",
    "m-Q8_0-00002-of-00002.gguf",
    "mmproj-m-F16.gguf",
];

#[test]
fn a_quantisation_picks_one_model_and_says_from_what() {
    let (names, from) = pick("o/n", Some("q4_k_m"), &["gguf"], QUANTS).unwrap();
    assert_eq!(names, ["m-Q4_K_M.gguf"]);
    assert_eq!(
        from,
        [
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "m-Q8_0-00001-of-00002.gguf"
        ]
    );
    let (names, _) = pick("o/n:Q8_0", None, &["gguf"], QUANTS).unwrap();
    assert_eq!(
        names,
        ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]
    );
}

#[test]
fn any_part_stands_for_the_whole_model() {
    let part = "o/n/m-Q8_0-00002-of-00002.gguf";
    let (names, from) = pick(part, None, &["gguf"], QUANTS).unwrap();
    assert_eq!((names.len(), from.len()), (2, 0));
    assert_eq!(names[0], "m-Q8_0-00001-of-00002.gguf");
}

#[test]
fn what_is_not_clear_is_refused_with_the_choices() {
    let told = |error: HubError| {
        let details = error.details();
        let details = details.iter().map(|detail| detail.text.as_str());
        let hints = error.hints();
        let hints = hints.iter().map(|hint| hint.text.as_str());
        let parts: Vec<&str> = details.chain(hints).collect();
        format!("{error}\n{}", parts.join("\n"))
    };
    let cases = [
        pick("o/n", None, &["gguf"], QUANTS),
        pick("o/n", Some("Q4_K"), &["gguf"], QUANTS),
        pick("o/n", Some("Q4"), &["gguf"], &["a-Q4.gguf", "b-Q4.gguf"]),
        pick("o/n:Q8_0", Some("Q4_K_M"), &["gguf"], QUANTS),
        pick("o/n/m-Q4_K_S.gguf", Some("Q4_K_M"), &["gguf"], QUANTS),
        pick("o/n/m-Q4_K_L.gguf", None, &["gguf"], QUANTS),
        pick(
            "o/n",
            None,
            &["gguf"],
            &["config.json", "model.safetensors"],
        ),
        pick("o/n/README.md", None, &["gguf"], QUANTS),
        pick("o/n", None, &["onnx"], QUANTS),
    ];
    let told: Vec<String> = cases.map(|case| told(case.unwrap_err())).into();
    insta::assert_snapshot!(told.join("\n\n"), @r#"
    `o/n` has several models, and nothing says which one
       1.0 GiB  m-Q4_K_M.gguf
       1.0 GiB  m-Q4_K_S.gguf
       2.0 GiB  m-Q8_0-00001-of-00002.gguf
    pick one, for example with `quant: Q4_K_M`

    `o/n` has no model of quantisation Q4_K
       1.0 GiB  m-Q4_K_M.gguf
       1.0 GiB  m-Q4_K_S.gguf
       2.0 GiB  m-Q8_0-00001-of-00002.gguf
    pick one, for example with `quant: Q4_K_M`

    `o/n` has several models of quantisation Q4
       1.0 GiB  a-Q4.gguf
       1.0 GiB  b-Q4.gguf
    name the file: `hf:o/n/a-Q4.gguf`

    the reference asks for Q8_0 and the pool for Q4_K_M
    leave one of them out

    the reference asks for m-Q4_K_S.gguf and the pool for quantisation Q4_K_M
    leave one of them out

    `o/n` has no `m-Q4_K_L.gguf`
    there is `m-Q4_K_M.gguf`

    `o/n` holds safetensors, and this engine reads gguf
    use a repository with GGUF files of this model (their names often end with `-GGUF`), or vLLM or TGI for this one

    `o/n/README.md` holds md, and this engine reads gguf
    name a model of the repository, or leave the path out to see which there are

    `o/n` holds gguf, and this engine reads onnx
    use the repository that it was made from, or llama.cpp for this one
    "#);
}

#[test]
fn one_model_needs_no_choice() {
    let (names, from) = pick("o/n", None, &["gguf"], &["q/m.gguf", "README.md"]).unwrap();
    assert_eq!((names, from.len()), (vec!["m.gguf".to_owned()], 0));
}

fn directory(
    reference: &str,
    patterns: (&[&str], &[&str]),
    formats: &[&str],
    paths: &[&str],
) -> Result<Vec<String>, HubError> {
    let name = HubName::parse(reference).unwrap();
    let own = |all: &[&str]| all.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    let wish = Wish {
        name: &name,
        quant: None,
        formats: &own(formats),
        include: &own(patterns.0),
        exclude: &own(patterns.1),
    };
    let repository = repository(paths);
    let picked = all(wish, &repository)?;
    Ok(picked.files.into_iter().map(|(name, _)| name).collect())
}

const TRANSFORMERS: &[&str] = &[
    ".gitattributes",
    ".cache/x",
    "README.md",
    "config.json",
    "model-00001-of-00001.safetensors",
    "onnx/model.onnx",
    "original/consolidated.00.pth",
    "pytorch_model.bin",
    "tf_model.h5",
    "tokenizer.json",
];

#[test]
fn a_repository_comes_without_what_is_twice_there() {
    let all = directory("o/n", (&[], &[]), &["safetensors"], TRANSFORMERS).unwrap();
    assert_eq!(
        all,
        [
            "README.md",
            "config.json",
            "model-00001-of-00001.safetensors",
            "tokenizer.json"
        ]
    );
    // Without safetensors the others are the model.
    let old = ["config.json", "pytorch_model.bin"];
    assert_eq!(directory("o/n", (&[], &[]), &["bin"], &old).unwrap(), old);
    let models = ["a/1/model.onnx", "a/config.pbtxt"];
    assert_eq!(directory("o/n", (&[], &[]), &[], &models).unwrap(), models);
}

#[test]
fn patterns_decide_where_they_are_given_except_of_hidden_files() {
    let all = directory("o/n", (&["*"], &["*.md"]), &[], TRANSFORMERS).unwrap();
    assert_eq!(all.len(), 7);
    let bins = directory("o/n", (&["*.bin", "*.json"], &["tok*"]), &[], TRANSFORMERS).unwrap();
    assert_eq!(bins, ["config.json", "pytorch_model.bin"]);
    let error = directory("o/n", (&["*.xyz"], &[]), &[], TRANSFORMERS).unwrap_err();
    assert!(matches!(error, HubError::NothingLeft { .. }), "{error}");
}

#[test]
fn a_directory_of_a_repository_is_a_model_of_its_own() {
    let all = directory("o/n/onnx", (&[], &[]), &[], TRANSFORMERS).unwrap();
    assert_eq!(all, ["model.onnx"]);
    let error = directory("o/n/config.json", (&[], &[]), &[], TRANSFORMERS).unwrap_err();
    assert!(error.to_string().contains("one file"), "{error}");
    let error = directory("o/n/nowhere", (&[], &[]), &[], TRANSFORMERS).unwrap_err();
    assert!(matches!(error, HubError::NoPath { .. }), "{error}");
}

#[test]
fn a_repository_of_gguf_is_not_for_engines_that_read_a_directory() {
    let error = directory("o/n", (&[], &[]), &["safetensors", "bin"], QUANTS).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`o/n` holds gguf, and this engine reads safetensors, bin"
    );
    assert!(error.hints()[0].text.contains("llama.cpp"));
    let error = directory("o/n", (&[], &[]), &[], QUANTS).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`o/n` holds gguf, and this engine reads model repositories"
    );
}
