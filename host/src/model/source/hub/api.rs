//! What the hub says of a repository.
//!
//! `GET ENDPOINT/api/models/REPOSITORY/revision/REVISION?blobs=true` names the commit and all files,
//! each with its size, the SHA-256 of those in large-file storage and git's name of the others. Files
//! are at `ENDPOINT/REPOSITORY/resolve/COMMIT/PATH`. Sources: the hub's API documentation
//! (<https://huggingface.co/docs/hub/api>) and the behaviour of its own client.

use url::Url;

use super::{
    described::{Repository, is_commit, parse},
    error::HubError,
    token::Token,
};
use crate::{
    config::environment::Environment,
    net::{Answer, Ask, NetError, Trust, shown},
};

use super::super::Place;

/// Where the hub is, unless `HF_ENDPOINT` says otherwise.
const ENDPOINT: &str = "https://huggingface.co";

/// Longest description accepted: repositories have thousands of files, each with some 300 bytes.
const LIMIT_BYTES: u64 = 32 * 1024 * 1024;

/// Longest text of the hub's that is shown.
const SAID: usize = 300;

/// The hub, or a mirror of it.
#[derive(Debug, Clone)]
pub(super) struct Hub {
    endpoint: Url,
    pub(super) token: Option<Token>,
}

impl Hub {
    /// The hub of this environment.
    pub(super) fn new(endpoint: Url, token: Option<Token>) -> Self {
        Self { endpoint, token }
    }

    /// Asks what a repository is at a revision.
    pub(super) async fn describe(
        &self,
        place: &Place<'_>,
        repository: &str,
        revision: &str,
    ) -> Result<Repository, HubError> {
        let mut url = self.api(repository, &["revision", revision]);
        url.set_query(Some("blobs=true"));
        let answer = self.ask(place, &url).await?;
        if answer.status != 200 {
            return Err(self.refusal(repository, revision, &answer));
        }
        let bad = |reason: String| HubError::BadAnswer {
            url: shown(&url),
            reason,
        };
        let described = parse(&answer.body).map_err(bad)?;
        if is_commit(revision) && described.commit != revision {
            return Err(bad(format!("it is about commit {}", described.commit)));
        }
        Ok(described)
    }

    /// Whether files of a gated repository would be given out, before any is asked for. A mirror may
    /// not know the question, which is no refusal.
    pub(super) async fn check_access(
        &self,
        place: &Place<'_>,
        repository: &str,
    ) -> Result<(), HubError> {
        let url = self.api(repository, &["auth-check"]);
        let answer = self.ask(place, &url).await?;
        match answer.status {
            401 | 403 => Err(self.refusal(repository, "", &answer)),
            _ => Ok(()),
        }
    }

    /// Where a file is.
    pub(super) fn file(&self, repository: &str, commit: &str, path: &str) -> Url {
        let parts = repository.split('/').chain(["resolve", commit]);
        self.below(parts.chain(path.split('/')))
    }

    /// The page of a repository, for people.
    pub(super) fn page(&self, repository: &str) -> String {
        shown(&self.below(repository.split('/')))
    }

    fn api(&self, repository: &str, last: &[&str]) -> Url {
        let parts = ["api", "models"].into_iter().chain(repository.split('/'));
        self.below(parts.chain(last.iter().copied()))
    }

