//! URLs as Go's `net/url` parses and formats them, as in Knative's objects.
//!
//! The `url` crate follows browsers instead. It refuses relative references, lower-cases hosts and adds slashes, so the
//! addresses of other controllers would be changed by a round trip.

mod escape;

use std::{borrow::Cow, fmt, net::Ipv6Addr, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use self::escape::{Part, decode, encode, is_plain, normalise, reencode};

/// An absolute or relative URL. The default is the empty URL, an empty string in JSON.
///
/// ```
/// use reknit_knative::Url;
///
/// let base: Url = "http://web.default.svc.cluster.local/api/".parse()?;
/// assert_eq!((base.scheme(), &*base.path()), ("http", "/api/"));
/// assert_eq!(base.resolve(&"../health?full=1".parse()?).to_string(),
///            "http://web.default.svc.cluster.local/health?full=1");
/// assert_eq!(Url::http("web"), "http://web".parse()?);
/// # Ok::<_, reknit_knative::UrlError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Url {
    scheme: String,
    /// The part after the scheme of a URL without slashes, such as `mailto:a@b`.
    opaque: String,
    // The following fields are percent-encoded.
    user: Option<String>,
    host: String,
    path: String,
    /// True for `scheme:/path`, which lacks the two slashes before a host.
    omit_host: bool,
    /// True if a `?` is written although the query is empty.
    force_query: bool,
    query: String,
    fragment: String,
}

/// The error of parsing a malformed URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parse {text:?}: {reason}")]
pub struct UrlError {
    text: String,
    reason: &'static str,
}

impl Url {
    /// Creates an `http` URL of this host and optional port.
    pub fn http(host: impl Into<String>) -> Self {
        Self::with_host("http", host)
    }

    /// Creates an `https` URL of this host and optional port.
    pub fn https(host: impl Into<String>) -> Self {
        Self::with_host("https", host)
    }

    fn with_host(scheme: &str, host: impl Into<String>) -> Self {
        let host = host.into();
        let host = if is_plain(&host) { host } else { encode(host.as_bytes(), Part::Host) };
        Self { scheme: scheme.into(), host, ..Self::default() }
    }

    /// Parses a URL. Returns `None` for an empty text.
    ///
    /// # Errors
    ///
    /// A control character is an error, and so is a malformed escape, host, port or scheme.
    pub fn parse(text: &str) -> Result<Option<Self>, UrlError> {
        if text.is_empty() {
            return Ok(None);
        }
        parse(text).map(Some).map_err(|reason| UrlError { text: redact_user(text).into_owned(), reason })
    }

    /// Returns true if it is the empty URL.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The scheme in lower case; may be empty.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The decoded host with its port, if it has one; may be empty.
    pub fn host(&self) -> Cow<'_, str> {
        decode(&self.host)
    }

    /// The decoded path; may be empty.
    pub fn path(&self) -> Cow<'_, str> {
        decode(&self.path)
    }

    /// The encoded query, without the question mark.
    pub fn query(&self) -> &str {
        &self.query
    }

    /// The decoded fragment, without the number sign.
    pub fn fragment(&self) -> Cow<'_, str> {
        decode(&self.fragment)
    }

    /// Returns true if it has a scheme.
    pub fn is_absolute(&self) -> bool {
        !self.scheme.is_empty()
    }

    /// Resolves a reference relative to this URL (RFC 3986, section 5.2).
    pub fn resolve(&self, reference: &Self) -> Self {
        let mut url = reference.clone();
        if reference.scheme.is_empty() {
            url.scheme.clone_from(&self.scheme);
        }
        if !reference.scheme.is_empty() || reference.has_authority() {
            url.path = resolve_path(&reference.path, "");
            return url;
        }
        let inherits_query =
            reference.path.is_empty() && !reference.force_query && reference.query.is_empty();
        if inherits_query {
            url.query.clone_from(&self.query);
            if reference.fragment.is_empty() {
                url.fragment.clone_from(&self.fragment);
            }
        }
        if reference.path.is_empty() && !self.opaque.is_empty() {
            url.opaque.clone_from(&self.opaque);
            return url;
        }
        url.host.clone_from(&self.host);
        url.user.clone_from(&self.user);
        url.path = resolve_path(&self.path, &reference.path);
        url
    }

    pub(crate) fn has_authority(&self) -> bool {
        !self.host.is_empty() || self.user.is_some()
    }

    fn write_authority(&self, to: &mut impl fmt::Write, user: Option<&str>) -> fmt::Result {
        let has_slashes =
            self.has_authority() || (self.is_absolute() && !self.omit_host && !self.path.is_empty());
        if has_slashes {
            to.write_str("//")?;
        }
        if let Some(user) = user {
            write!(to, "{user}@")?;
        }
        to.write_str(&self.host)
    }

    fn write_path(&self, to: &mut impl fmt::Write) -> fmt::Result {
        let needs_slash = !self.path.starts_with('/') && !self.path.is_empty() && !self.host.is_empty();
        let looks_like_scheme = !self.is_absolute()
            && !self.has_authority()
            && self.path.split('/').next().is_some_and(|segment| segment.contains(':'));
        if needs_slash {
            to.write_str("/")?;
        } else if looks_like_scheme {
            to.write_str("./")?;
        }
        to.write_str(&self.path)
    }

    fn write(&self, to: &mut impl fmt::Write, user: Option<&str>) -> fmt::Result {
        if self.is_absolute() {
            write!(to, "{}:", self.scheme)?;
        }
        if self.opaque.is_empty() {
            self.write_authority(to, user)?;
            self.write_path(to)?;
        } else {
            to.write_str(&self.opaque)?;
        }
        if self.force_query || !self.query.is_empty() {
            write!(to, "?{}", self.query)?;
        }
        if !self.fragment.is_empty() {
            write!(to, "#{}", self.fragment)?;
        }
        Ok(())
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, self.user.as_deref())
    }
}

