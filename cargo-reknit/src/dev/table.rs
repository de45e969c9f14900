//! The objects of the project's Kinds as tables, as kubectl gets them from the API server.

use anyhow::{Context, Result};
use http::{Request, header::ACCEPT};
use kube::Client;
use reknit_apis::internal::visible;
use serde::Deserialize;
use serde_json::Value;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// A resource of a CustomResourceDefinition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) name: String,
    path: String,
    is_namespaced: bool,
}

impl Resource {
    /// Returns the resource of a CustomResourceDefinition in the version in which objects are stored.
    pub(crate) fn of(definition: &Value) -> Option<Self> {
        let spec = &definition["spec"];
        let (group, plural) = (spec["group"].as_str()?, spec["names"]["plural"].as_str()?);
        let stored = spec["versions"].as_array()?.iter().find(|version| version["storage"] == true)?;
        let version = stored["name"].as_str()?;
        Some(Self {
            name: format!("{plural}.{group}"),
            path: format!("/apis/{group}/{version}/{plural}"),
            is_namespaced: spec["scope"] != "Cluster",
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Table {
    column_definitions: Vec<Column>,
    #[serde(default)]
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Column {
    name: String,
    r#type: String,
    #[serde(default)]
    priority: i64,
}

#[derive(Deserialize)]
struct Row {
    cells: Vec<Value>,
    object: Value,
}

/// Returns the table of all objects of a resource.
pub(crate) async fn list(client: &Client, resource: &Resource) -> Result<String> {
    let request = Request::get(&resource.path).header(ACCEPT, TABLE).body(Vec::new());
    let request = request.with_context(|| format!("cannot list {}", resource.name))?;
    let table: Table =
        client.request(request).await.with_context(|| format!("cannot list {}", resource.name))?;
    Ok(table.render(resource.is_namespaced))
}

impl Table {
    /// Aligns the columns. Columns with a priority are left out, as `kubectl get` does without `-o wide`. Columns with
    /// dates are left out too: they contain ages, and a table with ages changes every second. Objects of a
    /// cluster-scoped Kind have no column for the namespace.
    fn render(&self, is_namespaced: bool) -> String {
        let is_shown = |column: &&(usize, &Column)| column.1.priority == 0 && column.1.r#type != "date";
        let columns: Vec<(usize, &Column)> = self.column_definitions.iter().enumerate().collect();
        let columns: Vec<&(usize, &Column)> = columns.iter().filter(is_shown).collect();
        let header = columns.iter().map(|(_, column)| column.name.to_uppercase());
        let namespace = |name: &str| is_namespaced.then(|| name.to_owned()).into_iter();
        let mut lines = vec![namespace("NAMESPACE").chain(header).collect::<Vec<_>>()];
        for row in &self.rows {
            let name = row.object["metadata"]["namespace"].as_str().unwrap_or_default();
            let cells = columns.iter().map(|(i, _)| text(row.cells.get(*i)));
            lines.push(namespace(name).chain(cells).collect());
        }
        let width =
            |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
        let rendered = lines.iter().map(|line| {
            let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("   ").trim_end().to_owned() + "\n"
        });
        rendered.collect()
    }
}

fn text(cell: Option<&Value>) -> String {
    match cell {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => visible(text).replace('\n', "\\n"), // a cell has one line
        Some(other) => visible(&other.to_string()).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_aligned_without_ages_and_columns_of_kubectl_wide_and_each_row_is_one_line() {
        let column =
            |name: &str, kind: &str, priority: i64| json!({"name": name, "type": kind, "priority": priority});
        let table: Table = serde_json::from_value(json!({
            "columnDefinitions": [
                column("Name", "string", 0), column("Ready", "string", 0), column("Age", "date", 0),
                column("Reason", "string", 1),
            ],
            "rows": [{"cells": ["hello", "no\nyes", "5s", "why"], "object": {"metadata": {"namespace": "default"}}}],
        }))
        .unwrap();
        assert_eq!(table.render(true), "NAMESPACE   NAME    READY\ndefault     hello   no\\nyes\n");
        assert_eq!(table.render(false), "NAME    READY\nhello   no\\nyes\n");
    }

    #[test]
    fn a_resource_is_read_in_its_storage_version() {
        let versions = json!([{"name": "v1", "storage": false}, {"name": "v1beta1", "storage": true}]);
        let spec = json!({"group": "example.com", "names": {"plural": "greetings"}, "versions": versions});
        let resource = Resource::of(&json!({"spec": spec})).unwrap();
        assert_eq!(resource.path, "/apis/example.com/v1beta1/greetings");
    }
}
