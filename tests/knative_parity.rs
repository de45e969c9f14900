//! Comparison with the results of Knative's Go library, row by row: see vectors/README.md.
//!
//! `KNATIVE_VECTORS` names another file to compare with.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt::Debug,
    io::{Write, stdout},
    path::Path,
    time::Duration,
};

use reknit_apis::{
    Condition, ConditionSet, ConditionStatus, Destination, DuckShaped, DuckStatus, FieldError, Key, Level,
    Reference, Url, child_name, cluster_domain, example_checksum, kind_to_resource, service_host_name,
};
use reknit_reconciler::leader::{LeaderElectionConfig, Ring};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

type Checked = Result<(), Box<dyn Error>>;

type Check = fn(Value) -> Checked;

/// The comparison of one row, for each key of the file.
const CHECKS: [(&str, Check); 11] = [
    ("childNames", |row| child_names(read(row)?)),
    ("conditions", |row| conditions(read(row)?)),
    ("destinations", |row| destinations(read(row)?)),
    ("exampleChecksums", |row| pair(read(row)?, example_checksum)),
    ("fieldErrors", |row| field_errors(&read(row)?)),
    ("hash", |row| hash(read(row)?)),
    ("kindToResource", |row| pair(read(row)?, kind_to_resource)),
    ("leaderElection", |row| leader_election(read(row)?)),
    ("references", |row| references(read(row)?)),
    ("serviceHostname", |row| service_hostname(read(row)?)),
    ("urls", |row| urls(read(row)?)),
];

