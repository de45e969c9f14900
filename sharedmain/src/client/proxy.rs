//! The proxy to the API server: `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` as Go reads them.
use std::net::IpAddr;

use http::{Uri, uri::Authority};
use ipnet::IpNet;
use percent_encoding::percent_decode_str;
use reknit_injection::internal::variable;

use crate::process::failure::Failure;

/// The proxy settings of the environment. Names of variables may be in upper or lower case, as in curl.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProxySettings {
    https: Option<String>,
    http: Option<String>,
    no_proxy: String,
}

impl ProxySettings {
    pub(crate) fn from_env() -> Self {
        let read = |upper: &str| variable(upper).or_else(|| variable(&upper.to_lowercase()));
        Self {
            https: read("HTTPS_PROXY"),
            http: read("HTTP_PROXY"),
            no_proxy: read("NO_PROXY").unwrap_or_default(),
        }
    }

    /// Returns the proxy for this URL. Returns `None` if no proxy is set, if NO_PROXY excludes the host, or if the host
    /// is a loopback address.
    pub(crate) fn for_url(&self, url: &Uri) -> Result<Option<Uri>, Failure> {
        let proxy = if url.scheme_str() == Some("http") { &self.http } else { &self.https };
        let (Some(proxy), Some(host)) = (proxy, url.host()) else { return Ok(None) };
        let host = host.trim_matches(['[', ']']);
        if is_loopback_host(host)
            || self.no_proxy.split(',').any(|entry| excludes(entry.trim(), host, port(url)))
        {
            return Ok(None);
        }
        let with_scheme = if proxy.contains("://") { proxy.clone() } else { format!("http://{proxy}") };
        // The error does not show the value, which may contain a password.
        with_scheme.parse().map(Some).map_err(|e| {
            Failure::new(format!("HTTPS_PROXY or HTTP_PROXY in the environment is not a URL: {e}"))
        })
    }
}

/// Checks the scheme of the proxy's URL, and adds the default port of SOCKS. kube's own error would show the password.
pub(super) fn checked(proxy: Uri) -> Result<Uri, String> {
    match (proxy.scheme_str(), proxy.authority()) {
        (Some("http" | "https"), _) => Ok(proxy),
        (Some("socks5" | "socks5h"), Some(authority)) if proxy.port().is_none() => {
            format!("socks5://{authority}:1080").parse().map_err(|_| unsupported(&proxy))
        }
        (Some("socks5" | "socks5h"), _) => Ok(proxy),
        _ => Err(unsupported(&proxy)),
    }
}

fn unsupported(proxy: &Uri) -> String {
    format!(
        "unsupported proxy {}: the scheme must be http, https, socks5 or socks5h; it is set by HTTPS_PROXY or HTTP_PROXY \
         in the environment, or by proxy-url in the kubeconfig",
        without_user(proxy)
    )
}

/// Returns the user and the password in the proxy's URL, percent-decoded.
pub(super) fn credentials(proxy: &Uri) -> Option<(String, String)> {
    let (user_info, _) = proxy.authority()?.as_str().rsplit_once('@')?;
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let decode = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
    Some((decode(user), decode(password)))
}

/// Returns the URL of the proxy without user and password.
fn without_user(proxy: &Uri) -> String {
    let scheme = proxy.scheme_str().map(|scheme| format!("{scheme}://")).unwrap_or_default();
    let port = proxy.authority().and_then(Authority::port).map(|port| format!(":{port}")).unwrap_or_default();
    format!("{scheme}{}{port}", proxy.host().unwrap_or_default())
}

fn port(url: &Uri) -> u16 {
    url.port_u16().unwrap_or(if url.scheme_str() == Some("http") { 80 } else { 443 })
}

