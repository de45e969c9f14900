//! The public items of the crates, each of which a page has to name where it is used in code.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use pulldown_cmark::{Event, Tag, TagEnd};
use syn::{Attribute, ImplItem, Item, ItemImpl, TraitItem, Type, UseTree, Visibility};

use crate::{ROOT, each_source, pages, parse, read};

/// The crates that a controller's author uses through `reknit`.
const CRATES: [&str; 10] = [
    "apis",
    "apiserver",
    "injection",
    "knative",
    "reconciler",
    "server",
    "sharedmain",
    "simulation",
    "testing",
    "webhook",
];

/// Public items that only the framework's own crates call.
const CALLED_BY_THE_FRAMEWORK: [&str; 39] = [
    "NAMESPACED",
    "apply_body",
    "as_str",
    "covers",
    "dependencies",
    "downgrade",
    "duck_mut",
    "eq_ignoring_transition_time",
    "event_reason",
    "expect_generation",
    "expects_generation",
    "first_list",
    "is_down",
    "is_escalation",
    "is_listed",
    "is_on",
    "is_required",
    "is_same_as",
    "keep_transition_times",
    "object_names",
    "object_namespaces",
    "observe_generation",
    "on",
    "on_key_event",
    "open",
    "or_namespaces",
    "read_status",
    "recorded_event",
    "resolve_in_any_version",
    "resource_of",
    "same_namespaces",
    "selected_namespaces",
    "selection",
    "selects_namespace",
    "set_by",
    "state_in",
    "uid",
    "unwatched",
    "within",
];

#[test]
fn each_item_that_a_controllers_author_uses_is_on_a_page() {
    let pages = pages().into_iter().filter(|page| page.starts_with("docs"));
    let pages: Vec<_> = pages.map(|page| identifiers(&read(&page))).collect();
    let mut public = BTreeSet::new();
    for name in CRATES {
        let folder = Path::new(name).join("src");
        let exported = exported_names(&folder.join("lib.rs"));
        each_source(&folder, &mut |code| add_public(code, &exported, &mut public));
    }
    for known in ["track_where", "apply_or_replace", "set_sink", "validate_subresource", "Change::Deleted"] {
        assert!(public.contains(known), "{known} is not among {public:?}");
    }
    for name in CALLED_BY_THE_FRAMEWORK {
        assert!(public.contains(name), "{name} is no longer public");
    }
    let is_missing = |item: &&String| {
        !CALLED_BY_THE_FRAMEWORK.contains(&item.as_str()) && !pages.iter().any(|page| is_named(item, page))
    };
    let missing: Vec<_> = public.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "add to a page in docs/how-to, as `name` or in code: {missing:?}");
}

#[test]
fn an_item_is_named_in_code_and_not_by_a_word_of_the_text() {
    let page = "An error in create(..) of `Queue::add`, `.build()` and `map_to(..)`:\n\n```rust\n\
                kinds.get(name)?; match change { Change::Deleted(_) => {} }\n```\n";
    let page = identifiers(page);
    for item in ["add", "build", "get", "map_to", "Change::Deleted"] {
        assert!(is_named(item, &page), "{item} is not among {page:?}");
    }
    for item in ["create", "Change::Added"] {
        assert!(!is_named(item, &page), "{item} is among {page:?}");
    }
}

#[test]
fn the_items_of_an_exported_type_are_public_unless_they_are_hidden() {
    let code = r"
#[doc(hidden)]
pub struct Queue;

impl Queue {
    pub fn add(&self) {}
    #[doc(hidden)]
    #[must_use]
    pub fn tell(&self) {}
    #[doc(hidden)]
    pub const NONE: u8 = 0;
    /// Gets.
    pub fn get(&self) {}
    fn private(&self) {}
}

pub struct Limits { pub idle_timeout: u8, #[doc(hidden)] pub internal: u8, private: u8 }
#[derive(Clone, serde::Deserialize)]
pub struct Spec { pub sink_uri: u8 }
pub enum Change { Deleted }
pub trait Role { const NAME: u8; fn observe(&self); }
pub trait Internal { fn call(&self); }
";
    let mut public = BTreeSet::new();
    let exported = ["Queue", "Limits", "Spec", "Change", "Role"].map(str::to_owned);
    add_public(code, &BTreeSet::from(exported), &mut public);
    let public: Vec<_> = public.into_iter().collect();
    assert_eq!(public, ["Change::Deleted", "NAME", "add", "get", "idle_timeout", "observe"]);
}

/// Returns true if the page names the item; a variant, such as `Change::Deleted`, by the name of its type and its own.
fn is_named(item: &str, page: &BTreeSet<String>) -> bool {
    item.split("::").all(|name| page.contains(name))
}

/// Returns the identifiers in the code of a page.
fn identifiers(page: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut is_block = false;
    for event in parse(page) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => is_block = true,
            Event::End(TagEnd::CodeBlock) => is_block = false,
            Event::Text(code) if is_block => add_identifiers(&code, &mut names),
            Event::Code(code) => add_identifiers(&code, &mut names),
            _ => {}
        }
    }
    names
}

fn add_identifiers(code: &str, names: &mut BTreeSet<String>) {
    let identifiers = code.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    names.extend(identifiers.map(str::to_owned));
}

