//! The Python package index: where a source distribution lies.
//!
//! Reads the simple API, as JSON (PEP 691) or as HTML (PEP 503). Nothing is executed: an index is a
//! list of files and their digests.

use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Net, NetError, client::Trust, page::Page, shown};

/// A project's page is a list of all its files; the largest have tens of thousands.
const PAGE_LIMIT_BYTES: u64 = 64 << 20;

const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, \
                      application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1";

/// A file of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexFile {
    /// Where it lies.
    pub url: Url,
    /// SHA-256 that the index claims, 64 hexadecimal digits.
    pub sha256: Option<String>,
}

#[derive(Deserialize)]
struct Project {
    files: Vec<ProjectFile>,
}

#[derive(Deserialize)]
struct ProjectFile {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: std::collections::BTreeMap<String, String>,
}

/// Finds the source distribution (`.tar.gz`) of an exact version.
///
/// The index may be read over plain http: the caller compares the file with a digest of its own, so
/// that all a forged page could do is fail. Files on the index's own host get its credentials, as
/// pip does it.
pub async fn find_sdist(
    net: &Net,
    index: &Url,
    project: &str,
    version: &str,
    cancel: &CancellationToken,
) -> Result<IndexFile, NetError> {
    let bad = || NetError::BadUrl { url: shown(index) };
    let mut page = index.clone();
    page.path_segments_mut()
        .map_err(|()| bad())?
        .pop_if_empty()
        .push(&normalized(project))
        .push("");
    let page = net
        .page(&page, ACCEPT, PAGE_LIMIT_BYTES, Trust::Digest, cancel)
        .await?;
    let wanted = format!("{}-{version}.tar.gz", normalized(project));
    files(&page)?
        .into_iter()
        .find(|(name, _)| normalized_file(name) == wanted)
        .map(|(_, file)| file)
        .ok_or_else(|| NetError::NotInIndex {
            index: shown(index),
            project: project.to_owned(),
            version: version.to_owned(),
        })
}

/// A project's name in the one form that pages use (PEP 503).
fn normalized(project: &str) -> String {
    let mut name = String::with_capacity(project.len());
    for character in project.chars() {
        match character {
            '-' | '_' | '.' if name.ends_with('-') => {}
            '-' | '_' | '.' => name.push('-'),
            other => name.extend(other.to_lowercase()),
        }
    }
    name
}

/// `Llama_Cpp_Python-0.3.1.tar.gz` as `llama-cpp-python-0.3.1.tar.gz`.
fn normalized_file(name: &str) -> String {
    match name.rsplit_once('-') {
        Some((project, rest)) => format!("{}-{rest}", normalized(project)),
        None => name.to_owned(),
    }
}

fn files(page: &Page) -> Result<Vec<(String, IndexFile)>, NetError> {
    if page.content_type.contains("json") {
        json_files(page)
    } else {
        Ok(html_files(page))
    }
}

/// Where a link of a page leads, with the page's credentials where it stays on its host.
fn link(page: &Page, target: &str) -> Option<Url> {
    let mut url = page.url.join(target).ok()?;
    if url.origin() == page.url.origin() && url.username().is_empty() && url.password().is_none() {
        // Both have a host, and can have these.
        let _ = url.set_username(page.url.username());
        let _ = url.set_password(page.url.password());
    }
    Some(url)
}

fn json_files(page: &Page) -> Result<Vec<(String, IndexFile)>, NetError> {
    let project: Project = serde_json::from_str(&page.text).map_err(|error| NetError::BadPage {
        url: shown(&page.url),
        reason: error.to_string(),
    })?;
    let file = |file: ProjectFile| {
        let sha256 = file.hashes.get("sha256").cloned();
        let url = link(page, &file.url)?;
        Some((file.filename, IndexFile { url, sha256 }))
    };
    Ok(project.files.into_iter().filter_map(file).collect())
}

fn html_files(page: &Page) -> Vec<(String, IndexFile)> {
    static LINK: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"(?is)<a\s[^>]*?href\s*=\s*["']([^"']+)["']"#)
            .expect("the pattern is a constant")
    });
    let file = |captures: regex::Captures<'_>| {
        let mut url = link(page, &captures[1].replace("&amp;", "&"))?;
        let sha256 = url
            .fragment()
            .and_then(|fragment| fragment.strip_prefix("sha256="))
            .map(str::to_owned);
        url.set_fragment(None);
        let name = url.path_segments()?.next_back()?.to_owned();
        Some((name, IndexFile { url, sha256 }))
    };
    LINK.captures_iter(&page.text).filter_map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(content_type: &str, text: &str) -> Page {
        Page {
            url: Url::parse("https://index.test/simple/a-b/").unwrap(),
            content_type: content_type.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn names_are_compared_in_their_normal_form() {
        assert_eq!(normalized("Llama_cpp.-python"), "llama-cpp-python");
        assert_eq!(normalized_file("a_b-1.0.tar.gz"), "a-b-1.0.tar.gz");
    }

    #[test]
    fn both_kinds_of_pages_are_read() {
        let json = page(
            "application/vnd.pypi.simple.v1+json",
            r#"{"files":[{"filename":"a_b-1.tar.gz","url":"../../f/a_b-1.tar.gz","hashes":{"sha256":"00"}}],"meta":{}}"#,
        );
        let html = page(
            "text/html; charset=utf-8",
            "<html><a rel=x\n href=\"../../f/a_b-1.tar.gz#sha256=00\" data-x='&gt;'>a_b-1.tar.gz</a>",
        );
        for page in [json, html] {
            let files = files(&page).unwrap();
            assert_eq!(files.len(), 1);
            assert_eq!(files[0].0, "a_b-1.tar.gz");
            assert_eq!(files[0].1.url.as_str(), "https://index.test/f/a_b-1.tar.gz");
            assert_eq!(files[0].1.sha256.as_deref(), Some("00"));
        }
    }
}
