//! Label and field selectors of lists, for the objects that a plan has written.

use http::Uri;
use serde_json::Value;

use super::reply::param;

/// Returns true if the selectors of a list select the object, or `None` if only the API server can tell: they compare a
/// field other than the name or the namespace, or a label in a way that is not known here.
pub(super) fn is_selected(uri: &Uri, object: &Value) -> Option<bool> {
    let label = |name: &str| object["metadata"]["labels"][name].as_str();
    let labels = param(uri, "labelSelector").unwrap_or_default();
    let fields = param(uri, "fieldSelector").unwrap_or_default();
    let labels = terms(&labels).map(|term| matches_label(term, label));
    let fields = fields.split(',').filter(|term| !term.is_empty()).map(|term| matches_field(term, object));
    let matches: Vec<_> = labels.chain(fields).collect();
    if matches.contains(&Some(false)) {
        return Some(false); // whatever the unknown ones are
    }
    (!matches.contains(&None)).then_some(true)
}

/// Splits a label selector at the commas that are not within parentheses.
fn terms(selector: &str) -> impl Iterator<Item = &str> {
    let mut is_in_set = false;
    let is_end = move |character: char| {
        is_in_set = match character {
            '(' => true,
            ')' => false,
            _ => is_in_set,
        };
        character == ',' && !is_in_set
    };
    selector.split(is_end).map(str::trim).filter(|term| !term.is_empty())
}

/// Evaluates `a=b`, `a==b`, `a!=b`, `a`, `!a`, `a in (b,c)` or `a notin (b,c)`.
fn matches_label<'a>(term: &str, label: impl Fn(&str) -> Option<&'a str>) -> Option<bool> {
    if let Some((head, values)) = term.split_once('(') {
        let values = values.strip_suffix(')')?;
        let is_in =
            |name| label(name).is_some_and(|label| values.split(',').any(|value| value.trim() == label));
        return match *head.split_whitespace().collect::<Vec<_>>() {
            [name, "in"] => Some(is_in(name)),
            [name, "notin"] => Some(!is_in(name)),
            _ => None,
        };
    }
    if let Some(matches) = matches_equality(term, &label) {
        return Some(matches);
    }
    let name = term.strip_prefix('!').unwrap_or(term).trim();
    let is_name = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    name.chars().all(is_name).then(|| label(name).is_some() != term.starts_with('!'))
}

/// Evaluates `metadata.name=a` and the like. Of other fields, the API server knows values that an object does not show,
/// such as defaults. A value with an escaped character is left to the API server too.
fn matches_field(term: &str, object: &Value) -> Option<bool> {
    let is_known = ["metadata.name", "metadata.namespace"]
        .iter()
        .any(|field| term.strip_prefix(field).is_some_and(|rest| rest.trim_start().starts_with(['=', '!'])));
    if !is_known || term.contains('\\') {
        return None;
    }
    matches_equality(term, |field| object["metadata"][field.trim_start_matches("metadata.")].as_str())
}

/// Evaluates `a=b`, `a==b` or `a!=b`. `None` if the term is another one.
fn matches_equality<'a>(term: &str, get: impl Fn(&str) -> Option<&'a str>) -> Option<bool> {
    let (name, value) = term.split_once('=')?;
    let (name, value) = (name.trim_end(), value.trim_start_matches('=').trim());
    Some(match name.strip_suffix('!') {
        Some(name) => get(name.trim()) != Some(value),
        None => get(name) == Some(value),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn select(labels: &str, fields: &str) -> Option<bool> {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("labelSelector", labels).append_pair("fieldSelector", fields);
        let uri = format!("/api/v1/pods?{}", query.finish()).parse().unwrap();
        let labels = json!({"tier": "web", "example.com/a.b": "", "n": "5"});
        let metadata = json!({"name": "a", "namespace": "shop", "labels": labels});
        is_selected(&uri, &json!({"metadata": metadata, "spec": {"nodeName": "n1"}}))
    }

    #[test]
    fn labels_are_compared_by_each_operator() {
        for (selector, expected) in [
            ("", Some(true)),
            ("tier=web", Some(true)),
            ("tier == web , n!=4", Some(true)),
            ("tier!=web", Some(false)),
            ("other!=web", Some(true)),
            ("tier,!other", Some(true)),
            ("!tier", Some(false)),
            ("other", Some(false)),
            ("example.com/a.b=", Some(true)),
            ("tier in (db,web),n=5", Some(true)),
            ("tier in(db, web)", Some(true)),
            ("tier in (db,cache)", Some(false)),
            ("other in (db,)", Some(false)),
            ("tier notin (db,cache)", Some(true)),
            ("tier notin (db,web)", Some(false)),
            ("other notin (db,web)", Some(true)),
            ("tier in (db,web),n=6", Some(false)),
            ("n>4", None),
            ("n>4,tier=web", None),
            ("n>4,tier=db", Some(false)),
            ("tier like (web)", None),
        ] {
            assert_eq!(select(selector, ""), expected, "{selector}");
        }
    }

    #[test]
    fn only_the_name_and_the_namespace_are_compared_of_the_fields() {
        for (selector, expected) in [
            ("metadata.name=a", Some(true)),
            ("metadata.name=a,metadata.namespace!=other", Some(true)),
            (r"metadata.name=a\,b", None),
            ("metadata.name!=a", Some(false)),
            ("spec.nodeName=n1", None),
            ("status.phase!=Failed,metadata.name=a", None),
            ("status.phase!=Failed,metadata.name=b", Some(false)),
        ] {
            assert_eq!(select("", selector), expected, "{selector}");
        }
    }
}
