//! What `Content-Range` says (RFC 9110, 14.4).

use std::ops::Range;

use reqwest::{Response, header::CONTENT_RANGE};

/// What `Content-Range: bytes FIRST-LAST/TOTAL` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContentRange {
    /// Which bytes follow; at least one.
    pub(super) bytes: Range<u64>,
    /// Size of the whole file, where it is told.
    pub(super) total: Option<u64>,
}

pub(super) fn content_range(response: &Response) -> Option<ContentRange> {
    parse_content_range(response.headers().get(CONTENT_RANGE)?.to_str().ok()?)
}

fn parse_content_range(text: &str) -> Option<ContentRange> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let end = last.checked_add(1)?;
    let total = match total {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    let is_possible = first < end && total.is_none_or(|total| end <= total);
    is_possible.then_some(ContentRange {
        bytes: first..end,
        total,
    })
}

/// Total of `Content-Range: bytes */TOTAL`.
pub(super) fn unsatisfied_total(response: &Response) -> Option<u64> {
    let text = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    text.strip_prefix("bytes */")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_standard_writes_them() {
        let part = |bytes, total| Some(ContentRange { bytes, total });
        assert_eq!(parse_content_range("bytes 5-9/10"), part(5..10, Some(10)));
        assert_eq!(parse_content_range("bytes 5-9/*"), part(5..10, None));
        for bad in [
            "bytes */10",
            "5-9/10",
            "bytes x-9/10",
            "bytes 9-5/10",
            "bytes 5-9/8",
            "bytes 0-18446744073709551615/*",
            "",
        ] {
            assert_eq!(parse_content_range(bad), None, "{bad}");
        }
    }
}
