//! What `Content-Range` says (RFC 9110, 14.4).

use reqwest::{Response, header::CONTENT_RANGE};

/// Start and total of `Content-Range: bytes START-END/TOTAL` (RFC 9110, 14.4).
pub(super) fn content_range(response: &Response) -> Option<(u64, Option<u64>)> {
    parse_content_range(response.headers().get(CONTENT_RANGE)?.to_str().ok()?)
}

fn parse_content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.parse().ok()?, total.parse().ok()))
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
        assert_eq!(parse_content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(parse_content_range("bytes 5-9/*"), Some((5, None)));
        for bad in ["bytes */10", "5-9/10", "bytes x-9/10", ""] {
            assert_eq!(parse_content_range(bad), None, "{bad}");
        }
    }
}
