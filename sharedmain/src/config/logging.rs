//! The ConfigMap `config-logging`: how much is logged.
use std::collections::BTreeMap;

use crate::{config::error::ConfigError, observe::logging::LogLevel};

const ZAP: &str = "zap-logger-config";
const PREFIX: &str = "loglevel.";

/// The levels that the map sets. Of zap's own configuration only the level is heeded; lines are always JSON, or
/// text on a terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LoggingConfig {
    level: LogLevel,
    components: BTreeMap<String, LogLevel>,
}

impl LoggingConfig {
    /// A value that is empty says nothing.
    pub(crate) fn parse(data: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let zap = data.get(ZAP).filter(|zap| !zap.trim().is_empty());
        let level = zap.map(|zap| zap_level(zap)).transpose()?.unwrap_or_default();
        let mut components = BTreeMap::new();
        for (key, value) in data {
            let component = key.strip_prefix(PREFIX).filter(|component| !component.is_empty());
            if let Some(component) = component.filter(|_| !value.is_empty()) {
                let level = value.parse().map_err(|why: String| ConfigError::new(key, value, why))?;
                components.insert(component.to_owned(), level);
            }
        }
        Ok(Self { level, components })
    }

    /// The component's own level, else that of all.
    pub(crate) fn level_of(&self, component: &str) -> LogLevel {
        self.components.get(component).copied().unwrap_or(self.level)
    }
}

#[derive(serde::Deserialize)]
struct Zap {
    #[serde(default)]
    level: String,
}

fn zap_level(text: &str) -> Result<LogLevel, ConfigError> {
    let zap: Zap = serde_json::from_str(text).map_err(|e| ConfigError::new(ZAP, text, e.to_string()))?;
    zap.level.parse().map_err(|why: String| ConfigError::new(&format!("{ZAP}.level"), &zap.level, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(data: &[(&str, &str)]) -> Result<LoggingConfig, String> {
        let data = data.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        LoggingConfig::parse(&data).map_err(|e| e.to_string())
    }

    #[test]
    fn a_components_level_wins_over_the_common_one() {
        let config = parse(&[
            ("zap-logger-config", r#"{"level": "error", "encoding": "json"}"#),
            ("loglevel.webhook", "debug"),
        ])
        .unwrap();
        assert_eq!(config.level_of("controller"), LogLevel::Error);
        assert_eq!(config.level_of("webhook"), LogLevel::Debug);
    }

    #[test]
    fn nothing_said_is_info() {
        let config =
            parse(&[("loglevel.controller", ""), ("_example", "loglevel.controller: debug")]).unwrap();
        assert_eq!(config.level_of("controller"), LogLevel::Info);
        for empty in ["", " \n"] {
            assert_eq!(parse(&[("zap-logger-config", empty)]), Ok(LoggingConfig::default()), "{empty:?}");
        }
    }

    #[test]
    fn an_error_names_key_and_value() {
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
