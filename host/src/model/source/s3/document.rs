//! Answers of S3: lists of objects, errors, and temporary keys. XML without a document type.

use roxmltree::{Document, Node};

/// A page of a list of objects.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// Keys and sizes.
    pub(super) objects: Vec<(String, u64)>,
    /// What to ask for next; `None`: this was the last page.
    pub(super) next: Option<String>,
}

/// A refusal.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Refused {
    /// For example `NoSuchKey`.
    pub(super) code: String,
    /// Words; short, without control characters.
    pub(super) message: String,
    /// The region to ask instead.
    pub(super) region: Option<String>,
    /// The server's time, where the clocks differ.
    pub(super) server_time: Option<String>,
}

/// Reads a page that was asked for with `encoding-type=url`.
pub(super) fn read_page(text: &[u8]) -> Result<Page, String> {
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    let document = Document::parse(text).map_err(|error| error.to_string())?;
    let root = document.root_element();
    if root.tag_name().name() != "ListBucketResult" {
        return Err(format!("it is a `{}`", root.tag_name().name()));
    }
    let encoded = child(root, "EncodingType") == Some("url");
    let mut page = Page::default();
    for object in root
        .children()
        .filter(|node| node.has_tag_name_of("Contents"))
    {
        let key = child(object, "Key").ok_or("an object has no key")?;
        let size = child(object, "Size").and_then(|size| size.parse().ok());
        let size = size.ok_or_else(|| format!("`{key}` has no size"))?;
        page.objects.push((decode(key, encoded)?, size));
    }
    if child(root, "IsTruncated") == Some("true") {
        let next = child(root, "NextContinuationToken").ok_or("it does not say how it goes on")?;
        page.next = Some(next.to_owned());
    }
    Ok(page)
}

/// Reads a refusal; what is none, or no XML, says nothing.
pub(super) fn read_refused(text: &[u8]) -> Refused {
    const LONGEST: usize = 200;
    let text = String::from_utf8_lossy(text);
    let Ok(document) = Document::parse(&text) else {
        return Refused::default();
    };
    // Inside another element where it is STS's.
    let mut all = document.descendants();
    let Some(error) = all.find(|node| node.has_tag_name_of("Error")) else {
        return Refused::default();
    };
    let get = |name| child(error, name).unwrap_or_default();
    let plain = |text: &str| -> String {
        let visible = text.chars().filter(|character| !character.is_control());
        visible.take(LONGEST).collect()
    };
    Refused {
        code: plain(get("Code")),
        message: plain(get("Message")),
        region: child(error, "Region").map(str::to_owned),
        server_time: child(error, "ServerTime").map(plain),
    }
}

/// The text of the first element of a name, wherever it lies.
pub(super) fn find(text: &[u8], name: &str) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    let document = Document::parse(text).ok()?;
    let mut all = document.descendants();
    let node = all.find(|node| node.has_tag_name_of(name))?;
    node.text().map(str::to_owned)
}

/// Names without their namespace, which servers leave out or write differently.
trait NamedOf {
    fn has_tag_name_of(&self, name: &str) -> bool;
}

impl NamedOf for Node<'_, '_> {
    fn has_tag_name_of(&self, name: &str) -> bool {
        self.is_element() && self.tag_name().name() == name
    }
}

fn child<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    let mut all = node.children();
    all.find(|child| child.has_tag_name_of(name))?.text()
}

/// A key as it is; in lists it is encoded as in a form, a blank as `+`.
fn decode(key: &str, encoded: bool) -> Result<String, String> {
    if !encoded {
        return Ok(key.to_owned());
    }
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next(), rest.next()].map(Option::unwrap_or_default);
                let digits = std::str::from_utf8(&digits).unwrap_or_default();
                u8::from_str_radix(digits, 16).map_err(|_| format!("`{key}` is no key"))?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| format!("`{key}` is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_with_its_names_decoded() {
        let text = br#"<?xml version="1.0" encoding="UTF-8"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
            <EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
            <NextContinuationToken>to/ken&amp;=</NextContinuationToken>
            <Contents><Key>m/a+b%2Bc.gguf</Key><Size>5</Size><ETag>&quot;x&quot;</ETag></Contents>
            <Contents><Key>m/%C3%A9</Key><Size>0</Size></Contents>
            </ListBucketResult>"#;
        let page = read_page(text).unwrap();
        assert_eq!(page.objects[0], ("m/a b+c.gguf".to_owned(), 5));
        assert_eq!(page.objects[1].0, "m/\u{e9}");
        assert_eq!(page.next.as_deref(), Some("to/ken&="));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in [
            "",
            "<Error/>",
            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
            "<!DOCTYPE a [<!ENTITY b 'c'>]><ListBucketResult>&b;</ListBucketResult>",
        ] {
            assert!(read_page(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(decode("%", true).is_err() && decode("%ff", true).is_err());
    }

    #[test]
    fn refusals_are_read_wherever_they_stand() {
        let text = b"<ErrorResponse><Error><Code>ExpiredToken</Code>\
                     <Message>The\nprovided token</Message></Error></ErrorResponse>";
        let refused = read_refused(text);
        assert_eq!(refused.code, "ExpiredToken");
        assert_eq!(refused.message, "Theprovided token");
        assert_eq!(read_refused(b"<html>"), Refused::default());
    }

    proptest::proptest! {
        #[test]
        fn no_answer_brings_it_down(text in ".{0,200}") {
            let _ = read_page(text.as_bytes());
            let _ = read_refused(text.as_bytes());
            let _ = decode(&text, true);
        }
    }
}
