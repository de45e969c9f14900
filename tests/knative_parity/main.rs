//! Compares reknit with the recorded results of Knative's Go library, row by row. vectors/README.md describes the file.
//!
//! `KNATIVE_VECTORS` names another file. In the file and in this test, `want` is the result of the Go library.

mod conditions;
mod field_errors;
mod leader_election;
mod references;

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt::Debug,
    io::{Write, stdout},
    path::Path,
};

use reknit_apis::{child_name, example_checksum, kind_to_resource};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use self::{
    conditions::conditions,
    field_errors::field_errors,
    leader_election::{hash, leader_election},
    references::{destinations, references, service_hostname, urls},
};

type CheckResult = Result<(), Box<dyn Error>>;

type Check = fn(Value) -> CheckResult;

/// The function that compares one row, for each key of the file.
const CHECKS: [(&str, Check); 11] = [
    ("childNames", |row| child_names(parse(row)?)),
    ("conditions", |row| conditions(parse(row)?)),
    ("destinations", |row| destinations(parse(row)?)),
    ("exampleChecksums", |row| check_function(parse(row)?, example_checksum)),
    ("fieldErrors", |row| field_errors(&parse(row)?)),
    ("hash", |row| hash(parse(row)?)),
    ("kindToResource", |row| check_function(parse(row)?, kind_to_resource)),
    ("leaderElection", |row| leader_election(parse(row)?)),
    ("references", |row| references(parse(row)?)),
    ("serviceHostname", |row| service_hostname(parse(row)?)),
    ("urls", |row| urls(parse(row)?)),
];

#[test]
fn every_row_agrees_with_knative() -> CheckResult {
    let vectors = selected_vectors()?;
    let (counts, differences) = compare(&vectors);
    for (key, rows) in counts {
        // Not by `println!`, because the test harness hides its output if the test passes.
        writeln!(stdout(), "knative parity: {rows:4} rows of {key}")?;
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    Ok(())
}

#[test]
fn a_key_that_is_unknown_or_has_no_rows_is_a_difference() -> CheckResult {
    let mut vectors = committed_vectors()?;
    vectors["unknownKey"] = json!([1]);
    vectors["urls"] = json!([]);
    vectors.as_object_mut().unwrap().remove("hash");
    let (_, differences) = compare(&vectors);
    assert_eq!(differences, ["hash: no rows", "unknownKey: nothing compares this key", "urls: no rows"]);
    Ok(())
}

#[test]
fn a_changed_expectation_is_a_difference() -> CheckResult {
    let expectations = [
        "/childNames/0/want",
        "/conditions/0/steps/0/happy",
        "/conditions/0/steps/0/transitioned",
        "/conditions/0/steps/0/want/0/status",
        "/destinations/0/want",
        "/exampleChecksums/1",
        "/fieldErrors/0/want",
        "/fieldErrors/0/errors",
        "/fieldErrors/0/warnings",
        "/hash/0/owners/~1ksdrik-9n88i6tus061xk",
        "/hash/0/subset/want",
        "/kindToResource/Box",
        "/leaderElection/0/want/leaseDurationMs",
        "/leaderElection/0/want/buckets",
        "/leaderElection/0/want/mapLeasePrefix",
        "/leaderElection/4/error",
        "/references/0/track",
        "/references/0/validate",
        "/references/0/validateObjectReference",
        "/serviceHostname/svc.ns.svc.cluster.local/0",
        "/urls/1/string",
        "/urls/1/json",
        "/urls/1/empty",
        "/urls/1/nil",
        "/urls/1/scheme",
        "/urls/1/host",
        "/urls/1/path",
        "/urls/1/resolve/#f",
    ];
    let committed = committed_vectors()?;
    for pointer in expectations {
        let mut vectors = committed.clone();
        let value = vectors.pointer_mut(pointer).ok_or(pointer)?;
        *value = match value {
            Value::Bool(value) => json!(!*value),
            Value::String(text) => json!(format!("{text}!")),
            Value::Number(_) => json!(7),
            _ => json!({"other": "x"}),
        };
        assert_eq!(compare(&vectors).1.len(), 1, "{pointer}");
    }
    Ok(())
}

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/knative.json");

fn committed_vectors() -> Result<Value, Box<dyn Error>> {
    load(COMMITTED.as_ref())
}

fn selected_vectors() -> Result<Value, Box<dyn Error>> {
    let path = std::env::var_os("KNATIVE_VECTORS").unwrap_or_else(|| COMMITTED.into());
    load(path.as_ref())
}

fn load(path: &Path) -> Result<Value, Box<dyn Error>> {
    let with_path = |error: &dyn Error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| with_path(&error))?;
    Ok(serde_json::from_str(&text).map_err(|error| with_path(&error))?)
}

/// Returns the number of compared rows for each key, and the differences.
fn compare(vectors: &Value) -> (BTreeMap<&str, usize>, Vec<String>) {
    let checks = BTreeMap::from(CHECKS);
    let (mut counts, mut differences) = (BTreeMap::new(), Vec::new());
    let known_keys = checks.keys().copied();
    let keys_in_file = vectors.as_object().into_iter().flat_map(|all| all.keys().map(String::as_str));
    for key in known_keys.chain(keys_in_file).collect::<BTreeSet<_>>() {
        let Some(check) = checks.get(key) else {
            differences.push(format!("{key}: nothing compares this key"));
            continue;
        };
        let rows = rows_of(&vectors[key]);
        if rows.is_empty() {
            differences.push(format!("{key}: no rows"));
        }
        counts.insert(key, rows.len());
        for (number, row) in rows.into_iter().enumerate() {
            if let Err(error) = check(row.clone()) {
                differences.push(format!("{key}, row {number}: {error}\n    in {row}"));
            }
        }
    }
    (counts, differences)
}

/// The rows of a list, or the fields of an object as pairs of input and output.
fn rows_of(value: &Value) -> Vec<Value> {
    match value {
        Value::Array(rows) => rows.clone(),
        Value::Object(pairs) => pairs.iter().map(|(input, output)| json!([input, output])).collect(),
        _ => Vec::new(),
    }
}

fn parse<T: DeserializeOwned>(row: Value) -> serde_json::Result<T> {
    serde_json::from_value(row)
}

fn check_equal<T: PartialEq + Debug>(what: &str, got: T, want: T) -> CheckResult {
    if got == want { Ok(()) } else { Err(format!("{what}: got {got:?}, want {want:?}").into()) }
}

fn check_function((input, want): (String, String), function: impl Fn(&str) -> String) -> CheckResult {
    check_equal("output", function(&input), want)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChildName {
    parent: String,
    suffix: String,
    want: String,
}

fn child_names(row: ChildName) -> CheckResult {
    check_equal("name", child_name(&row.parent, &row.suffix), row.want)
}
