//! The pages in docs/ and the README: links, the summary of the book, the pages whose examples are compiled, and the
//! names that the page on operations has to list.
#![cfg(test)]

mod public_items;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for page in pages() {
        for link in links(&read(&page)) {
            if let Err(error) = check(&page, &link) {
                broken.push(format!("{}: {link}: {error}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn the_summary_lists_every_page_of_the_book() {
    let summary = Path::new("docs/SUMMARY.md");
    let listed: BTreeSet<_> = links(&read(summary)).iter().map(|link| resolve(summary, link)).collect();
    let present = pages().into_iter().filter(|page| page.starts_with("docs") && page != summary);
    assert_eq!(listed, present.collect());
}

#[test]
fn the_examples_of_every_page_are_compiled() {
    let compiled = read(Path::new("src/book.rs"));
    let is_missing = |page: &PathBuf| !compiled.contains(&format!("\"../{}\"", page.display()));
    let has_examples = |page: &PathBuf| {
        // An integration test writes blocks with `file=` into a project, and compiles that.
        read(page).lines().any(|line| line.starts_with("```rust") && !line.contains("file="))
    };
    let missing: Vec<_> = pages().into_iter().filter(has_examples).filter(is_missing).collect();
    assert!(missing.is_empty(), "add to src/book.rs: {missing:?}");
}

#[test]
fn operations_lists_every_variable_and_metric() {
    let page = read(Path::new("docs/operations.md"));
    let mut names = BTreeSet::new();
    for folder in
        ["apis/src", "injection/src", "leadership/src", "reconciler/src", "webhook/src", "sharedmain/src"]
    {
        add_names(Path::new(folder), &mut names);
    }
    // Variables that cargo sets for the build, and the one that the framework sets for a credential plugin.
    names.retain(|name| !name.starts_with("CARGO_") && name != "KUBERNETES_EXEC_INFO");
    assert!(names.contains("SYSTEM_NAMESPACE") && names.contains("workqueue_depth"), "found only {names:?}");
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !["`", "{"].iter().any(|end| page.contains(&format!("`{name}{end}"))))
        .collect();
    assert!(missing.is_empty(), "add to docs/operations.md: {missing:?}");
}

#[test]
fn each_alert_has_a_section_that_says_what_to_do_and_the_other_way_round() {
    let rules = read(Path::new("config/monitoring/rules.yaml"));
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alerts: BTreeSet<_> = alerts.collect();
    let page = read(Path::new("docs/alerts.md"));
    let sections: BTreeSet<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(alerts, sections);
    for alert in alerts {
        let url =
            format!("https://github.com/reknit/reknit/blob/main/docs/alerts.md#{}\n", alert.to_lowercase());
        assert!(rules.contains(&format!("runbook_url: {url}")), "{alert} links to no section");
    }
}

#[test]
fn generated_projects_have_the_same_alerts_and_dashboard() {
    let generated = Path::new("cargo-reknit/template/project/config/monitoring");
    let (ours, theirs) =
        (read(Path::new("config/monitoring/rules.yaml")), read(&generated.join("rules.yaml")));
    let spec = |rules: &str| {
        rules.split_once("\nspec:").map(|(_, spec)| spec.replace("hello-world", "knative-samples"))
    };
    assert_eq!(spec(&ours), spec(&theirs));
    let dashboard = "dashboard.json";
    assert_eq!(read(&Path::new("config/monitoring").join(dashboard)), read(&generated.join(dashboard)));
}

#[test]
fn each_pod_runs_on_linux_and_names_its_local_volumes_to_autoscalers() {
    for file in [
        "config/controller.yaml",
        "config/webhook.yaml",
        "config/shadow/deployment.yaml",
        "cargo-reknit/template/project/config/500-controller.yaml",
        "cargo-reknit/template/project/config/shadow/deployment.yaml",
        "cargo-reknit/template/webhook/config/500-webhook.yaml",
    ] {
        let text = read(Path::new(file));
        assert!(text.contains("      nodeSelector:\n        kubernetes.io/os: linux\n"), "{file}");
        let volumes = text.matches("emptyDir").count();
        let named = "        cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes: tmp\n";
        assert!(volumes == 0 || (volumes == 1 && text.contains(named)), "{file}");
    }
}

#[test]
fn the_pages_explain_each_reason_of_an_event_or_a_condition() {
    let pages = [read(Path::new("docs/troubleshooting.md")), read(Path::new("docs/operations.md"))].concat();
    let mut reasons = BTreeSet::new();
    for folder in ["apis/src", "reconciler/src", "sharedmain/src", "webhook/src", "knative/src"] {
        each_source(Path::new(folder), &mut |code| add_reasons(code, &mut reasons));
    }
    for known in
        ["SlowReconcile", "InternalError", "NewObservedGenFailure", "SubjectMissing", "ConversionFailed"]
    {
        assert!(reasons.contains(known), "{known} is not among {reasons:?}");
    }
    let missing: Vec<_> = reasons.iter().filter(|reason| !pages.contains(&format!("`{reason}`"))).collect();
    assert!(missing.is_empty(), "add to docs/troubleshooting.md: {missing:?}");
}

/// Adds the reasons that the code gives to events, conditions and errors. An error's reason is that of its event.
fn add_reasons(code: &str, reasons: &mut BTreeSet<String>) {
    let lines = code.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    let code = lines.collect::<Vec<_>>().join(" ").replace("( \"", "(\"");
    let before = [
        "Event::warning(\"",
        "Event::normal(\"",
        ".reason(\"",
        "REASON: &str = \"",
        ".reason.as_deref().unwrap_or(\"",
        "|error| (\"",
        "Err((\"",
        "(400, \"",
        "(422, \"",
        "(500, \"",
        "(503, \"",
        "(504, \"",
    ];
    for pattern in before {
        let found = code.split(pattern).skip(1).filter_map(|rest| rest.split('"').next());
        reasons.extend(found.filter(|text| text.chars().all(char::is_alphanumeric)).map(str::to_owned));
    }
}

/// Adds the names of environment variables and metrics in the string literals of the sources.
fn add_names(folder: &Path, names: &mut BTreeSet<String>) {
    each_source(folder, &mut |code| {
        names.extend(code.split('"').filter(|text| is_variable(text) || is_metric(text)).map(str::to_owned));
    });
}

/// Calls the function with the code of each source in the folder, without unit tests.
fn each_source(folder: &Path, visit: &mut dyn FnMut(&str)) {
    for entry in fs::read_dir(Path::new(ROOT).join(folder)).unwrap() {
        let path = folder.join(entry.unwrap().file_name());
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
        if Path::new(ROOT).join(&path).is_dir() && !is_test {
            each_source(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
            let text = read(&path);
            visit(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default());
        }
    }
}

fn is_variable(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    text.contains('_') && text.starts_with(|c: char| c.is_ascii_uppercase()) && text.chars().all(is_allowed)
}

fn is_metric(text: &str) -> bool {
    let prefixes = [
        "certwatcher_",
        "controller_runtime_",
        "leader_election_",
        "reflector_",
        "reknit_",
        "rest_client_",
        "workqueue_",
    ];
    prefixes.iter().any(|prefix| text.starts_with(prefix))
        && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// Returns the checked pages, relative to the root: those of the book, those in the root, and the list of examples.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![PathBuf::from("examples/README.md")];
    add_pages(Path::new("docs"), &mut pages);
    add_pages(Path::new("docs/how-to"), &mut pages);
    add_pages(Path::new("docs/moving-from"), &mut pages);
    add_pages(Path::new(""), &mut pages);
    pages
}

fn add_pages(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(Path::new(ROOT).join(folder)).unwrap() {
        let name = entry.unwrap().file_name();
        if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
            pages.push(folder.join(name));
        }
    }
}

fn read(page: &Path) -> String {
    fs::read_to_string(Path::new(ROOT).join(page)).unwrap()
}

fn parse(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
}

fn links(text: &str) -> Vec<String> {
    let destination = |event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => Some(dest_url.to_string()),
        _ => None,
    };
    parse(text).filter_map(destination).collect()
}

fn check(page: &Path, link: &str) -> Result<(), String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(());
    }
    let target = resolve(page, link);
    if page.starts_with("docs") && target.ends_with("SUMMARY.md") {
        return Err("mdBook makes no page of the summary".into());
    }
    if !Path::new(ROOT).join(&target).exists() {
        return Err(format!("{} does not exist", target.display()));
    }
    match link.split_once('#') {
        Some((_, anchor)) if !anchors(&read(&target)).contains(anchor) => {
            Err(format!("{} has no heading #{anchor}", target.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the path of a link's file, relative to the root.
fn resolve(page: &Path, link: &str) -> PathBuf {
    let path = link.split('#').next().unwrap_or_default();
    if path.is_empty() {
        return page.to_owned();
    }
    let mut target = page.parent().map(Path::to_owned).unwrap_or_default();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => drop(target.pop()),
            part => target.push(part),
        }
    }
    target
}

/// Returns the anchors of the headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut anchors, mut seen) = (BTreeSet::new(), BTreeMap::<String, usize>::new());
    let mut heading: Option<String> = None;
    for event in parse(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let anchor = heading.take().as_deref().map(anchor).unwrap_or_default();
                let count = seen.entry(anchor.clone()).or_default();
                anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
                *count += 1;
            }
            _ => {}
        }
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.to_lowercase().chars().filter(is_kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}
