//! The names that a user chooses: of a project, an API group, a version and a Kind.

use std::str::FromStr;

use crate::template;

/// Names that the macros and the prelude of reknit use, or that YAML does not read as text. Those in the code of the
/// templates are reserved, too.
const RESERVED_KINDS: [&str; 20] = [
    "Box", "Err", "Event", "False", "KRShaped", "N", "No", "None", "Null", "Off", "Ok", "On", "Option",
    "Self", "Some", "String", "True", "Vec", "Y", "Yes",
];

/// The crates that a project uses, its programs, and the folders of `target/`.
const RESERVED_PROJECTS: [&str; 19] = [
    "alloc",
    "build",
    "core",
    "crd",
    "deps",
    "examples",
    "incremental",
    "k8s_openapi",
    "kube",
    "proc_macro",
    "rbac",
    "reknit",
    "schemars",
    "serde",
    "serde_json",
    "serde_saphyr",
    "std",
    "test",
    "tokio",
];

/// The keywords of Rust in lower case letters, with the reserved ones.
const KEYWORDS: &str = "abstract as async await become box break const continue crate do dyn else enum extern false final \
     fn for gen if impl in let loop macro match mod move mut override priv pub ref return self static struct super trait \
     true try type typeof unsafe unsized use virtual where while yield";

/// The name of a project, which is the name of its package, its namespace and its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProjectName(String);

impl ProjectName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the library crate.
    pub(crate) fn krate(&self) -> String {
        self.0.replace('-', "_")
    }
}

impl FromStr for ProjectName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let starts_with_letter = name.starts_with(|first: char| first.is_ascii_lowercase());
        if !starts_with_letter || !is_label(name) {
            return Err(
                "a project's name is also that of its package and its namespace: use lower case letters, digits \
                 and `-`, for example greeting-controller"
                    .into(),
            );
        }
        if is_yaml_word(name) {
            return Err("YAML does not read this name as text; choose another name".into());
        }
        let project = Self(name.into());
        if RESERVED_PROJECTS.contains(&&*project.krate()) {
            return Err(
                "the generated project has a crate, a program or a folder of this name; choose another name"
                    .into(),
            );
        }
        if KEYWORDS.split(' ').any(|keyword| keyword == name) {
            return Err("this name is a keyword of Rust; choose another name".into());
        }
        Ok(project)
    }
}

/// An API group, for example `example.com`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group(String);

impl Group {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the API server admits a definition of this group only with an approval of Kubernetes.
    pub(crate) fn is_protected(&self) -> bool {
        [".k8s.io", ".kubernetes.io"].iter().any(|reserved| format!(".{}", self.0).ends_with(reserved))
    }
}

impl FromStr for Group {
    type Err = String;

    fn from_str(group: &str) -> Result<Self, String> {
        if !group.contains('.') || group.len() > 253 || !group.split('.').all(is_label) {
            return Err("use a domain name in lower case, for example example.com".into());
        }
        Ok(Self(group.into()))
    }
}

/// A version of a Kind, for example `v1` or `v1alpha1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version(String);

impl Version {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(version: &str) -> Result<Self, String> {
        let is_number = |text: &str| {
            // `parse` alone accepts `+1`.
            text.starts_with(|first: char| matches!(first, '1'..='9')) && text.parse::<u32>().is_ok()
        };
        let digits = version.strip_prefix('v').unwrap_or_default();
        let is_valid = match digits.split_once("alpha").or_else(|| digits.split_once("beta")) {
            Some((major, minor)) => is_number(major) && is_number(minor),
            None => is_number(digits),
        };
        is_valid
            .then(|| Self(version.into()))
            .ok_or_else(|| "use a version like v1, v1beta1 or v1alpha1".into())
    }
}

/// A Kind, for example `Greeting`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kind(String);

