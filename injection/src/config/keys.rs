//! Keys of a ConfigMap that are probably misspelt.

use std::fmt::Write;

use k8s_openapi::api::core::v1::ConfigMap;

use super::EXAMPLE_KEY;

/// Logs one warning for the keys of a ConfigMap that are not known, and each of which resembles a known one. A known
/// key that ends in `*` is a prefix. Other unknown keys are not logged, since they may be those of other programs.
pub fn warn_of_misspelt_keys(config_map: &ConfigMap, known: &[&str]) {
    let mut keys = String::new();
    for key in config_map.data.iter().flatten().map(|(key, _)| key.as_str()) {
        if let Some(resembled) = misspelt(key, known) {
            let separator = if keys.is_empty() { "" } else { ", " };
            let _ = write!(keys, "{separator}{key} (is {resembled} meant?)");
        }
    }
    if !keys.is_empty() {
        tracing::warn!(
            config_map = config_map.metadata.name,
            version = config_map.metadata.resource_version,
            keys,
            "unknown keys of a ConfigMap have no effect"
        );
    }
}

/// The known key that a key resembles which is not known itself.
fn misspelt<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let is_known = |known: &&str| match known.strip_suffix('*') {
        Some(prefix) => key.starts_with(prefix),
        None => key == *known,
    };
    if key == EXAMPLE_KEY || known.iter().any(is_known) {
        return None;
    }
    let edits = |known: &&'a str| Some((edits(key, known)?, *known));
    known.iter().filter_map(edits).min().map(|(_, known)| known)
}

/// The number of edits that make a key a known one, without regard to case and separators. `None` if they are too many for
/// a slip. Of a prefix, the beginning of the key is compared, up to the same separator.
fn edits(key: &str, known: &str) -> Option<usize> {
    let (key, known) = match known.strip_suffix('*') {
        Some(prefix) => {
            let end = prefix.chars().next_back()?;
            (key.split_inclusive(end).next().filter(|start| start.ends_with(end))?, prefix)
        }
        None => (key, known),
    };
    let plain = |text: &str| text.replace(['-', '_', '.'], "").to_lowercase();
    let (key, known) = (plain(key), plain(known));
    let edits = strsim::osa_distance(&key, &known);
    (edits * 5 <= known.chars().count()).then_some(edits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Log;

    const KNOWN: &[&str] =
        &["record-failures", "metrics-protocol", "console", "tracing-sampling-rate", "loglevel.*"];

    #[test]
    fn a_key_that_resembles_a_known_one_is_misspelt_and_others_are_not() {
        for (key, known) in [
            ("record-failure", Some("record-failures")),
            ("recordFailures", Some("record-failures")),
            ("metric-protocol", Some("metrics-protocol")),
            ("metrics.protocol", Some("metrics-protocol")),
            ("tracing-sample-rate", Some("tracing-sampling-rate")),
            ("consoel", Some("console")),
            ("log-level.controller", Some("loglevel.*")),
            ("loglevels.controller", Some("loglevel.*")),
            ("loglevel.any", None),
            ("_example", None),
            ("console", None),
            ("request-metrics-protocol", None),
            ("profiling.enable", None),
            ("loglevel", None),
            ("other", None),
        ] {
            assert_eq!(misspelt(key, KNOWN), known, "{key}");
        }
    }

    #[test]
    fn one_warning_names_all_misspelt_keys_of_a_config_map() {
        let (log, mut config_map) = (Log::start(), ConfigMap::default());
        let keys = ["console", "record-failure", "mettrics-protocol", "other"];
        config_map.data = Some(keys.map(|key| (key.to_owned(), String::new())).into());
        warn_of_misspelt_keys(&config_map, KNOWN);
        let lines = log.lines("WARN");
        let [line] = &lines[..] else { panic!("{lines:?}") };
        for text in
            ["record-failure (is record-failures meant?)", "mettrics-protocol (is metrics-protocol meant?)"]
        {
            assert!(line.contains(text), "{line}");
        }
        assert!(!line.contains("other"), "{line}");
    }
}
