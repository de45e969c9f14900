//! Compares reknit with the recorded results of Knative's Go library, row by row. vectors/README.md describes the file.
//!
//! `KNATIVE_VECTORS` names another file. In the file and in this test, `want` is the result of the Go library.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt::Debug,
    io::{Write, stdout},
    path::Path,
    time::Duration,
};

use reknit::knative::{Destination, Url};
use reknit_apis::{
    Condition, ConditionSet, ConditionStatus, DuckShaped, DuckStatus, FieldError, Key, Level, Reference,
    child_name, cluster_domain, example_checksum, kind_to_resource, service_host_name,
};
use reknit_leadership::{LeaderElectionConfig, Ring};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionRow {
    set: String,
    dependents: Vec<String>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    op: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    status: ConditionStatus,
    #[serde(default)]
    severity: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    error: String,
    want: Value,
    transitioned: BTreeSet<String>,
    happy: bool,
}

#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
struct Status {
    duck: DuckStatus,
}

impl DuckShaped for Status {
    fn duck(&self) -> &DuckStatus {
        &self.duck
    }
    fn duck_mut(&mut self) -> &mut DuckStatus {
        &mut self.duck
    }
}

fn conditions(row: ConditionRow) -> CheckResult {
    let dependents = row.dependents.into_iter().map(|name| &*name.leak());
    let dependents = dependents.collect::<Vec<&'static str>>().leak();
    let set = match &*row.set {
        "living" => ConditionSet::living(dependents),
        "batch" => ConditionSet::batch(dependents),
        other => return Err(format!("unknown set {other}").into()),
    };
    let mut status = Status::default();
    for (number, step) in row.steps.into_iter().enumerate() {
        apply_step(&set, &mut status, step).map_err(|error| format!("step {number}: {error}"))?;
    }
    Ok(())
}

