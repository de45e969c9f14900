//! Names derived from others: of children, resources and hosts.

use std::sync::OnceLock;

use md5::{Digest, Md5};

use crate::environment::{self, variable};

/// The maximum length of a DNS label or of a label's value.
const MAX_LENGTH: usize = 63;
/// The length that remains beside a hexadecimal MD5 hash.
const HEAD_LENGTH: usize = MAX_LENGTH - 32;

/// Returns the name of a child: parent and suffix, or, if they exceed 63 bytes, a shortened name with a hash.
///
/// ```
/// use reknit_apis::child_name;
///
/// assert_eq!(child_name("web", "-deployment"), "web-deployment");
/// let long = child_name(&"a".repeat(63), "-deployment");
/// assert_eq!(long, "aaaaaaaaaaaaaaaaaaaab06521f39153d618550606be297466d5-deployment");
/// ```
pub fn child_name(parent: &str, suffix: &str) -> String {
    if parent.len() + suffix.len() <= MAX_LENGTH {
        return format!("{parent}{suffix}");
    }
    if suffix.len() < HEAD_LENGTH {
        return format!("{}{}{suffix}", truncate(parent, HEAD_LENGTH - suffix.len()), md5_hex(parent));
    }
    let name = format!("{}{}", truncate(parent, HEAD_LENGTH), md5_hex(&format!("{parent}{suffix}")));
    let name = format!("{name}{}", truncate(suffix, MAX_LENGTH - name.len()));
    name.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// Cuts the text to at most `max_bytes`, between characters.
fn truncate(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

fn md5_hex(text: &str) -> String {
    Md5::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Guesses the plural resource name of a Kind: lower case and `s`, or `es` after an `s`.
///
/// Knative guesses the same (`Policy` becomes `policys`). Discovery at the API server returns the actual name.
///
/// ```
/// assert_eq!(reknit_apis::kind_to_resource("AddressableService"), "addressableservices");
/// assert_eq!(reknit_apis::kind_to_resource("Ingress"), "ingresses");
/// ```
pub fn kind_to_resource(kind: &str) -> String {
    let kind = kind.to_lowercase();
    let plural = if kind.ends_with('s') { "es" } else { "s" };
    kind + plural
}

/// Returns the fully qualified host name of a Service in this cluster.
///
/// ```
/// use reknit_apis::{cluster_domain, service_host_name};
///
/// assert_eq!(service_host_name("web", "default"), format!("web.default.svc.{}", cluster_domain()));
/// ```
pub fn service_host_name(service: &str, namespace: &str) -> String {
    format!("{service}.{namespace}.svc.{}", cluster_domain())
}

/// Returns the domain of this cluster's Services, without a trailing dot. It is looked up once per process.
///
/// The domain is the first of these that exists: the environment variable `CLUSTER_DOMAIN`, the part after `svc.` of a
/// search domain in `/etc/resolv.conf`, and `cluster.local`.
pub fn cluster_domain() -> &'static str {
    static DOMAIN: OnceLock<String> = OnceLock::new();
    if let Some(environment) = environment::current() {
        return environment.cluster_domain();
    }
    DOMAIN.get_or_init(|| {
        let variable = variable("CLUSTER_DOMAIN");
        let resolv_conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        choose_domain(variable.as_deref(), &resolv_conf).to_owned()
    })
}

fn choose_domain<'a>(variable: Option<&'a str>, resolv_conf: &'a str) -> &'a str {
    let variable = variable.filter(|domain| !domain.is_empty());
    let domain = variable.or_else(|| service_search_domain(resolv_conf)).unwrap_or("cluster.local");
    domain.strip_suffix('.').unwrap_or(domain)
}

/// Returns the part after `svc.` of the first search domain that starts with it.
fn service_search_domain(resolv_conf: &str) -> Option<&str> {
    let search_lists = resolv_conf.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("search")).then_some(words)
    });
    search_lists.flatten().find_map(|domain| domain.strip_prefix("svc."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_domain_is_read_from_the_search_domain_of_services() {
        let resolv_conf =
            "nameserver 10.0.0.10\nsearch default.svc.corp.example svc.corp.example corp.example\n";
        assert_eq!(choose_domain(None, resolv_conf), "corp.example");
        assert_eq!(choose_domain(None, "search\tns.svc.a.b.\tsvc.a.b."), "a.b");
        assert_eq!(choose_domain(Some(""), resolv_conf), "corp.example");
    }

    #[test]
    fn the_environment_variable_takes_precedence_over_resolv_conf() {
        assert_eq!(choose_domain(Some("my.domain."), "search svc.corp.example"), "my.domain");
    }

    #[test]
    fn the_default_domain_is_used_if_resolv_conf_has_no_search_domain_of_services() {
        for resolv_conf in ["", "search corp.example", "# search svc.commented.out", "nameserver svc.x"] {
            assert_eq!(choose_domain(None, resolv_conf), "cluster.local", "{resolv_conf}");
        }
    }

    #[test]
    fn children_of_long_parents_have_different_names() {
        let (a, b) = (format!("{}a", "p".repeat(70)), format!("{}b", "p".repeat(70)));
        assert_ne!(child_name(&a, "-x"), child_name(&b, "-x"));
        assert_ne!(child_name("p", &a), child_name("p", &b));
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        assert!(child_name(&"é".repeat(40), "-x").ends_with("-x"));
        assert_eq!(child_name("", ""), "");
    }
}
