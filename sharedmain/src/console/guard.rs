//! The guard of the console: which requests are answered, and with which headers.
//!
//! The console has no password, so that a page of another site must not read it through the browser of someone who has it
//! open. A site can make its own name resolve to 127.0.0.1 (DNS rebinding), but not an IP address or `localhost`: only
//! these are accepted as `Host`.
use std::net::IpAddr;

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Answers requests that only read and that come from no other site, with headers that keep other sites out.
pub(super) async fn guard(request: Request, next: Next) -> Response {
    let mut response = match refusal(request.method(), request.headers()) {
        Some((status, why)) => (status, format!("{why}\n")).into_response(),
        None => next.run(request).await,
    };
    let headers = HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}

/// The reason to refuse a request, if there is one.
fn refusal(method: &Method, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Some((StatusCode::METHOD_NOT_ALLOWED, "the console only reads: GET"));
    }
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or_default());
    let host = text(header::HOST).unwrap_or_default();
    if !is_local_name(host) {
        return Some((
            StatusCode::FORBIDDEN,
            "the console is reached by an IP address or as localhost, not by another name",
        ));
    }
    let is_own_origin =
        text(header::ORIGIN).is_none_or(|origin| origin.strip_prefix("http://") == Some(host));
    let fetch = |part| text(HeaderName::from_static(part));
    let is_own_site =
        fetch("sec-fetch-site").is_none_or(|site| matches!(site, "same-origin" | "none")) || is_link(fetch);
    (!is_own_origin || !is_own_site).then_some((StatusCode::FORBIDDEN, "the console answers no other site"))
}

/// Returns true if somebody has followed a link: the site with the link cannot read what the new page shows.
fn is_link<'a>(fetch: impl Fn(&'static str) -> Option<&'a str>) -> bool {
    [fetch("sec-fetch-mode"), fetch("sec-fetch-dest")] == [Some("navigate"), Some("document")]
}

/// Returns true for an IP address or `localhost`, with or without a port.
fn is_local_name(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, ""),
    };
    let ip = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_ip = match ip {
        Some(ip) => ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()),
        None => name.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4()),
    };
    port.bytes().all(|byte| byte.is_ascii_digit()) && (is_ip || name.eq_ignore_ascii_case("localhost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reads_by_ip_address_or_localhost_from_no_other_site_are_answered() {
        let status = |method: &Method, headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter();
            let headers =
                headers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            refusal(method, &headers.collect()).map_or(200, |(status, _)| status.as_u16())
        };
        let get = |headers: &[(&'static str, &'static str)]| status(&Method::GET, headers);
        for host in ["localhost", "LOCALHOST:8009", "127.0.0.1:8009", "10.0.0.7", "[::1]:8009", "[::1]"] {
            assert_eq!(get(&[("host", host)]), 200, "{host}");
        }
        for host in [
            "",
            "evil.example.com",
            "evil.example.com:8009",
            "localhost.evil.com",
            "127.0.0.1.evil.com",
            "[::1].evil",
            "127.0.0.1:8009@evil.com",
            "[evil]:1",
            "::1",
            "1",
            "localhost:x",
        ] {
            assert_eq!(get(&[("host", host)]), 403, "{host}");
        }
        assert_eq!(get(&[]), 403);
        let from = |origin| get(&[("host", "localhost:8009"), ("origin", origin)]);
        assert_eq!(from("http://localhost:8009"), 200);
        for origin in
            ["http://evil.example.com", "http://localhost:9000", "https://localhost:8009", "null", ""]
        {
            assert_eq!(from(origin), 403, "{origin}");
        }
        let site = |site| get(&[("host", "localhost"), ("sec-fetch-site", site)]);
        assert_eq!(["same-origin", "none", "same-site", "cross-site"].map(site), [200, 200, 403, 403]);
        for (mode, dest, expected) in [
            ("navigate", "document", 200),
            ("navigate", "iframe", 403),
            ("no-cors", "image", 403),
            ("cors", "empty", 403),
        ] {
            let headers =
                [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
            assert_eq!(get(&[&[("host", "localhost")][..], &headers].concat()), expected, "{mode} {dest}");
        }
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            assert_eq!(status(&method, &[("host", "localhost")]), 405);
        }
    }
}