/// Applies the step to the conditions, and compares the result.
fn apply_step(set: &ConditionSet, status: &mut Status, step: Step) -> CheckResult {
    let before = status.duck.conditions.clone();
    let mut conditions = set.manage(status);
    let Step { kind, reason, message, .. } = step;
    let mut error = String::new();
    match &*step.op {
        "init" => conditions.initialise(),
        "true" => conditions.mark_true(&kind),
        "trueReason" => conditions.mark_true_with_reason(&kind, &reason, message),
        "unknown" => conditions.mark_unknown(&kind, &reason, message),
        "false" => conditions.mark_false(&kind, &reason, message),
        "clear" => {
            error =
                conditions.remove_condition(&kind).err().map(|error| error.to_string()).unwrap_or_default()
        }
        "set" => conditions.set_condition(Condition {
            kind,
            status: step.status,
            severity: (&*step.severity).into(),
            reason: Some(reason),
            message: Some(message),
            last_transition_time: None,
        }),
        other => return Err(format!("unknown operation {other}").into()),
    }
    check_equal("error", error, step.error)?;
    check_equal("happy", conditions.is_happy(), step.happy)?;
    let transition_time = |conditions: &[Condition], kind: &str| {
        let condition = conditions.iter().find(|condition| condition.kind == kind);
        condition.map(|condition| condition.last_transition_time.clone())
    };
    let after = &status.duck.conditions;
    let transitioned = after.iter().map(|condition| &condition.kind);
    let transitioned =
        transitioned.filter(|kind| transition_time(&before, kind) != transition_time(after, kind));
    check_equal("transitioned", transitioned.cloned().collect(), step.transitioned)?;
    let without_times =
        after.iter().map(|condition| Condition { last_transition_time: None, ..condition.clone() });
    let json = serde_json::to_value(without_times.collect::<Vec<_>>())?;
    check_equal("conditions", json, if step.want.is_null() { json!([]) } else { step.want })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DestinationRow {
    r#in: Destination,
    want: String,
}

fn destinations(row: DestinationRow) -> CheckResult {
    let json = serde_json::to_value(&row.r#in)?;
    check_equal("round trip", parse::<Destination>(json)?, row.r#in.clone())?;
    check_equal("field error", row.r#in.validate().to_string(), row.want)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldErrorRow {
    tree: ErrorTree,
    want: String,
    errors: String,
    warnings: String,
}

/// An expression that constructs a field error.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "camelCase", deny_unknown_fields)]
enum ErrorTree {
    Missing { paths: Vec<String> },
    Disallowed { paths: Vec<String> },
    MissingOneOf { paths: Vec<String> },
    MultipleOneOf { paths: Vec<String> },
    Generic { message: String, paths: Vec<String> },
    InvalidValue { value: String, path: String, details: Vec<String> },
    InvalidKeyName { key: String, path: String, details: Vec<String> },
    OutOfBounds { value: i64, lower: i64, upper: i64, path: String },
    ViaField { prefix: Vec<String>, of: Box<ErrorTree> },
    ViaIndex { index: usize, of: Box<ErrorTree> },
    ViaKey { key: String, of: Box<ErrorTree> },
    ViaFieldIndex { field: String, index: usize, of: Box<ErrorTree> },
    At { level: LevelName, of: Box<ErrorTree> },
    Also { of: Box<ErrorTree>, others: Vec<ErrorTree> },
}

#[derive(Clone, Copy, Deserialize)]
enum LevelName {
    Error,
    Warning,
}

fn field_errors(row: &FieldErrorRow) -> CheckResult {
    let error = build_error(&row.tree);
    check_equal("all", error.to_string(), row.want.clone())?;
    check_equal("errors", error.clone().filter(Level::Error).to_string(), row.errors.clone())?;
    check_equal("warnings", error.filter(Level::Warning).to_string(), row.warnings.clone())
}

fn build_error(tree: &ErrorTree) -> FieldError {
    match tree {
        ErrorTree::Missing { paths } => FieldError::missing(paths),
        ErrorTree::Disallowed { paths } => FieldError::disallowed(paths),
        ErrorTree::MissingOneOf { paths } => FieldError::missing_one_of(paths),
        ErrorTree::MultipleOneOf { paths } => FieldError::multiple_one_of(paths),
        ErrorTree::Generic { message, paths } => FieldError::generic(message, paths),
        ErrorTree::InvalidValue { value, path, details } => {
            FieldError::invalid_value(value, path).details(details.join(", "))
        }
        ErrorTree::InvalidKeyName { key, path, details } => {
            FieldError::invalid_key_name(key, path).details(details.join(", "))
        }
        ErrorTree::OutOfBounds { value, lower, upper, path } => {
            FieldError::out_of_bounds(value, lower, upper, path)
        }
        ErrorTree::ViaField { prefix, of } => {
            prefix.iter().rev().fold(build_error(of), |error, field| error.via_field(field))
        }
        ErrorTree::ViaIndex { index, of } => build_error(of).via_index(*index),
        ErrorTree::ViaKey { key, of } => build_error(of).via_key(key),
        ErrorTree::ViaFieldIndex { field, index, of } => build_error(of).via_field_index(field, *index),
        ErrorTree::At { level: LevelName::Error, of } => build_error(of).at(Level::Error),
        ErrorTree::At { level: LevelName::Warning, of } => build_error(of).at(Level::Warning),
        ErrorTree::Also { of, others } => {
            others.iter().map(build_error).fold(build_error(of), FieldError::also)
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HashRow {
    buckets: Vec<String>,
    owners: BTreeMap<String, String>,
    subset: Subset,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subset {
    target: String,
    n: usize,
    want: Vec<String>,
}

fn hash(row: HashRow) -> CheckResult {
    let ring = Ring::new(row.buckets);
    for (key, owner) in row.owners {
        check_equal(&key, ring.owner(&key.parse::<Key>()?), &owner)?;
    }
    let want = row.subset.want.iter().map(String::as_str).collect();
    check_equal("subset", ring.subset(&row.subset.target, row.subset.n), want)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ElectionRow {
    data: BTreeMap<String, String>,
    want: Option<Election>,
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Election {
    lease_duration_ms: u64,
    renew_deadline_ms: u64,
    retry_period_ms: u64,
    buckets: u32,
    map_lease_prefix: Option<BTreeMap<String, String>>,
}

fn leader_election(row: ElectionRow) -> CheckResult {
    let got = LeaderElectionConfig::from_data(&row.data);
    match (got, row.want, row.error) {
        (Ok(got), Some(want), None) => {
            check_equal("lease duration", got.lease_duration, Duration::from_millis(want.lease_duration_ms))?;
            check_equal("renew deadline", got.renew_deadline, Duration::from_millis(want.renew_deadline_ms))?;
            check_equal("retry period", got.retry_period, Duration::from_millis(want.retry_period_ms))?;
            check_equal("prefixes", got.lease_prefixes, want.map_lease_prefix.unwrap_or_default())?;
            check_equal("buckets", got.buckets, want.buckets)
        }
        (Err(got), None, Some(want)) => check_error(&got.to_string(), &want, &row.data),
        (got, ..) => Err(format!("got {got:?}").into()),
    }
}

/// Compares error messages. A message that quotes Go's strconv or time package is not compared literally: reknit's
/// message only has to name the key and the value.
fn check_error(got: &str, want: &str, data: &BTreeMap<String, String>) -> CheckResult {
    if !want.contains(": strconv.") && !want.contains(": time: ") {
        return check_equal("error", got, want);
    }
    let names_entry = |(key, value): (&String, &String)| {
        got.contains(&format!("{key:?}")) && got.contains(&format!("{value:?}"))
    };
    if data.iter().any(names_entry) { Ok(()) } else { Err(format!("{got:?} names no key and value").into()) }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ReferenceRow {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
    selector: Value,
    track: String,
    validate: String,
    validate_object_reference: String,
}

fn references(row: ReferenceRow) -> CheckResult {
    let reference = Reference {
        api_version: row.api_version,
        kind: row.kind,
        namespace: Some(row.namespace),
        name: Some(row.name),
        selector: parse(row.selector)?,
    };
    let track = reference.check_trackable().err().map(|error| error.to_string());
    check_equal("track", track.unwrap_or_default(), row.track)?;
    check_equal("validate", reference.validate().to_string(), row.validate)?;
    let object_reference = reference.validate_object_reference().to_string();
    check_equal("validateObjectReference", object_reference, row.validate_object_reference)
}

/// The rows use the default domain of a cluster, which is replaced by the domain that this machine is configured with.
fn service_hostname((want, (service, namespace)): (String, (String, String))) -> CheckResult {
    let want = want.replace(".cluster.local", &format!(".{}", cluster_domain()));
    check_equal("host", service_host_name(&service, &namespace), want)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UrlRow {
    r#in: String,
    #[serde(default)]
    error: bool,
    string: Option<String>,
    json: Option<String>,
    empty: Option<bool>,
    nil: Option<bool>,
    scheme: Option<String>,
    host: Option<String>,
    path: Option<String>,
    #[serde(default)]
    resolve: BTreeMap<String, String>,
}

fn urls(row: UrlRow) -> CheckResult {
    let parsed = Url::parse(&row.r#in);
    check_equal("error", parsed.is_err(), row.error)?;
    let Ok(parsed) = parsed else { return Ok(()) };
    check_equal("nil", Some(parsed.is_none()), row.nil)?;
    check_equal(
        "json",
        serde_json::to_value(&parsed)?,
        serde_json::from_str(&row.json.unwrap_or_default())?,
    )?;
    check_equal("empty", Some(parsed.as_ref().is_none_or(Url::is_empty)), row.empty)?;
    let url = parsed.unwrap_or_default();
    check_equal("string", url.to_string(), row.string.unwrap_or_default())?;
    check_equal("scheme", url.scheme(), &row.scheme.unwrap_or_default())?;
    check_equal("host", &*url.host(), &row.host.unwrap_or_default())?;
    check_equal("path", &*url.path(), &row.path.unwrap_or_default())?;
    for (reference, want) in row.resolve {
        check_equal(&reference, url.resolve(&reference.parse()?).to_string(), want)?;
    }
    Ok(())
}
