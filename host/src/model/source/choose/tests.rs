use super::*;
use crate::model::source::testing::Bench;

const ALL: [&str; 6] = [
    "README.md",
    "m-Q4_K_M.gguf",
    "m-Q8_0-00001-of-00002.gguf",
    "m-Q8_0-00002-of-00002.gguf",
    "mmproj-m.gguf",
    "n-F16-00002-of-00002.gguf",
];

fn chosen(quant: Option<&str>, names: &[&str]) -> Result<Chosen, NoChoice> {
    let mut bench = Bench::new("s3://bucket/models/");
    bench.formats = vec!["gguf".to_owned()];
    bench.quant = quant.map(str::to_owned);
    choose(&bench.place(), "it", names)
}

#[test]
fn the_only_model_is_chosen_and_a_quantisation_picks_among_several() {
    assert_eq!(chosen(None, &ALL[..2]).unwrap().names, ["m-Q4_K_M.gguf"]);
    assert!(chosen(None, &ALL[..2]).unwrap().from.is_empty());
    let split = chosen(Some("q8_0"), &ALL).unwrap();
    assert_eq!(split.names, ALL[2..4]);
    assert_eq!(split.from.len(), 3);
}

#[test]
fn what_cannot_be_chosen_is_said_with_what_there_is() {
    assert!(matches!(chosen(None, &ALL), Err(NoChoice::Several { names, .. }) if names.len() == 3));
    assert!(matches!(
        chosen(Some("Q4_K"), &ALL),
        Err(NoChoice::Quant { .. })
    ));
    assert!(matches!(
        chosen(Some("f16"), &ALL),
        Err(NoChoice::Incomplete { missing, .. }) if missing == ["n-F16-00001-of-00002.gguf"]
    ));
    assert!(matches!(
        chosen(None, &["a.bin"]),
        Err(NoChoice::Format { .. })
    ));
    assert!(matches!(
        chosen(Some("Q8_0"), &[]),
        Err(NoChoice::Format { .. })
    ));
}

#[test]
fn a_directory_is_refused_where_its_engine_would_look_for_files_in_vain() {
    let step = StageModel {
        formats: vec!["onnx".to_owned()],
        layout: vec!["*/config.pbtxt".to_owned(), "*/#/".to_owned()],
        ..StageModel::default()
    };
    let check = |names: &[&str]| check_directory("hf:o/n", &step, names.iter().copied());
    check(&["a/1/model.onnx"]).unwrap();
    assert!(matches!(check(&["a/1/b"]), Err(NoChoice::Format { .. })));
    let error = check(&["1/model.onnx", "config.json"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "hf:o/n is not laid out as its engine reads it, which looks for `NAME/config.pbtxt` or \
         `NAME/NUMBER/…`"
    );
    assert_eq!(error.kind(), "model-format");
    assert_eq!(error.details()[0].text, "1/model.onnx, config.json");
}
