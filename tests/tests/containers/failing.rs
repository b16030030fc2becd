//! Engines and containers that do not come up, and those that end by themselves.

use e2e::Registry;

use crate::{Stage, under_both};

under_both! {
    fn a_program_that_is_not_in_the_image_is_said(kind) {
        let image = Stage::image().entrypoint(&["/bin/no-such-engine"]);
        let stage = Stage::with(kind, Registry::open(), image);
        stage.write();
        let run = stage.machine.run(&["provision"]).code(10);
        run.says("the image does not have the program");
        stage.assert_clean();
    }

    fn a_program_that_cannot_be_run_is_said(kind) {
        let image = Stage::image().entrypoint(&["/tmp"]);
        let stage = Stage::with(kind, Registry::open(), image);
        stage.write();
        let run = stage.machine.run(&["provision"]).code(10);
        run.says("the program in the image cannot be started: ");
        stage.assert_clean();
    }

    fn an_engine_that_ends_while_it_loads_is_said_with_its_last_lines(kind) {
        let mut stage = Stage::new(kind);
        stage.flags(&[
            "--never-ready", "--exit-after-ms", "300", "--exit-code", "7",
            "--print-line", "no such tensor: blk.0",
        ]);
        stage.write();
        let run = stage.machine.run(&["provision"]).code(10);
        run.says("no such tensor: blk.0");
        run.says("exit code 7");
        stage.assert_clean();
    }

    fn an_engine_killed_by_a_signal_is_said(kind) {
        let mut stage = Stage::new(kind);
        stage.flags(&["--never-ready", "--exit-after-ms", "300", "--signal", "9"]);
        stage.write();
        let run = stage.machine.run(&["provision"]).code(10);
        // What ends by a signal inside ends with 128 and its number here.
        run.says("signal 9 (KILL)");
        stage.assert_clean();
    }

    fn a_known_failure_in_the_log_is_explained(kind) {
        let mut stage = Stage::new(kind);
        stage.flags(&[
            "--print-line", "invalid argument: --frobnicate", "--exit-after-ms", "0",
            "--never-ready",
        ]);
        stage.write();
        let run = stage.machine.run(&["provision"]).code(10);
        run.says("this build does not know the flag `--frobnicate`");
        stage.assert_clean();
    }

    fn an_engine_that_makes_no_progress_is_given_up(kind) {
        let mut stage = Stage::new(kind);
        stage.flags(&["--never-ready"]);
        stage.pool["readiness"] = serde_json::json!({"stall_timeout": "2s"});
        stage.pool["stop"] = serde_json::json!({"grace": "1s"});
        stage.write();
        let run = stage.machine.run(&["provision"]).code(10);
        run.says("the engine made no progress for 2 s");
        stage.assert_clean();
    }

    fn a_crash_while_it_serves_ends_the_command_and_leaves_nothing(kind) {
        let mut stage = Stage::new(kind);
        stage.flags(&["--exit-code", "3"]);
        stage.write();
        let mut running = stage.machine.provision(&[]);
        let url = running.wait_ready();
        let _ = e2e::http_get(&format!("{url}/fail/exit"));
        let run = running.finish(e2e::RUN_LIMIT).code(10);
        run.says("exit code 3");
        stage.assert_clean();
    }

    fn a_container_killed_behind_our_back_ends_the_command_and_leaves_nothing(kind) {
        let stage = Stage::new(kind);
        stage.write();
        let running = stage.machine.provision(&[]);
        stage.containers.run(&["kill", &stage.name()]);
        let run = running.finish(e2e::RUN_LIMIT).code(10);
        run.says("signal 9 (KILL)");
        stage.assert_clean();
    }
}
