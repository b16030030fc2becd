//! A split model behind plain URLs: whoever names one of its parts means all of them, which lie beside it.

use futures_util::{StreamExt as _, stream};
use url::Url;

use super::{Place, RemoteFile, Resolved, missing_parts, parts_of};
use crate::{
    model::ModelError,
    net::{self, NetError},
};

/// Parts that are asked about at the same time.
const AT_ONCE: usize = 8;

/// URLs of all parts, in their order; `None`: it is a model by itself.
pub(super) fn urls(url: &Url) -> Option<Vec<Url>> {
    let (above, name) = url.path().rsplit_once('/')?;
    let names = parts_of(name)?.into_iter();
    let all = names.map(|name| {
        let mut part = url.clone();
        part.set_path(&format!("{above}/{name}"));
        part
    });
    Some(all.collect())
}

/// Asks what each part is; refused where one is not there.
pub(super) async fn resolve(
    place: &Place<'_>,
    url: &Url,
    urls: &[Url],
) -> Result<Resolved, ModelError> {
    let mirrors = mirrors(place, urls.len());
    // Collected first: a stream that holds this closure could not cross threads.
    let each = urls.iter().zip(&mirrors);
    let asked: Vec<_> = each
        .map(|(part, mirrors)| one(place, part, mirrors))
        .collect();
    let answers: Vec<_> = stream::iter(asked).buffered(AT_ONCE).collect().await;
    let is_named = |part: &Url| part == url;
    let (mut files, mut missing) = (Vec::new(), Vec::new());
    for (part, answer) in urls.iter().zip(answers) {
        match answer {
            Ok(file) => files.push(file),
            Err(error) if is_absent(&error) && !is_named(part) => {
                missing.push(net::file_name(part).to_owned());
            }
            Err(error) => return Err(error),
        }
    }
    if !missing.is_empty() {
        let beside = url.join(".").unwrap_or_else(|_| url.clone());
        let name = net::file_name(&urls[0]);
        return Err(ModelError::Choice {
            reference: net::shown(url),
            source: Box::new(missing_parts(
                net::shown(&beside),
                name,
                urls.len(),
                missing,
            )),
        });
    }
    Ok(Resolved {
        reference: place.written.to_owned(),
        pinned: place.written.to_owned(),
        revision: None,
        licence: None,
        files,
        picked_from: Vec::new(),
    })
}

/// For each part the mirrors that have it. One that names something else has none.
fn mirrors(place: &Place<'_>, count: usize) -> Vec<Vec<Url>> {
    let sets = place.mirrors.iter().filter_map(urls);
    let sets: Vec<Vec<Url>> = sets.filter(|set| set.len() == count).collect();
    (0..count)
        .map(|part| sets.iter().map(|set| set[part].clone()).collect())
        .collect()
}

/// One part. The digest that the model must have is that of all of them.
async fn one(place: &Place<'_>, part: &Url, mirrors: &[Url]) -> Result<RemoteFile, ModelError> {
    let place = Place {
        written: part.as_str(),
        mirrors,
        digest: None,
        ..*place
    };
    let mut resolved = super::url::resolve(&place, part).await?;
    Ok(resolved.files.remove(0))
}

fn is_absent(error: &ModelError) -> bool {
    match error {
        ModelError::Net { source, .. } => is_gone(source),
        _ => false,
    }
}

fn is_gone(error: &NetError) -> bool {
    match error {
        NetError::Status {
            status: 404 | 410, ..
        } => true,
        NetError::Sources { failures } => failures.iter().all(is_gone),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        fault::{Exit, Fault as _},
        model::{
            ModelError,
            source::{Resolved, resolve, testing::Bench},
        },
        net::testing::{Reply, Server},
    };

    async fn resolved(there: &'static [&'static str], named: &str) -> Result<Resolved, ModelError> {
        let server = Server::start(move |_, request| {
            match there.iter().any(|name| request.path.contains(name)) {
                true => Reply::ok("part"),
                false => Reply::status(404),
            }
        });
        let bench = Bench::new(server.url(named).as_str());
        resolve(&bench.place(), &bench.reference()).await
    }

    #[tokio::test]
    async fn all_parts_of_a_split_model_come_whichever_is_named() {
        let there = &["m%20x-00001-of-00002.gguf", "m%20x-00002-of-00002.gguf"];
        for named in there {
            let resolved = resolved(there, &format!("a/{named}?download=true"))
                .await
                .unwrap();
            let names: Vec<&str> = resolved.files.iter().map(|it| it.name.as_str()).collect();
            assert_eq!(names, there);
            assert_eq!(resolved.size_bytes(), Some(8));
            for (file, name) in resolved.files.iter().zip(there) {
                let url = file.sources[0].url.as_str();
                assert!(url.ends_with(&format!("a/{name}?download=true")), "{url}");
            }
        }
    }

    #[tokio::test]
    async fn a_mirror_stands_in_for_each_part_with_just_that_part() {
        let gone = Server::start(|_, _| Reply::status(404));
        let there = Server::start(|_, _| Reply::ok("part"));
        let name = |number| format!("m-0000{number}-of-00002.gguf");
        let mut bench = Bench::new(gone.url(&name(1)).as_str());
        // What is no part is a mirror of none.
        bench.mirrors = vec![there.url("whole.gguf"), there.url(&name(2))];
        let resolved = resolve(&bench.place(), &bench.reference()).await.unwrap();
        for (file, number) in resolved.files.iter().zip(1..) {
            let places: Vec<&str> = file.sources.iter().map(|it| it.url.path()).collect();
            assert_eq!(places, vec![format!("/{}", name(number)); 2]);
        }
    }

    #[tokio::test]
    async fn a_split_model_that_lacks_a_part_is_refused_naming_it() {
        let error = resolved(&["m-00001-of-00003.gguf"], "a/m-00001-of-00003.gguf").await;
        let error = error.unwrap_err();
        assert_eq!(error.exit(), Exit::Config);
        let details = format!("{:?}", error.details());
        for name in ["m-00002-of-00003.gguf", "m-00003-of-00003.gguf"] {
            assert!(details.contains(name), "{details}");
        }
        let error = resolved(&[], "m-00001-of-00002.gguf").await.unwrap_err();
        assert!(matches!(error, ModelError::Net { .. }), "{error:?}");
    }
}
