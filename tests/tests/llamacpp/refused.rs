//! What is refused before a real engine is asked.

use crate::{COMMAND_ONE, built};

#[test]
fn an_unknown_flag_is_refused_at_plan_time_with_the_nearest_name() {
    let (machine, _turn) = built();
    machine.write(
        "flag.yaml",
        "pools:\n  - id: flag\n    engine: llamacpp\n    gpu: forbid\n    provisioning:\n      model: {ref: \"builtin:haiku\"}\n      flags: [\"--paralel\", \"2\"]\n",
    );
    let run = machine.run(&["provision", "--config", "flag.yaml"]).code(3);
    run.says("--paralel");
    run.says("`--parallel`");
    assert!(!run.stderr.contains("launch"), "{}", run.stderr);
    machine.assert_clean();
}

#[test]
fn a_model_that_is_not_there_is_refused_before_the_engine_starts() {
    let (machine, _turn) = built();
    let mut arguments = COMMAND_ONE.to_vec();
    arguments.extend(["--model", "./missing.gguf"]);
    let run = machine.run(&arguments).code(11);
    run.says("there is no model file");
    assert!(!run.stderr.contains("launch"), "{}", run.stderr);
    machine.assert_clean();
}
