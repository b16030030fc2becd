//! A file behind a plain URL: its size and a mark of its content are all that its server can tell.

use url::Url;

use super::{Place, RemoteFile, Resolved};
use crate::{
    model::{ACTOR, ModelError},
    net::{self, Described, NetError, Source},
};

pub(super) async fn resolve(place: &Place<'_>, url: &Url) -> Result<Resolved, ModelError> {
    let all = std::iter::once(url).chain(place.mirrors);
    let sources: Vec<Source> = all.cloned().map(Source::from).collect();
    let (described, sources) =
        describe(place, sources)
            .await
            .map_err(|source| ModelError::Net {
                reference: net::shown(url),
                source: Box::new(source),
            })?;
    // A mark of one place says nothing of another.
    let etag = described.strong_etag().filter(|_| sources.len() == 1);
    let etag = etag.map(str::to_owned);
    Ok(Resolved {
        reference: place.written.to_owned(),
        pinned: place.written.to_owned(),
        revision: etag.clone(),
        licence: None,
        files: vec![RemoteFile {
            name: net::file_name(url).to_owned(),
            sources,
            size_bytes: described.size_bytes,
            digest: place.digest.cloned(),
            version: etag,
            kept_as: None,
            git_blob: None,
            is_archive: false,
            local: None,
        }],
        picked_from: Vec::new(),
    })
}

/// Asks one place after the other until one answers; those that did not are the last to be asked for the
/// file itself.
async fn describe(
    place: &Place<'_>,
    mut sources: Vec<Source>,
) -> Result<(Described, Vec<Source>), NetError> {
    let mut failures = Vec::new();
    for index in 0..sources.len() {
        match describe_one(place, &sources[index]).await {
            Ok(described) => {
                sources.rotate_left(index);
                return Ok((described, sources));
            }
            Err(error) if error.is_of_its_source() => {
                if let Some(next) = sources.get(index + 1) {
                    net::tell_passed_over(place.narrator, ACTOR, &sources[index], &error, next);
                }
                failures.push(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(NetError::of_sources(failures))
}

async fn describe_one(place: &Place<'_>, source: &Source) -> Result<Described, NetError> {
    if let Some(password) = source.url.password() {
        place.narrator.secrets().register(password);
    }
    // What cannot be fetched is not asked about: the question alone would tell a token to everybody.
    net::check_transport(&source.url, place.digest)?;
    place.net.describe(source, place.cancel).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::{
        config::environment::Environment,
        fault::{Exit, Fault as _},
        model::source::{resolve, testing::Bench},
        net::{
            Digest, Net,
            testing::{Reply, Server},
        },
    };

    #[tokio::test]
    async fn a_url_is_one_file_named_by_its_last_part() {
        let server = Server::start(|_, _| Reply {
            headers: vec![("ETag", "\"a\"".to_owned())],
            ..Reply::ok("model")
        });
        let written = server.url("models/m.gguf?download=true").to_string();
        let bench = Bench::new(&written);
        let resolved = resolve(&bench.place(), &bench.reference()).await.unwrap();
        assert_eq!(resolved.pinned, written);
        assert_eq!(resolved.size_bytes(), Some(5));
        assert_eq!(resolved.revision.as_deref(), Some("a"));
        assert_eq!(resolved.files[0].name, "m.gguf");
        assert_eq!(resolved.files[0].digest, None);
    }

    #[tokio::test]
    async fn a_place_that_does_not_answer_is_asked_last_for_the_file() {
        let gone = Server::start(|_, _| Reply::status(404));
        let there = Server::start(|_, _| Reply::ok("model").with("ETag", "\"a\""));
        let mut bench = Bench::new(gone.url("m").as_str());
        bench.digest = Some(Digest::of(b"model"));
        bench.mirrors = vec![gone.url("n"), there.url("o"), gone.url("p")];
        let resolved = resolve(&bench.place(), &bench.reference()).await.unwrap();
        let order = resolved.files[0].sources.iter().map(|it| it.url.path());
        assert_eq!(order.collect::<Vec<_>>(), ["/o", "/p", "/m", "/n"]);
        assert_eq!(resolved.revision, None, "a mark of one place alone");
        assert_eq!(bench.told.actions(), ["mirror-failed", "mirror-failed"]);
        bench.mirrors.truncate(1);
        let error = resolve(&bench.place(), &bench.reference())
            .await
            .unwrap_err();
        assert_eq!(error.exit(), Exit::Network);
        let tried: Vec<String> = error.details().into_iter().map(|it| it.text).collect();
        let answered = |path| format!("{} answered 404", gone.url(path));
        assert_eq!(tried, [answered("m"), answered("n")]);
    }

    #[tokio::test]
    async fn plain_http_without_a_checksum_is_refused_unasked() {
        let proxy = Server::start(|_, _| Reply::ok("model"));
        let mut bench = Bench::new("http://elsewhere.test/m.gguf?token=x");
        let environment = Environment::from_pairs([("http_proxy", proxy.url("").to_string())]);
        bench.net = Net::new(&environment, Arc::new(|_: &str, _: Option<&str>| Ok(())));
        let error = resolve(&bench.place(), &bench.reference())
            .await
            .unwrap_err();
        assert_eq!(error.exit(), Exit::Refused);
        assert_eq!(proxy.requests().len(), 0);
        bench.digest = Some(Digest::of(b"model"));
        resolve(&bench.place(), &bench.reference()).await.unwrap();
        assert_eq!(proxy.requests().len(), 1);
    }
}