    /// Each part is one segment, whatever it holds.
    fn below<'a>(&self, parts: impl Iterator<Item = &'a str>) -> Url {
        let mut url = self.endpoint.clone();
        url.path_segments_mut()
            .expect("http URLs have a path")
            .pop_if_empty()
            .extend(parts);
        url
    }

    async fn ask(&self, place: &Place<'_>, url: &Url) -> Result<Answer, HubError> {
        let ask = Ask {
            url,
            named_by: None,
            headers: &Token::headers(self.token.as_ref()),
            // What it says decides what is expected: nothing else vouches for it.
            trust: Trust::Transport,
            limit_bytes: LIMIT_BYTES,
        };
        let answered = place.net.ask(&ask, place.cancel).await;
        answered.map_err(|source| HubError::Net {
            source: Box::new(source),
        })
    }

    /// What an answer other than 200 means. The hub says 401 of what is missing or private to those
    /// who are not logged in, and says which it is in `X-Error-Code`.
    fn refusal(&self, repository: &str, revision: &str, answer: &Answer) -> HubError {
        let header = |name: &str| {
            let value = answer
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok());
            value.unwrap_or_default()
        };
        let (code, said) = (header("x-error-code"), header("x-error-message"));
        let page = self.page(repository);
        let repository = repository.to_owned();
        let origin = self.token.as_ref().map(|token| token.origin.clone());
        match (answer.status, code, origin) {
            (_, "RevisionNotFound", _) => HubError::NoRevision {
                repository,
                revision: revision.to_owned(),
                page,
            },
            (_, "GatedRepo", token) => HubError::Gated {
                repository,
                page,
                token,
            },
            (_, "RepoNotFound", origin) | (404, _, origin) => HubError::NoRepository {
                repository,
                page,
                signed: origin.is_some(),
            },
            (401, _, Some(origin)) => HubError::TokenRefused { origin },
            (401, _, None) => HubError::NoRepository {
                repository,
                page,
                signed: false,
            },
            (403, ..) if said.contains("is disabled") => HubError::Disabled { repository, page },
            (403, ..) => HubError::Refused {
                repository,
                said: said
                    .chars()
                    .filter(|char| !char.is_control())
                    .take(SAID)
                    .collect(),
            },
            (status, ..) => HubError::Net {
                source: Box::new(NetError::Status {
                    url: page,
                    status,
                    retry_after: None,
                }),
            },
        }
    }
}

/// Where the hub of this environment is.
pub(super) fn endpoint(environment: &Environment) -> Result<Url, HubError> {
    let name = "HF_ENDPOINT";
    let text = environment.get(name).unwrap_or(ENDPOINT);
    let url = Url::parse(text).ok();
    url.filter(|url| url.has_host() && matches!(url.scheme(), "http" | "https"))
        .ok_or(HubError::BadEndpoint { name })
}

#[cfg(test)]
mod tests {
    use super::{super::super::inside::is_inside, *};

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn every_part_of_a_name_is_one_part_of_the_url() {
        let hub = Hub::new(Url::parse("https://mirror.test/hf/").unwrap(), None);
        let url = hub.api("o/n", &["revision", "refs/pr/1"]);
        assert_eq!(
            url.as_str(),
            "https://mirror.test/hf/api/models/o/n/revision/refs%2Fpr%2F1"
        );
        let url = hub.file("o/n", COMMIT, "a b/c?d#e%2F.gguf");
        assert_eq!(
            url.as_str(),
            format!("https://mirror.test/hf/o/n/resolve/{COMMIT}/a%20b/c%3Fd%23e%252F.gguf")
        );
    }

    #[test]
    fn the_endpoint_is_a_url() {
        let environment = Environment::from_pairs([("HF_ENDPOINT", "mirror")]);
        assert!(endpoint(&environment).is_err());
        assert!(endpoint(&Environment::default()).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn every_file_has_a_url_of_its_own_below_the_commit(
            one in "[-a.%/ ?#+~é:@]{1,8}",
            other in "[-a.%/ ?#+~é:@]{1,8}",
        ) {
            let hub = Hub::new(Url::parse("https://mirror.test/hf/").unwrap(), None);
            let mut urls = Vec::new();
            for path in [&one, &other].into_iter().filter(|path| is_inside(path)) {
                let url = hub.file("o/n", COMMIT, path);
                let below = format!("https://mirror.test/hf/o/n/resolve/{COMMIT}/");
                let rest = url.as_str().strip_prefix(&below).expect("it is below the commit");
                proptest::prop_assert_eq!(rest.split('/').count(), path.split('/').count());
                proptest::prop_assert!(url.query().is_none() && url.fragment().is_none());
                urls.push(url);
            }
            if let [first, second] = &urls[..] {
                proptest::prop_assert_eq!(first == second, one == other);
            }
        }
    }
}