/// Returns the names that a module exports, also from its public modules, except for hidden ones.
fn exported_names(module: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for item in parse_source(&read(module)).items {
        match &item {
            Item::Mod(module_item) if is_public(&module_item.vis, &module_item.attrs) => {
                names.extend(exported_names(&submodule(module, &module_item.ident.to_string())));
            }
            Item::Use(reexport) if is_public(&reexport.vis, &reexport.attrs) => {
                add_reexported(module, &reexport.tree, &mut names);
            }
            Item::Fn(item) if is_public(&item.vis, &item.attrs) => {
                names.insert(item.sig.ident.to_string());
            }
            Item::Struct(item) if is_public(&item.vis, &item.attrs) => {
                names.insert(item.ident.to_string());
            }
            Item::Enum(item) if is_public(&item.vis, &item.attrs) => {
                names.insert(item.ident.to_string());
            }
            Item::Trait(item) if is_public(&item.vis, &item.attrs) => {
                names.insert(item.ident.to_string());
            }
            _ => {}
        }
    }
    names
}

fn add_reexported(module: &Path, tree: &UseTree, names: &mut BTreeSet<String>) {
    match tree {
        UseTree::Path(path) => match &*path.tree {
            UseTree::Glob(_) => {
                names.extend(exported_names(&submodule(module, &path.ident.to_string())));
            }
            tree => add_reexported(module, tree, names),
        },
        UseTree::Group(group) => group.items.iter().for_each(|tree| add_reexported(module, tree, names)),
        UseTree::Name(name) => {
            names.insert(name.ident.to_string());
        }
        UseTree::Rename(rename) => {
            names.insert(rename.ident.to_string());
        }
        UseTree::Glob(_) => {}
    }
}

/// Returns the file of a module within another one.
fn submodule(module: &Path, name: &str) -> PathBuf {
    let is_root = ["lib.rs", "mod.rs"].iter().any(|file| module.ends_with(file));
    let folder = if is_root { module.with_file_name("") } else { module.with_extension("") };
    let file = folder.join(name).with_extension("rs");
    if Path::new(ROOT).join(&file).exists() { file } else { folder.join(name).join("mod.rs") }
}

/// Adds the exported functions, the public methods of the exported types, the public fields of the exported structs, the
/// variants of the exported enums, and the items of the exported traits.
fn add_public(code: &str, exported: &BTreeSet<String>, public: &mut BTreeSet<String>) {
    for item in parse_source(code).items {
        match item {
            Item::Fn(item) if is_public(&item.vis, &item.attrs) => {
                public.extend(Some(item.sig.ident.to_string()).filter(|name| exported.contains(name)));
            }
            Item::Impl(item) if item.trait_.is_none() && exported.contains(&self_type(&item)) => {
                public.extend(item.items.iter().filter_map(public_method));
            }
            Item::Struct(item)
                if exported.contains(&item.ident.to_string()) && has_fields_for_code(&item.attrs) =>
            {
                let fields = item.fields.iter().filter(|field| is_public(&field.vis, &field.attrs));
                public.extend(fields.filter_map(|field| Some(field.ident.as_ref()?.to_string())));
            }
            Item::Enum(item) if exported.contains(&item.ident.to_string()) && !is_hidden(&item.attrs) => {
                let variants = item.variants.iter().filter(|variant| !is_hidden(&variant.attrs));
                public.extend(variants.map(|variant| format!("{}::{}", item.ident, variant.ident)));
            }
            Item::Trait(item) if exported.contains(&item.ident.to_string()) && !is_hidden(&item.attrs) => {
                public.extend(item.items.iter().filter_map(item_of_trait));
            }
            _ => {}
        }
    }
}

fn self_type(item: &ItemImpl) -> String {
    match &*item.self_ty {
        Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default(),
        _ => String::new(),
    }
}

fn public_method(item: &ImplItem) -> Option<String> {
    match item {
        ImplItem::Fn(method) if is_public(&method.vis, &method.attrs) => Some(method.sig.ident.to_string()),
        _ => None,
    }
}

fn item_of_trait(item: &TraitItem) -> Option<String> {
    match item {
        TraitItem::Fn(method) if !is_hidden(&method.attrs) => Some(method.sig.ident.to_string()),
        TraitItem::Const(constant) if !is_hidden(&constant.attrs) => Some(constant.ident.to_string()),
        _ => None,
    }
}

fn is_public(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    matches!(visibility, Visibility::Public(_)) && !is_hidden(attributes)
}

/// Returns true if authors write the fields of a struct in code. Those of a type that is deserialized are on the pages as JSON, by
/// other names.
fn has_fields_for_code(attributes: &[Attribute]) -> bool {
    let is_deserialized = |attribute: &Attribute| {
        let derives = attribute.meta.require_list().map(|list| list.tokens.to_string());
        attribute.path().is_ident("derive") && derives.is_ok_and(|derives| derives.contains("Deserialize"))
    };
    !is_hidden(attributes) && !attributes.iter().any(is_deserialized)
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    let hides = |attribute: &Attribute| {
        attribute.path().is_ident("doc")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|argument| argument == "hidden")
    };
    attributes.iter().any(hides)
}

fn parse_source(code: &str) -> syn::File {
    syn::parse_file(code).unwrap()
}
