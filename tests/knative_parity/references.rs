//! References to objects, and the addresses of destinations.

use std::collections::BTreeMap;

use reknit::knative::{Destination, Url};
use reknit_apis::{Reference, cluster_domain, service_host_name};
use serde::Deserialize;
use serde_json::Value;

use crate::{CheckResult, check_equal, parse};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ReferenceRow {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
    selector: Value,
    track: String,
    validate: String,
    validate_object_reference: String,
}

pub(crate) fn references(row: ReferenceRow) -> CheckResult {
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestinationRow {
    r#in: Destination,
    want: String,
}

pub(crate) fn destinations(row: DestinationRow) -> CheckResult {
    let json = serde_json::to_value(&row.r#in)?;
    check_equal("round trip", parse::<Destination>(json)?, row.r#in.clone())?;
    check_equal("field error", row.r#in.validate().to_string(), row.want)
}

/// The rows use the default domain of a cluster, which is replaced by the domain that this machine is configured with.
pub(crate) fn service_hostname((want, (service, namespace)): (String, (String, String))) -> CheckResult {
    let want = want.replace(".cluster.local", &format!(".{}", cluster_domain()));
    check_equal("host", service_host_name(&service, &namespace), want)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UrlRow {
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

pub(crate) fn urls(row: UrlRow) -> CheckResult {
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