fn is_loopback_host(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns whether an entry of NO_PROXY matches: `*`, an IP address, a CIDR range, or a domain, where a leading `.`
/// means subdomains only. Every entry except a range may end with a port.
fn excludes(entry: &str, host: &str, port: u16) -> bool {
    if let (Ok(range), Ok(ip)) = (entry.parse::<IpNet>(), host.parse::<IpAddr>()) {
        return range.contains(&ip);
    }
    let (name, entry_port) = match entry.rsplit_once(':') {
        Some((name, number)) if !name.contains(':') || name.ends_with(']') => {
            (name, number.parse::<u16>().ok())
        }
        _ => (entry, None),
    };
    if entry_port.is_some_and(|entry_port| entry_port != port) {
        return false;
    }
    matches_name(&name.trim_matches(['[', ']']).to_ascii_lowercase(), &host.to_ascii_lowercase())
}

fn matches_name(name: &str, host: &str) -> bool {
    let only_subdomains_of = name.strip_prefix("*.").or_else(|| name.strip_prefix('.'));
    let is_subdomain = |domain| host.strip_suffix(domain).is_some_and(|rest: &str| rest.ends_with('.'));
    match only_subdomains_of {
        Some(domain) => is_subdomain(domain),
        None => name == "*" || host == name || !name.is_empty() && is_subdomain(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_proxied(no_proxy: &str, url: &str) -> bool {
        let proxy = ProxySettings {
            https: Some("proxy.example.com:3128".into()),
            http: None,
            no_proxy: no_proxy.into(),
        };
        proxy.for_url(&url.parse().unwrap()).unwrap().is_some()
    }

    #[test]
    fn a_proxy_without_a_scheme_is_an_http_proxy() {
        let proxy =
            ProxySettings { https: Some("proxy.example.com:3128".into()), ..ProxySettings::default() };
        let found = proxy.for_url(&Uri::from_static("https://api.example.com:6443")).unwrap().unwrap();
        assert_eq!((found.scheme_str(), found.port_u16()), (Some("http"), Some(3128)));
        assert_eq!(proxy.for_url(&Uri::from_static("http://api.example.com:8080")).unwrap(), None);
    }

    #[test]
    fn loopback_addresses_are_reached_directly() {
        assert!(!is_proxied("", "https://localhost:6443"));
        assert!(!is_proxied("", "https://127.0.0.1:6443"));
        assert!(!is_proxied("", "https://[::1]:6443"));
        assert!(is_proxied("", "https://10.0.0.1:6443"));
    }

    #[test]
    fn no_proxy_matches_names_domains_addresses_ranges_and_ports() {
        for (no_proxy, url, proxied) in [
            ("*", "https://api.example.com", false),
            ("example.com", "https://api.example.com", false),
            ("example.com", "https://example.com", false),
            ("example.com", "https://notexample.com", true),
            (".example.com", "https://api.example.com", false),
            (".example.com", "https://example.com", true),
            ("*.example.com", "https://API.example.com", false),
            ("example.com:6443", "https://example.com:6443", false),
            ("example.com:6443", "https://example.com", true),
            ("a, 10.96.0.1", "https://10.96.0.1", false),
            ("10.0.0.0/8", "https://10.96.0.1", false),
            ("10.0.0.0/8", "https://11.96.0.1", true),
            ("0.0.0.0/0", "https://11.96.0.1", false),
            ("10.0.0.0/33", "https://10.96.0.1", true),
            ("fd00::/8", "https://[fd00::1]:6443", false),
            ("fd00::1", "https://[fd00::1]:6443", false),
            ("", "https://api.example.com", true),
        ] {
            assert_eq!(is_proxied(no_proxy, url), proxied, "NO_PROXY={no_proxy} {url}");
        }
    }

    #[test]
    fn the_error_of_an_unsupported_proxy_does_not_show_its_password() {
        for (proxy, shown) in
            [("socks4://user:hunter2@proxy:1080", "socks4://proxy:1080"), ("proxy:1080", "proxy:1080")]
        {
            let error = checked(proxy.parse().unwrap()).unwrap_err();
            assert!(error.starts_with(&format!("unsupported proxy {shown}: the scheme must be ")), "{error}");
            assert!(!error.contains("hunter2") && !error.contains("user:"), "{error}");
        }
        for proxy in [
            "http://user:hunter2@proxy:3128",
            "https://proxy",
            "socks5://proxy:1080",
            "socks5://user:hunter2@[::1]:1080",
        ] {
            let proxy: Uri = proxy.parse().unwrap();
            assert_eq!(checked(proxy.clone()), Ok(proxy));
        }
    }

    #[test]
    fn the_port_of_a_socks_proxy_is_1080_by_default() {
        for proxy in ["socks5://me:pass@proxy", "socks5h://me:pass@proxy"] {
            let proxy = checked(proxy.parse().unwrap()).unwrap();
            assert_eq!(proxy, "socks5://me:pass@proxy:1080");
        }
    }

    #[test]
    fn a_malformed_proxy_url_is_not_shown() {
        let proxy =
            ProxySettings { https: Some("http://user:hunter2@bad host".into()), ..ProxySettings::default() };
        let failure = proxy.for_url(&Uri::from_static("https://api.example.com")).unwrap_err().to_string();
        assert!(!failure.contains("hunter2"), "{failure}");
    }
}