/// Masks the password, since debug output is logged.
impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_deref().map(|user| match user.split_once(':') {
            Some((name, _)) => Cow::Owned(format!("{name}:xxxxx")),
            None => Cow::Borrowed(user),
        });
        self.write(f, user.as_deref())
    }
}

/// Parses an empty text as the empty URL.
impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        Ok(Self::parse(text)?.unwrap_or_default())
    }
}

impl Serialize for Url {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Url {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// A plain string, since the API server's `uri` format refuses relative references.
impl JsonSchema for Url {
    fn schema_name() -> Cow<'static, str> {
        "Url".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// A parsed part, or the reason for the error.
type ParseResult<T> = Result<T, &'static str>;

fn parse(text: &str) -> ParseResult<Url> {
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err("invalid control character in URL");
    }
    let (scheme, rest) = split_scheme(text)?;
    let fragment = normalise(fragment, Part::Fragment)?;
    let mut url = Url { scheme: scheme.to_ascii_lowercase(), fragment, ..Url::default() };
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    url.force_query = query == Some("");
    url.query = query.unwrap_or_default().into();
    if !rest.starts_with('/') {
        if url.is_absolute() {
            url.opaque = rest.into();
            return Ok(url);
        }
        if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
            return Err("first path segment in URL cannot contain colon");
        }
    }
    let mut path = rest;
    let has_authority = rest.starts_with("//") && (url.is_absolute() || !rest.starts_with("///"));
    if has_authority {
        let authority = &rest[2..];
        let (authority, rest) = authority.split_at(authority.find('/').unwrap_or(authority.len()));
        (url.user, url.host) = parse_authority(&url.scheme, authority)?;
        path = rest;
    } else {
        url.omit_host = url.is_absolute();
    }
    url.path = normalise(path, Part::Path)?;
    Ok(url)
}

/// Replaces the user and password in the text, for error messages.
fn redact_user(text: &str) -> Cow<'_, str> {
    match (text.find("//"), text.rfind('@')) {
        (Some(slashes), Some(at)) if slashes < at => {
            format!("{}//xxxxx{}", &text[..slashes], &text[at..]).into()
        }
        _ => text.into(),
    }
}

fn split_scheme(text: &str) -> ParseResult<(&str, &str)> {
    let is_scheme_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let (scheme, rest) = text.split_at(text.find(|c| !is_scheme_char(c)).unwrap_or(text.len()));
    match rest.strip_prefix(':') {
        Some(_) if scheme.is_empty() => Err("missing protocol scheme"),
        Some(rest) if scheme.starts_with(|c: char| c.is_ascii_alphabetic()) => Ok((scheme, rest)),
        _ => Ok(("", text)),
    }
}

fn parse_authority(scheme: &str, text: &str) -> ParseResult<(Option<String>, String)> {
    let Some((user, host)) = text.rsplit_once('@') else { return Ok((None, parse_host(scheme, text)?)) };
    let is_user_char = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if !user.chars().all(is_user_char) {
        return Err("invalid userinfo");
    }
    let user = match user.split_once(':') {
        Some((name, password)) => {
            format!("{}:{}", reencode(name, Part::User)?, reencode(password, Part::User)?)
        }
        None => reencode(user, Part::User)?,
    };
    Ok((Some(user), parse_host(scheme, host)?))
}

