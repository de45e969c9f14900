//! The ConfigMap `config-logging`: log levels.
use std::collections::BTreeMap;

use tracing::level_filters::LevelFilter;

use super::error::invalid;

const ZAP_KEY: &str = "zap-logger-config";
const COMPONENT_PREFIX: &str = "loglevel.";
/// The keys of the ConfigMap. Another component may have any name.
pub(crate) const KEYS: &[&str] = &[ZAP_KEY, "loglevel.*"];

/// The log levels of all components. Of zap's configuration, only the level is used: lines are always text on a
/// terminal, and JSON elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LoggingConfig {
    common_level: Option<LevelFilter>,
    components: BTreeMap<String, LevelFilter>,
}

impl LoggingConfig {
    /// Parses the data of the ConfigMap. Spaces around a value do not count, and an empty value counts as unset.
    pub(crate) fn parse(data: &BTreeMap<String, String>) -> Result<Self, String> {
        let zap = data.get(ZAP_KEY).filter(|zap| !zap.trim().is_empty());
        let common_level = zap.map(|zap| parse_zap_level(zap)).transpose()?;
        let mut components = BTreeMap::new();
        for (key, value) in data {
            let component = key.strip_prefix(COMPONENT_PREFIX).filter(|component| !component.is_empty());
            if let Some(component) = component.filter(|_| !value.trim().is_empty()) {
                components.insert(component.to_owned(), parse_level(key, value)?);
            }
        }
        Ok(Self { common_level, components })
    }

    /// Returns the level of the component, or else the common level, or else info.
    pub(crate) fn level_of(&self, component: &str) -> LevelFilter {
        self.components.get(component).copied().or(self.common_level).unwrap_or(LevelFilter::INFO)
    }
}

#[derive(serde::Deserialize)]
struct ZapConfig {
    #[serde(default)]
    level: String,
}

fn parse_zap_level(text: &str) -> Result<LevelFilter, String> {
    let zap: ZapConfig = serde_json::from_str(text).map_err(|e| invalid(ZAP_KEY, text, &e.to_string()))?;
    parse_level(&format!("{ZAP_KEY}.level"), &zap.level)
}

/// Parses a level of zap. An empty level is info. At the levels above `error`, only the line that ends the process is
/// written.
fn parse_level(key: &str, value: &str) -> Result<LevelFilter, String> {
    match value.trim().to_ascii_lowercase().as_str() {
        "debug" => Ok(LevelFilter::DEBUG),
        "info" | "" => Ok(LevelFilter::INFO),
        "warn" => Ok(LevelFilter::WARN),
        "error" => Ok(LevelFilter::ERROR),
        "dpanic" | "panic" | "fatal" => Ok(LevelFilter::OFF),
        _ => Err(invalid(key, value, "not one of debug, info, warn, error, dpanic, panic, fatal")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(data: &[(&str, &str)]) -> Result<LoggingConfig, String> {
        let data = data.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        LoggingConfig::parse(&data).map_err(|e| e.to_string())
    }

    #[test]
    fn levels_are_those_of_zap() {
        for (text, level) in [
            ("debug", LevelFilter::DEBUG),
            ("INFO", LevelFilter::INFO),
            ("warn", LevelFilter::WARN),
            ("error", LevelFilter::ERROR),
            ("fatal", LevelFilter::OFF),
            ("debug\n", LevelFilter::DEBUG),
        ] {
            assert_eq!(parse_level("key", text), Ok(level));
        }
        assert!(parse_level("key", "verbose").is_err());
    }

    #[test]
    fn the_level_of_a_component_overrides_the_common_one() {
        let config = parse(&[
            ("zap-logger-config", r#"{"level": "error", "encoding": "json"}"#),
            ("loglevel.webhook", "debug"),
        ])
        .unwrap();
        assert_eq!(config.level_of("controller"), LevelFilter::ERROR);
        assert_eq!(config.level_of("webhook"), LevelFilter::DEBUG);
    }

    #[test]
    fn the_default_level_is_info() {
        let config =
            parse(&[("loglevel.controller", ""), ("_example", "loglevel.controller: debug")]).unwrap();
        assert_eq!(config.level_of("controller"), LevelFilter::INFO);
        for empty in ["", " \n"] {
            assert_eq!(parse(&[("zap-logger-config", empty)]), Ok(LoggingConfig::default()), "{empty:?}");
        }
    }

    #[test]
    fn an_error_has_key_and_value() {
        assert_eq!(
            parse(&[("loglevel.controller", "loud")]).unwrap_err(),
            "loglevel.controller: \"loud\" is not one of debug, info, warn, error, dpanic, panic, fatal"
        );
        assert!(
            parse(&[("zap-logger-config", "{")]).unwrap_err().starts_with("zap-logger-config: \"{\" is ")
        );
        let level = parse(&[("zap-logger-config", r#"{"level": "loud"}"#)]).unwrap_err();
        assert!(level.starts_with("zap-logger-config.level: \"loud\" is not "), "{level}");
    }
}