impl Kind {
    /// A Kind of Kubernetes, whose name means nothing else in the files of its template.
    pub(crate) fn of_kubernetes(kind: &str) -> Self {
        Self(kind.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the Kind's module: `simple_deployment` for `SimpleDeployment`.
    pub(crate) fn module(&self) -> String {
        let mut module = String::new();
        let letters: Vec<char> = self.0.chars().collect();
        for (i, letter) in letters.iter().enumerate() {
            let follows_word = i > 0 && !letters[i - 1].is_ascii_uppercase();
            let precedes_word = i > 0 && letters.get(i + 1).is_some_and(char::is_ascii_lowercase);
            if letter.is_ascii_uppercase() && (follows_word || precedes_word) {
                module.push('_');
            }
            module.push(letter.to_ascii_lowercase());
        }
        module
    }

    /// The name in the API: `simpledeployment` for `SimpleDeployment`.
    pub(crate) fn singular(&self) -> String {
        self.0.to_lowercase()
    }

    /// The plural by the rules of English spelling: `policies` for `Policy`.
    pub(crate) fn plural(&self) -> Plural {
        let singular = self.singular();
        let ends_in = |endings: &[&str]| endings.iter().any(|ending| singular.ends_with(ending));
        Plural(match singular.strip_suffix('y') {
            Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
            _ if ends_in(&["s", "x", "z", "ch", "sh"]) => format!("{singular}es"),
            _ => format!("{singular}s"),
        })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(kind: &str) -> Result<Self, String> {
        let starts_upper = kind.starts_with(|first: char| first.is_ascii_uppercase());
        if !starts_upper || kind.len() > 40 || !kind.chars().all(|letter| letter.is_ascii_alphanumeric()) {
            return Err(
                "use a singular name in CamelCase of at most 40 letters and digits, for example Greeting"
                    .into(),
            );
        }
        if RESERVED_KINDS.contains(&kind) || template::uses(kind) {
            return Err("the generated files cannot use this name; choose another Kind".into());
        }
        let parsed = Self(kind.into());
        if is_keyword(&parsed.module())
            || ["bin", "conversion", "integration", "lib", "main", "manifests", "webhook"]
                .contains(&&*parsed.module())
        {
            return Err(
                "Rust or the project has another use for a module of this name; choose another Kind".into()
            );
        }
        Ok(parsed)
    }
}

/// The plural of a Kind, which is the name of its resource in the API, for example `greetings`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plural(String);

impl Plural {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Plural {
    type Err = String;

    fn from_str(plural: &str) -> Result<Self, String> {
        let starts_with_letter = plural.starts_with(|first: char| first.is_ascii_lowercase());
        if !starts_with_letter || !is_label(plural) || is_yaml_word(plural) {
            return Err("use a word in lower case, for example greetings".into());
        }
        Ok(Self(plural.into()))
    }
}

/// A DNS label as in RFC 1123.
fn is_label(text: &str) -> bool {
    let is_inner = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    !text.is_empty()
        && text.len() <= 63
        && text.chars().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// True for words that YAML 1.1 reads as a boolean or as null.
fn is_yaml_word(word: &str) -> bool {
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null"].contains(&word)
}

fn is_keyword(word: &str) -> bool {
    const KEYWORDS: [&str; 51] = [
        "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do",
        "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
        "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "self",
        "static", "struct", "super", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
        "virtual", "where", "while", "yield",
    ];
    KEYWORDS.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_named_as_a_package_and_a_namespace() {
        assert_eq!("greeting-controller".parse::<ProjectName>().unwrap().krate(), "greeting_controller");
        let long = "x".repeat(64);
        for invalid in ["", "Greeting", "greeting_controller", "1greeting", "-x", "x-", "on", &long] {
            assert!(invalid.parse::<ProjectName>().is_err(), "{invalid}");
        }
        for taken in ["kube", "tokio", "serde-json", "crd", "build", "loop", "async"] {
            assert!(taken.parse::<ProjectName>().is_err(), "{taken}");
        }
    }

    #[test]
    fn a_group_is_a_domain_and_those_of_kubernetes_are_protected() {
        for (group, is_protected) in [
            ("shop.example.com", false),
            ("myk8s.io", false),
            ("k8s.io", true),
            ("gateway.networking.k8s.io", true),
            ("x.kubernetes.io", true),
        ] {
            assert_eq!(group.parse::<Group>().unwrap().is_protected(), is_protected, "{group}");
        }
        for invalid in ["", "example", "Example.com", "example..com"] {
            assert!(invalid.parse::<Group>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_version_is_one_of_kubernetes() {
        for valid in ["v1", "v12", "v1alpha1", "v2beta3"] {
            assert!(valid.parse::<Version>().is_ok(), "{valid}");
        }
        for invalid in
            ["", "1", "v", "v0", "v1beta", "v1beta0", "v1gamma1", "v1alpha1beta1", "v+1", "v1alpha+1"]
        {
            assert!(invalid.parse::<Version>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_kind_is_camel_case_and_not_reserved() {
        for invalid in
            ["", "greeting", "Greet-ing", "Result", "No", "Match", "Webhook", "Manifests", &"X".repeat(41)]
        {
            assert!(invalid.parse::<Kind>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_kind_has_no_name_that_the_code_of_a_template_uses() {
        for used in ["Program", "ControlPlane", "Api", "Duration", "Error", "Value", "TestRequest", "Rbac"] {
            assert!(used.parse::<Kind>().is_err(), "{used}");
        }
        for free in ["Ready", "Greeting", "Programme", "Plane"] {
            assert!(free.parse::<Kind>().is_ok(), "{free}");
        }
    }

    #[test]
    fn a_plural_is_a_name_of_a_resource() {
        assert!("shelves".parse::<Plural>().is_ok());
        for invalid in ["", "Shelves", "1shelves", "shelves.", "on", &"x".repeat(64)] {
            assert!(invalid.parse::<Plural>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn the_module_and_the_resource_of_a_kind_are_derived() {
        let names = |kind: &str| {
            let kind: Kind = kind.parse().unwrap();
            (kind.module(), kind.singular(), kind.plural().0)
        };
        let owned =
            |module: &str, singular: &str, plural: &str| (module.into(), singular.into(), plural.into());
        assert_eq!(names("Greeting"), owned("greeting", "greeting", "greetings"));
        assert_eq!(
            names("SimpleDeployment"),
            owned("simple_deployment", "simpledeployment", "simpledeployments")
        );
        assert_eq!(names("HTTPRoute"), owned("http_route", "httproute", "httproutes"));
        assert_eq!(names("Policy"), owned("policy", "policy", "policies"));
        assert_eq!(names("Key"), owned("key", "key", "keys"));
        assert_eq!(names("Batch"), owned("batch", "batch", "batches"));
    }
}