#[test]
fn every_row_agrees_with_knative() -> Checked {
    let vectors = vectors()?;
    let (counts, wrong) = compare(&vectors);
    for (key, rows) in counts {
        // Not by `println!`, whose output a passing test does not show.
        writeln!(stdout(), "knative parity: {rows:4} rows of {key}")?;
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

#[test]
fn a_key_that_is_unknown_or_has_no_rows_is_a_difference() -> Checked {
    let mut vectors = committed()?;
    vectors["unheardOf"] = json!([1]);
    vectors["urls"] = json!([]);
    vectors.as_object_mut().unwrap().remove("hash");
    let (_, wrong) = compare(&vectors);
    assert_eq!(wrong, ["hash: no rows", "unheardOf: nothing compares this key", "urls: no rows"]);
    Ok(())
}

#[test]
fn every_expectation_of_a_row_is_compared() -> Checked {
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
    let committed = committed()?;
    for pointer in expectations {
        let mut vectors = committed.clone();
        let value = vectors.pointer_mut(pointer).ok_or(pointer)?;
        *value = match value {
            Value::Bool(so) => json!(!*so),
            Value::String(text) => json!(format!("{text}!")),
            Value::Number(_) => json!(7),
            _ => json!({"other": "x"}),
        };
        assert_eq!(compare(&vectors).1.len(), 1, "{pointer}");
    }
    Ok(())
}

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/knative.json");

fn committed() -> Result<Value, Box<dyn Error>> {
    load(COMMITTED.as_ref())
}

fn vectors() -> Result<Value, Box<dyn Error>> {
    let path = std::env::var_os("KNATIVE_VECTORS").unwrap_or_else(|| COMMITTED.into());
    load(path.as_ref())
}

fn load(path: &Path) -> Result<Value, Box<dyn Error>> {
    let named = |error: &dyn Error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    Ok(serde_json::from_str(&text).map_err(|error| named(&error))?)
}

/// Returns the number of compared rows for each key, and the differences.
fn compare(vectors: &Value) -> (BTreeMap<&str, usize>, Vec<String>) {
    let checks = BTreeMap::from(CHECKS);
    let (mut counts, mut wrong) = (BTreeMap::new(), Vec::new());
    let known = checks.keys().copied();
    let given = vectors.as_object().into_iter().flat_map(|all| all.keys().map(String::as_str));
    for key in known.chain(given).collect::<BTreeSet<_>>() {
        let Some(check) = checks.get(key) else {
            wrong.push(format!("{key}: nothing compares this key"));
            continue;
        };
        let rows = rows(&vectors[key]);
        if rows.is_empty() {
            wrong.push(format!("{key}: no rows"));
        }
        counts.insert(key, rows.len());
        for (number, row) in rows.into_iter().enumerate() {
            if let Err(error) = check(row.clone()) {
                wrong.push(format!("{key}, row {number}: {error}\n    in {row}"));
            }
        }
    }
    (counts, wrong)
}

/// The rows of a list, or the fields of an object as pairs of input and output.
fn rows(value: &Value) -> Vec<Value> {
    match value {
        Value::Array(rows) => rows.clone(),
        Value::Object(pairs) => pairs.iter().map(|(input, output)| json!([input, output])).collect(),
        _ => Vec::new(),
    }
}

fn read<T: DeserializeOwned>(row: Value) -> serde_json::Result<T> {
    serde_json::from_value(row)
}

fn same<T: PartialEq + Debug>(what: &str, got: T, want: T) -> Checked {
    if got == want { Ok(()) } else { Err(format!("{what}: got {got:?}, want {want:?}").into()) }
}

fn pair((input, want): (String, String), port: impl Fn(&str) -> String) -> Checked {
    same("output", port(&input), want)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChildName {
    parent: String,
    suffix: String,
    want: String,
}

fn child_names(row: ChildName) -> Checked {
    same("name", child_name(&row.parent, &row.suffix), row.want)
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

fn conditions(row: ConditionRow) -> Checked {
    let dependents = row.dependents.into_iter().map(|name| &*name.leak());
    let dependents = dependents.collect::<Vec<&'static str>>().leak();
    let set = match &*row.set {
        "living" => ConditionSet::living(dependents),
        "batch" => ConditionSet::batch(dependents),
        other => return Err(format!("unknown set {other}").into()),
    };
    let mut status = Status::default();
    for (number, step) in row.steps.into_iter().enumerate() {
        take(&set, &mut status, step).map_err(|error| format!("step {number}: {error}"))?;
    }
    Ok(())
}

fn take(set: &ConditionSet, status: &mut Status, step: Step) -> Checked {
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
        "clear" => error = conditions.clear(&kind).err().map(|error| error.to_string()).unwrap_or_default(),
        "set" => conditions.set(Condition {
            kind,
            status: step.status,
            severity: (&*step.severity).into(),
            reason: Some(reason),
            message: Some(message),
            last_transition_time: None,
        }),
        other => return Err(format!("unknown operation {other}").into()),
    }
    same("error", error, step.error)?;
    same("happy", conditions.is_happy(), step.happy)?;
    let time = |all: &[Condition], kind: &str| {
        all.iter().find(|one| one.kind == kind).map(|one| one.last_transition_time.clone())
    };
    let now = &status.duck.conditions;
    let moved = now.iter().filter(|one| time(&before, &one.kind) != time(now, &one.kind));
    same("transitioned", moved.map(|one| one.kind.clone()).collect(), step.transitioned)?;
    let timeless = now.iter().map(|one| Condition { last_transition_time: None, ..one.clone() });
    let written = serde_json::to_value(timeless.collect::<Vec<_>>())?;
    same("conditions", written, if step.want.is_null() { json!([]) } else { step.want })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DestinationRow {
    r#in: Destination,
    want: String,
}

fn destinations(row: DestinationRow) -> Checked {
    let written = serde_json::to_value(&row.r#in)?;
    same("round trip", read::<Destination>(written)?, row.r#in.clone())?;
    same("field error", row.r#in.validate().to_string(), row.want)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldErrorRow {
    tree: Tree,
    want: String,
    errors: String,
    warnings: String,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "camelCase", deny_unknown_fields)]
enum Tree {
    Missing { paths: Vec<String> },
    Disallowed { paths: Vec<String> },
    MissingOneOf { paths: Vec<String> },
    MultipleOneOf { paths: Vec<String> },
    Generic { message: String, paths: Vec<String> },
    InvalidValue { value: String, path: String, details: Vec<String> },
    InvalidKeyName { key: String, path: String, details: Vec<String> },
    OutOfBounds { value: i64, lower: i64, upper: i64, path: String },
    ViaField { prefix: Vec<String>, of: Box<Tree> },
    ViaIndex { index: usize, of: Box<Tree> },
    ViaKey { key: String, of: Box<Tree> },
    ViaFieldIndex { field: String, index: usize, of: Box<Tree> },
    At { level: LevelName, of: Box<Tree> },
    Also { of: Box<Tree>, others: Vec<Tree> },
}

#[derive(Clone, Copy, Deserialize)]
enum LevelName {
    Error,
    Warning,
}

fn field_errors(row: &FieldErrorRow) -> Checked {
    let error = build(&row.tree);
    same("all", error.to_string(), row.want.clone())?;
    same("errors", error.clone().filter(Level::Error).to_string(), row.errors.clone())?;
    same("warnings", error.filter(Level::Warning).to_string(), row.warnings.clone())
}

fn build(tree: &Tree) -> FieldError {
    match tree {
        Tree::Missing { paths } => FieldError::missing(paths),
        Tree::Disallowed { paths } => FieldError::disallowed(paths),
        Tree::MissingOneOf { paths } => FieldError::missing_one_of(paths),
        Tree::MultipleOneOf { paths } => FieldError::multiple_one_of(paths),
        Tree::Generic { message, paths } => FieldError::generic(message, paths),
        Tree::InvalidValue { value, path, details } => {
            FieldError::invalid_value(value, path).details(details.join(", "))
        }
        Tree::InvalidKeyName { key, path, details } => {
            FieldError::invalid_key_name(key, path).details(details.join(", "))
        }
        Tree::OutOfBounds { value, lower, upper, path } => {
            FieldError::out_of_bounds(value, lower, upper, path)
        }
        Tree::ViaField { prefix, of } => {
            prefix.iter().rev().fold(build(of), |error, field| error.via_field(field))
        }
        Tree::ViaIndex { index, of } => build(of).via_index(*index),
        Tree::ViaKey { key, of } => build(of).via_key(key),
        Tree::ViaFieldIndex { field, index, of } => build(of).via_field_index(field, *index),
        Tree::At { level: LevelName::Error, of } => build(of).at(Level::Error),
        Tree::At { level: LevelName::Warning, of } => build(of).at(Level::Warning),
        Tree::Also { of, others } => others.iter().map(build).fold(build(of), FieldError::also),
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

fn hash(row: HashRow) -> Checked {
    let ring = Ring::new(row.buckets);
    for (key, owner) in row.owners {
        same(&key, ring.owner(&key.parse::<Key>()?), &owner)?;
    }
    let want = row.subset.want.iter().map(String::as_str).collect();
    same("subset", ring.subset(&row.subset.target, row.subset.n), want)
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

fn leader_election(row: ElectionRow) -> Checked {
    let got = LeaderElectionConfig::from_data(&row.data);
    match (got, row.want, row.error) {
        (Ok(got), Some(want), None) => {
            same("lease duration", got.lease_duration, Duration::from_millis(want.lease_duration_ms))?;
            same("renew deadline", got.renew_deadline, Duration::from_millis(want.renew_deadline_ms))?;
            same("retry period", got.retry_period, Duration::from_millis(want.retry_period_ms))?;
            same("prefixes", got.lease_prefixes, want.map_lease_prefix.unwrap_or_default())?;
            same("buckets", got.buckets, want.buckets)
        }
        (Err(got), None, Some(want)) => same_error(&got.to_string(), &want, &row.data),
        (got, ..) => Err(format!("got {got:?}").into()),
    }
}

/// Compares error messages. Where the words are those of Go's strconv or time, reknit's message only has to name the
/// key and the value.
fn same_error(got: &str, want: &str, data: &BTreeMap<String, String>) -> Checked {
    if !want.contains(": strconv.") && !want.contains(": time: ") {
        return same("error", got, want);
    }
    let named = |(key, value): (&String, &String)| {
        got.contains(&format!("{key:?}")) && got.contains(&format!("{value:?}"))
    };
    if data.iter().any(named) { Ok(()) } else { Err(format!("{got:?} names no key and value").into()) }
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

fn references(row: ReferenceRow) -> Checked {
    let reference = Reference {
        api_version: row.api_version,
        kind: row.kind,
        namespace: Some(row.namespace),
        name: Some(row.name),
        selector: read(row.selector)?,
    };
    let track = reference.check_trackable().err().map(|error| error.to_string());
    same("track", track.unwrap_or_default(), row.track)?;
    same("validate", reference.validate().to_string(), row.validate)?;
    let object_reference = reference.validate_object_reference().to_string();
    same("validateObjectReference", object_reference, row.validate_object_reference)
}

/// The rows use the default domain. The domain of this machine replaces it in the expectation and in the result.
fn service_hostname((want, (service, namespace)): (String, (String, String))) -> Checked {
    let want = want.replace(".cluster.local", &format!(".{}", cluster_domain()));
    same("host", service_host_name(&service, &namespace), want)
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

fn urls(row: UrlRow) -> Checked {
    let parsed = Url::parse(&row.r#in);
    same("error", parsed.is_err(), row.error)?;
    let Ok(parsed) = parsed else { return Ok(()) };
    same("nil", Some(parsed.is_none()), row.nil)?;
    same("json", serde_json::to_value(&parsed)?, serde_json::from_str(&row.json.unwrap_or_default())?)?;
    same("empty", Some(parsed.as_ref().is_none_or(Url::is_empty)), row.empty)?;
    let url = parsed.unwrap_or_default();
    same("string", url.to_string(), row.string.unwrap_or_default())?;
    same("scheme", url.scheme(), &row.scheme.unwrap_or_default())?;
    same("host", &*url.host(), &row.host.unwrap_or_default())?;
    same("path", &*url.path(), &row.path.unwrap_or_default())?;
    for (reference, want) in row.resolve {
        same(&reference, url.resolve(&reference.parse()?).to_string(), want)?;
    }
    Ok(())
}
