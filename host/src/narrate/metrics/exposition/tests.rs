use proptest::prelude::*;

use super::*;

const VLLM: &str = "\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine=\"0\",model_name=\"a\"} 1.0
# HELP vllm:e2e_request_latency_seconds Histogram of e2e request latency in seconds.
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{le=\"0.3\"} 0.0
vllm:e2e_request_latency_seconds_bucket{le=\"+Inf\"} 1.0
vllm:e2e_request_latency_seconds_count 1.0
vllm:e2e_request_latency_seconds_sum 0.7
";

fn of(pool: &'static str) -> [(&'static str, &'static str); 2] {
    [("pool", pool), ("replica", "r0")]
}

#[test]
fn families_of_several_engines_stand_together_and_say_whose_they_are() {
    let mut page = Exposition::default();
    let first = page.add(VLLM, &of("chat"), Limits::default());
    let second = page.add(VLLM, &of("code"), Limits::default());
    assert_eq!((first.samples, first.dropped), (5, 0));
    assert_eq!(first, second);
    insta::assert_snapshot!(page.text(), @r#"
    # HELP vllm:e2e_request_latency_seconds Histogram of e2e request latency in seconds.
    # TYPE vllm:e2e_request_latency_seconds histogram
    vllm:e2e_request_latency_seconds_bucket{pool="chat",replica="r0",le="0.3"} 0.0
    vllm:e2e_request_latency_seconds_bucket{pool="chat",replica="r0",le="+Inf"} 1.0
    vllm:e2e_request_latency_seconds_count{pool="chat",replica="r0"} 1.0
    vllm:e2e_request_latency_seconds_sum{pool="chat",replica="r0"} 0.7
    vllm:e2e_request_latency_seconds_bucket{pool="code",replica="r0",le="0.3"} 0.0
    vllm:e2e_request_latency_seconds_bucket{pool="code",replica="r0",le="+Inf"} 1.0
    vllm:e2e_request_latency_seconds_count{pool="code",replica="r0"} 1.0
    vllm:e2e_request_latency_seconds_sum{pool="code",replica="r0"} 0.7
    # HELP vllm:num_requests_running Number of requests in model execution batches.
    # TYPE vllm:num_requests_running gauge
    vllm:num_requests_running{pool="chat",replica="r0",engine="0",model_name="a"} 1.0
    vllm:num_requests_running{pool="code",replica="r0",engine="0",model_name="a"} 1.0
    "#);
}

#[test]
fn bad_lines_are_left_out_and_the_rest_stays() {
    let mut page = Exposition::default();
    let text = "<html>\nok 1\nok 2\nok{a=\"b\" 3\n# TYPE broken\n#\nalso_ok 4\n";
    let taken = page.add(text, &[], Limits::default());
    assert_eq!((taken.samples, taken.dropped), (2, 3));
    assert!(page.text().contains("\nok 1\n"), "{}", page.text());
    assert!(!page.text().contains("ok 2"), "said twice: {}", page.text());
}

#[test]
fn an_engine_that_names_a_pool_itself_keeps_its_word_beside_ours() {
    let mut page = Exposition::default();
    page.add(
        "a{pool=\"theirs\",exported_pool=\"too\"} 1\n",
        &of("chat"),
        Limits::default(),
    );
    let line =
        "a{pool=\"chat\",replica=\"r0\",exported_exported_pool=\"theirs\",exported_pool=\"too\"} 1";
    assert!(page.text().contains(line), "{}", page.text());
}

#[test]
fn no_engine_speaks_in_the_name_of_this_program() {
    let mut page = Exposition::default();
    let taken = page.add("engine_host_build_info 1\n", &of("chat"), Limits::default());
    assert_eq!((taken.samples, page.text().as_str()), (0, ""));
}

#[test]
fn openmetrics_becomes_the_older_form() {
    let mut page = Exposition::default();
    let text =
        "# HELP a Things.\n# TYPE a counter\na_total 1\n# TYPE b info\nb_info{v=\"1\"} 1\n# EOF\n";
    page.add(text, &[], Limits::default());
    insta::assert_snapshot!(page.text(), @r#"
    # HELP a_total Things.
    # TYPE a_total counter
    a_total 1
    # HELP b_info Not described.
    # TYPE b_info gauge
    b_info{v="1"} 1
    "#);
}

#[test]
fn pages_that_disagree_about_a_family_do_not_mix() {
    let mut page = Exposition::default();
    page.add("# TYPE a gauge\na 1\n", &of("chat"), Limits::default());
    let taken = page.add("# TYPE a counter\na 2\n", &of("code"), Limits::default());
    assert_eq!(taken.dropped, 1);
    assert!(!page.text().contains("code"), "{}", page.text());
}

#[test]
fn a_page_without_end_is_cut() {
    let endless: String = (0..1000)
        .map(|it| format!("a{{n=\"{it}\"}} {it}\n"))
        .collect();
    let limits = Limits {
        bytes: 1000,
        samples: 10,
    };
    let mut page = Exposition::default();
    let taken = page.add(&endless, &[], limits);
    assert_eq!(taken.samples, 10);
    assert!(taken.dropped > 10);
    assert_eq!(page.text().lines().count(), 12);
}

fn label() -> impl Strategy<Value = (String, String)> {
    ("[a-z_][a-z0-9_]{0,6}", any::<String>())
}

fn sample() -> impl Strategy<Value = Sample> {
    let labels = proptest::collection::vec(label(), 0..4);
    let value = prop_oneof![
        any::<f64>().prop_map(|it| it.to_string()),
        Just("+Inf".to_owned())
    ];
    ("[a-z_:][a-z0-9_:]{0,8}", labels, value).prop_map(|(name, mut labels, value)| {
        labels.sort();
        labels.dedup_by(|one, other| one.0 == other.0);
        Sample {
            name,
            labels,
            value,
            timestamp: None,
        }
    })
}

proptest! {
    #[test]
    fn whatever_a_sample_says_is_read_back(sample in sample()) {
        // A carriage return ends a line for nobody else, yet stands for one in `lines`.
        prop_assume!(!sample.labels.iter().any(|(_, value)| value.contains('\r')));
        prop_assert_eq!(parse(&sample.to_string()), Some(sample));
    }

    #[test]
    fn any_page_is_taken_without_a_panic_and_what_comes_out_goes_in_again(text in any::<String>()) {
        let mut page = Exposition::default();
        page.add(&text, &of("chat"), Limits::default());
        let once = page.text();
        let mut again = Exposition::default();
        again.add(&once, &[], Limits::default());
        prop_assert_eq!(again.text(), once);
    }

    #[test]
    fn samples_of_any_page_say_whose_they_are(samples in proptest::collection::vec(sample(), 0..8)) {
        let text: String = samples.iter().map(|it| format!("{it}\n")).collect();
        let mut page = Exposition::default();
        let taken = page.add(&text, &of("chat"), Limits::default());
        let page = page.text();
        let lines: Vec<Sample> = page.lines().filter(|it| !it.starts_with('#')).filter_map(parse).collect();
        prop_assert_eq!(lines.len(), taken.samples);
        for line in lines {
            prop_assert_eq!(&line.labels[0], &("pool".to_owned(), "chat".to_owned()));
        }
    }

    #[test]
    fn lines_that_look_like_metrics_never_break_the_page(lines in proptest::collection::vec("(# (TYPE|HELP) )?[a-c]{1,2}(_total|_bucket|_sum)?(\\{[a-c]=\"[^\n]{0,4}\"\\})? ?(gauge|counter|histogram|[0-9]{1,3})?", 0..24)) {
        let mut page = Exposition::default();
        page.add(&lines.join("\n"), &of("chat"), Limits::default());
        let once = page.text();
        let mut again = Exposition::default();
        let taken = again.add(&once, &[], Limits::default());
        prop_assert_eq!(taken.dropped, 0, "{}", once);
    }
}
