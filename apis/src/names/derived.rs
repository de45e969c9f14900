//! Names that follow from others: of children, of resources, of hosts.

use std::sync::OnceLock;

use md5::{Digest, Md5};

/// What the name of an object, label or host may have at most.
const LONGEST: usize = 63;
/// What is left of it beside an MD5 in hexadecimal.
const HEAD: usize = LONGEST - 32;

/// A name for a child: parent and suffix, shortened to 63 bytes where they are longer, and still unique then.
///
/// ```
/// use reknit_apis::child_name;
///
/// assert_eq!(child_name("web", "-deployment"), "web-deployment");
/// let long = child_name(&"a".repeat(63), "-deployment");
/// assert_eq!(long, "aaaaaaaaaaaaaaaaaaaab06521f39153d618550606be297466d5-deployment");
/// ```
pub fn child_name(parent: &str, suffix: &str) -> String {
    if parent.len() + suffix.len() <= LONGEST {
        return format!("{parent}{suffix}");
    }
    if suffix.len() < HEAD {
        return format!("{}{}{suffix}", start(parent, HEAD - suffix.len()), md5(&[parent]));
    }
    let name = format!("{}{}", start(parent, HEAD), md5(&[parent, suffix]));
    let name = format!("{name}{}", start(suffix, LONGEST - name.len()));
    name.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// As much of the text as fits in so many bytes.
fn start(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

fn md5(texts: &[&str]) -> String {
    let mut hasher = Md5::new();
    texts.iter().for_each(|text| hasher.update(text));
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The resource that a Kind is usually served as: in lower case, with `s`, or `es` after an `s`.
///
/// A guess, as Knative makes it (`Policy` becomes `policys`); only the API server knows.
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

/// The fully qualified host name of a Service, as it resolves within this cluster.
///
/// ```
/// use reknit_apis::{cluster_domain, service_host_name};
///
/// assert_eq!(service_host_name("web", "default"), format!("web.default.svc.{}", cluster_domain()));
/// ```
pub fn service_host_name(service: &str, namespace: &str) -> String {
    format!("{service}.{namespace}.svc.{}", cluster_domain())
}

/// The domain of this cluster's Services, without a dot at its end. Looked up once in a process.
///
/// `CLUSTER_DOMAIN` from the environment, else what follows `svc.` in a search domain of `/etc/resolv.conf`, else
/// `cluster.local`.
pub fn cluster_domain() -> &'static str {
    static DOMAIN: OnceLock<String> = OnceLock::new();
    DOMAIN.get_or_init(|| {
        let set = std::env::var("CLUSTER_DOMAIN").ok();
        let resolver = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        domain(set.as_deref(), &resolver).to_owned()
    })
}

fn domain<'a>(set: Option<&'a str>, resolver: &'a str) -> &'a str {
    let set = set.filter(|domain| !domain.is_empty());
    let domain = set.or_else(|| searched(resolver)).unwrap_or("cluster.local");
    domain.strip_suffix('.').unwrap_or(domain)
}

fn searched(resolver: &str) -> Option<&str> {
    let searches = resolver.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("search")).then_some(words)
    });
    searches.flatten().find_map(|domain| domain.strip_prefix("svc."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_domain_of_services_names_the_cluster() {
        let resolver =
            "nameserver 10.0.0.10\nsearch default.svc.corp.example svc.corp.example corp.example\n";
        assert_eq!(domain(None, resolver), "corp.example");
        assert_eq!(domain(None, "search\tns.svc.a.b.\tsvc.a.b."), "a.b");
        assert_eq!(domain(Some(""), resolver), "corp.example");
    }

    #[test]
    fn the_environment_wins_over_the_resolver() {
        assert_eq!(domain(Some("my.domain."), "search svc.corp.example"), "my.domain");
    }

    #[test]
    fn a_resolver_that_does_not_say_leaves_the_default() {
        for resolver in ["", "search corp.example", "# search svc.commented.out", "nameserver svc.x"] {
            assert_eq!(domain(None, resolver), "cluster.local", "{resolver}");
        }
    }

    #[test]
    fn a_child_of_a_long_parent_is_told_from_its_siblings() {
        let (a, b) = (format!("{}a", "p".repeat(70)), format!("{}b", "p".repeat(70)));
        assert_ne!(child_name(&a, "-x"), child_name(&b, "-x"));
        assert_ne!(child_name("p", &a), child_name("p", &b));
    }

    #[test]
    fn names_that_are_not_ascii_are_cut_between_characters() {
        assert!(child_name(&"é".repeat(40), "-x").ends_with("-x"));
        assert_eq!(child_name("", ""), "");
    }
}
