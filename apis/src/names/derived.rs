//! Names derived from others: of children, resources and hosts.

use std::sync::OnceLock;

use md5::{Digest, Md5};

use super::Bounds;
use crate::environment::{self, variable};

/// The maximum length of a DNS label or of a label's value.
const MAX_LENGTH: usize = 63;
/// The length of a hexadecimal MD5 hash.
const HASH_LENGTH: usize = 32;

/// Returns the name of a child: parent and suffix, or, if they exceed 63 bytes, a shortened name with a hash.
///
/// Some Kinds need shorter names: see [`child_name_within`].
///
/// ```
/// use reknit_apis::child_name;
///
/// assert_eq!(child_name("web", "-deployment"), "web-deployment");
/// let long = child_name(&"a".repeat(63), "-deployment");
/// assert_eq!(long, "aaaaaaaaaaaaaaaaaaaab06521f39153d618550606be297466d5-deployment");
/// ```
pub fn child_name(parent: &str, suffix: &str) -> String {
    child_name_within(parent, suffix, MAX_LENGTH)
}

/// Returns the name of a child as [`child_name`] does, but of at most this many bytes instead of 63: at most 52 for a
/// StatefulSet, whose pods get its name with a hash as a label, and for a CronJob, whose Jobs get its name with a time.
///
/// Names of two parents differ if 32 bytes or more are allowed. Fewer leave room for a part of the hash only.
///
/// ```
/// use reknit_apis::child_name_within;
///
/// assert_eq!(child_name_within("web", "-database", 52), "web-database");
/// let long = child_name_within(&"a".repeat(63), "-database", 52);
/// assert_eq!(long, "aaaaaaaaaaab06521f39153d618550606be297466d5-database");
/// ```
pub fn child_name_within(parent: &str, suffix: &str, max_bytes: usize) -> String {
    if parent.len() + suffix.len() <= max_bytes {
        return format!("{parent}{suffix}");
    }
    let head = max_bytes.saturating_sub(HASH_LENGTH);
    if suffix.len() < head {
        return format!("{}{}{suffix}", truncate(parent, head - suffix.len()), md5_hex(parent));
    }
    let name = format!("{}{}", truncate(parent, head), md5_hex(&format!("{parent}{suffix}")));
    let name = truncate(&name, max_bytes);
    let name = format!("{name}{}", truncate(suffix, max_bytes - name.len()));
    name.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// Returns the text as the value of a label, such as the name of an owner, which may have up to 253 bytes. A text that is
/// no valid value is shortened, its invalid characters are replaced, and it ends with a hash of the whole text, so that
/// the values of two names differ.
///
/// ```
/// use reknit_apis::label_value;
///
/// assert_eq!(label_value("web.example.com"), "web.example.com");
/// let long = label_value(&"a".repeat(253));
/// assert_eq!(long, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-abed9cdef66dcec954b87124ba18c1ab");
/// ```
pub fn label_value(text: &str) -> String {
    let value = Bounds::LABEL_VALUE.apply(text);
    if value == text {
        return text.to_owned();
    }
    let room = Bounds::LABEL_VALUE.within(MAX_LENGTH - HASH_LENGTH - 1);
    format!("{}-{}", room.apply(text), md5_hex(text))
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
    use std::collections::BTreeSet;

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
    fn names_of_children_and_values_of_labels_are_valid_distinct_and_within_their_length() {
        let parents = ["", "a", "é", "a.b-", "web"].into_iter();
        let parents: Vec<_> = parents.flat_map(|text| (0..70).map(|n| text.repeat(n))).collect();
        for (max_bytes, suffix) in [0, 1, 20, 32, 33, 40, 52, 63]
            .into_iter()
            .zip(["", "-db", "-a-longer-suffix-of-32-bytes-or-so"].into_iter().cycle())
        {
            let names: BTreeSet<_> =
                parents.iter().map(|parent| child_name_within(parent, suffix, max_bytes)).collect();
            assert!(names.iter().all(|name| name.len() <= max_bytes), "{max_bytes}: {names:?}");
        }
        let distinct: BTreeSet<_> = parents.iter().collect();
        let names: BTreeSet<_> = parents.iter().map(|parent| child_name_within(parent, "-db", 52)).collect();
        assert_eq!(names.len(), distinct.len());
        let values: BTreeSet<_> = parents.iter().map(|parent| label_value(parent)).collect();
        assert_eq!(values.len(), distinct.len());
        let is_valid = |value: &String| value.len() <= 63 && Bounds::LABEL_VALUE.apply(value) == **value;
        assert!(values.iter().all(is_valid), "{values:?}");
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        assert!(child_name(&"é".repeat(40), "-x").ends_with("-x"));
        assert_eq!(child_name("", ""), "");
    }
}
