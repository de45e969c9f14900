//! The endpoint of an OpenTelemetry collector: its URL and protocol.
use std::fmt;

use http::{
    Uri,
    uri::{Authority, PathAndQuery, Scheme},
};

/// The protocols of OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Grpc,
    HttpProtobuf,
}

/// A URL with its protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) protocol: Protocol,
    pub(crate) uri: Uri,
}

impl Endpoint {
    /// Parses a URL such as `http://collector:4317`. Returns `None` if it is malformed. The default scheme is https. A
    /// path in the URL replaces `default_path` for HTTP, and is ignored for gRPC.
    pub(crate) fn parse(protocol: Protocol, text: &str, default_path: &'static str) -> Option<Self> {
        let text = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
        let mut parts = text.parse::<Uri>().ok()?.into_parts();
        let scheme = parts.scheme.as_ref().map(Scheme::as_str);
        let has_valid_port =
            |authority: &Authority| authority.port_u16().is_some() || authority.as_str() == authority.host();
        if !matches!(scheme, Some("http" | "https")) || !parts.authority.as_ref().is_some_and(has_valid_port)
        {
            return None;
        }
        let has_path = parts.path_and_query.as_ref().is_some_and(|path| path.as_str() != "/");
        match protocol {
            Protocol::Grpc => parts.path_and_query = Some(PathAndQuery::from_static("/")),
            Protocol::HttpProtobuf if has_path => {}
            Protocol::HttpProtobuf => parts.path_and_query = Some(PathAndQuery::from_static(default_path)),
        }
        Some(Self { protocol, uri: Uri::from_parts(parts).ok()? })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Protocol::Grpc => {
                let authority = self.uri.authority().map_or("", |authority| authority.as_str());
                write!(f, "{}://{authority}", self.uri.scheme_str().unwrap_or_default())
            }
            Protocol::HttpProtobuf => self.uri.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<String> {
        let endpoint = Endpoint::parse(Protocol::HttpProtobuf, text, "/v1/traces")?;
        Some(endpoint.to_string())
    }

    #[test]
    fn the_default_scheme_is_https_and_the_default_path_is_added() {
        for (text, expected) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("http://collector:4318/", "http://collector:4318/v1/traces"),
            ("http://collector:4318/otlp/v1/x?a=b", "http://collector:4318/otlp/v1/x?a=b"),
            ("collector:4318", "https://collector:4318/v1/traces"),
            ("collector.example.com/v1/mine", "https://collector.example.com/v1/mine"),
            ("https://[::1]:4318", "https://[::1]:4318/v1/traces"),
        ] {
            assert_eq!(parse(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn the_path_is_ignored_for_grpc() {
        for text in ["http://collector:4317", "http://collector:4317/", "http://collector:4317/v1/traces"] {
            let endpoint = Endpoint::parse(Protocol::Grpc, text, "/v1/traces").unwrap();
            assert_eq!((endpoint.uri.path(), &*endpoint.to_string()), ("/", "http://collector:4317"));
        }
    }

    #[test]
    fn malformed_urls_are_refused() {
        for text in ["", "ftp://collector:4318", "http://", "://hello", "a b", "http://collector:port"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
