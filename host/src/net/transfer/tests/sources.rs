//! Several places that have the same file.

use super::*;

#[tokio::test]
async fn sources_are_asked_in_order_until_one_gives_the_file() {
    let missing = Server::start(|_, _| Reply::status(404));
    let wrong = Server::start(|_, request| Reply::file(request, other_body()));
    let right = Server::start(|_, request| Reply::file(request, body()));
    let urls = [missing.url("a"), wrong.url("b"), right.url("c")];
    let bench = Bench::of(urls, Some(Digest::of(body())));
    let (narrator, told) = Narrator::capture();
    let cancel = CancellationToken::new();
    let fetched = net().fetch(&bench.transfer, &narrator, &cancel).await;
    assert_eq!(fetched.unwrap().from, [right.url("c").to_string()]);
    let said: Vec<String> = told.events().into_iter().map(|it| it.human).collect();
    let [a, b, c] = [missing.url("a"), wrong.url("b"), right.url("c")];
    assert_eq!(
        said,
        [
            format!("{a} answered 404; going on with {b}"),
            format!("{b} is not what it should be; going on with {c}"),
        ]
    );

    let bench = Bench::of([missing.url("a"), wrong.url("b")], Some(Digest::of(body())));
    let error = bench.fails(Exit::Verification, "digest-mismatch").await;
    assert_eq!(error.to_string(), "none of 2 places gave the file");
    let said: Vec<String> = error.details().into_iter().map(|it| it.text).collect();
    assert!(said[0].ends_with("/a answered 404"), "{said:?}");
    assert!(said[1].ends_with("/b is not what it should be"), "{said:?}");
    assert_eq!(said[2], Digest::of(body()).to_string());
    assert_eq!(bench.left(), [""; 0]);
}

#[tokio::test]
async fn another_source_goes_on_where_the_first_one_ended_if_a_digest_tells() {
    let breaks = Server::start(|number, request| match number {
        0 => tagged(request, body(), "\"one\"").cut_after(30_000),
        _ => Reply::status(500),
    });
    let goes_on = Server::start(|_, request| tagged(request, body(), "\"two\""));
    let urls = || [breaks.url("m"), goes_on.url("m")];
    Bench::of(urls(), Some(Digest::of(body())))
        .gets(body())
        .await;
    assert_eq!(asked(&goes_on)[0], "30000-46383");

    let breaks = Server::start(|number, request| match number {
        0 => tagged(request, other_body(), "\"one\"").cut_after(30_000),
        _ => Reply::status(500),
    });
    let bench = Bench::of([breaks.url("m"), goes_on.url("m")], None);
    bench.gets(body()).await;
}