fn parse_host(scheme: &str, host: &str) -> ParseResult<String> {
    match host.rfind('[') {
        Some(0) => return parse_ip_literal(&host[1..]),
        Some(_) => return Err("invalid IP-literal"),
        None => {}
    }
    // Other schemes may list several hosts with ports, as some databases do: there the last colon counts.
    let is_http = matches!(scheme, "http" | "https");
    let colon = if is_http { host.find(':') } else { host.rfind(':') };
    check_port(colon.map_or("", |colon| &host[colon..]))?;
    reencode(host, Part::Host)
}

/// Parses an IPv6 address after its opening bracket, with an optional zone and port.
fn parse_ip_literal(text: &str) -> ParseResult<String> {
    let (literal, port) = text.rsplit_once(']').ok_or("missing ']' in host")?;
    check_port(port)?;
    let (address, zone) =
        literal.split_once("%25").map_or((literal, None), |(address, zone)| (address, Some(zone)));
    let address = escape::unescape(address, Part::Host)?;
    let address = String::from_utf8_lossy(&address);
    address.parse::<Ipv6Addr>().map_err(|_| "invalid IP-literal")?;
    let zone = match zone.map(|zone| escape::unescape(zone, Part::Zone)).transpose()? {
        None => String::new(),
        Some(zone) if zone.is_empty() => return Err("invalid IP-literal"),
        Some(zone) => format!("%25{}", encode(&zone, Part::Host)),
    };
    Ok(format!("[{address}{zone}]{port}"))
}

fn check_port(port: &str) -> ParseResult<()> {
    let digits = port.strip_prefix(':').unwrap_or("");
    let is_valid =
        port.is_empty() || port.starts_with(':') && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_valid { Ok(()) } else { Err("invalid port after host") }
}

/// Joins the paths and removes `.` and `..`. A result that is not empty starts with a slash.
///
/// As in Go, and unlike in the RFC, `/a/..//b` becomes `/b`: an empty segment adds no slash if `..` has just removed
/// the only folder.
fn resolve_path(base: &str, reference: &str) -> String {
    let full = match reference {
        "" => base.to_owned(),
        _ if reference.starts_with('/') => reference.to_owned(),
        _ => format!("{}{reference}", &base[..base.rfind('/').map_or(0, |slash| slash + 1)]),
    };
    if full.is_empty() {
        return full;
    }
    let (mut path, mut needs_slash, mut last) = (String::new(), false, "");
    for segment in full.split('/') {
        last = segment;
        match segment {
            "." => needs_slash = true,
            ".." => {
                path.truncate(path.rfind('/').unwrap_or(0));
                needs_slash = !path.is_empty();
            }
            _ => {
                if needs_slash {
                    path.push('/');
                }
                path.push_str(segment);
                needs_slash = true;
            }
        }
    }
    if matches!(last, "." | "..") {
        path.push('/');
    }
    if path.starts_with('/') { path } else { format!("/{path}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_shows_a_password_and_debug_masks_it() {
        let url: Url = "http://me:secret@host/path".parse().unwrap();
        assert_eq!(url.to_string(), "http://me:secret@host/path");
        assert_eq!(format!("{url:?}"), "http://me:xxxxx@host/path");
    }

    #[test]
    fn an_empty_text_parses_to_none_and_deserializes_to_the_empty_url() {
        assert_eq!(Url::parse(""), Ok(None));
        assert!("".parse::<Url>().unwrap().is_empty());
        assert_eq!(serde_json::from_str::<Url>("\"\"").unwrap(), Url::default());
    }

    #[test]
    fn a_host_in_brackets_is_an_ipv6_address() {
        for (text, host) in [("http://[::1]:80", "[::1]:80"), ("http://[fe80::1%25en0]/x", "[fe80::1%en0]")] {
            let url: Url = text.parse().unwrap();
            assert_eq!((&*url.host(), url.to_string()), (host, text.to_owned()));
        }
        for text in ["http://[::1", "http://a[::1]", "http://[1.2.3.4]", "http://[::1%25]", "http://[::1]x"] {
            assert!(text.parse::<Url>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_error_shows_the_reason_and_the_text_without_its_password() {
        let error = "http://host:port".parse::<Url>().unwrap_err();
        assert_eq!(error.to_string(), r#"parse "http://host:port": invalid port after host"#);
        let error = "http://me:secret@host:port".parse::<Url>().unwrap_err();
        assert_eq!(error.to_string(), r#"parse "http://xxxxx@host:port": invalid port after host"#);
    }
}
