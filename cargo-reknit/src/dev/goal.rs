//! The state of an example that `--once` waits for.

use std::{fmt, str::FromStr};

use anyhow::{Error, Result, bail};

/// An example, and the status of its condition `Ready` or `Available`. Parsed from `KIND/NAME`, whose status is
/// `True`, or `KIND/NAME=STATUS`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Goal {
    pub(crate) example: String,
    pub(crate) status: String,
}

impl Goal {
    pub(crate) fn new(example: impl Into<String>, status: impl Into<String>) -> Self {
        Self { example: example.into(), status: status.into() }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.status {
            "True" => f.write_str(&self.example),
            status => write!(f, "{}={status}", self.example),
        }
    }
}

impl FromStr for Goal {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (example, status) = text.split_once('=').unwrap_or((text, "True"));
        if !example.contains('/') {
            bail!("{example:?} is not a Kind and a name, as in Greeting/hello");
        }
        if !["True", "False", "Unknown"].contains(&status) {
            bail!("{status:?} is not the status of a condition: True, False or Unknown");
        }
        Ok(Self::new(example, status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_a_ready_example_unless_it_names_another_status() {
        let goal = |text: &str| text.parse::<Goal>();
        assert_eq!(goal("Note/a").unwrap(), Goal::new("Note/a", "True"));
        assert_eq!(goal("Note/a=False").unwrap(), Goal::new("Note/a", "False"));
        assert_eq!(goal("Note/a=False").unwrap().to_string(), "Note/a=False");
        assert!(goal("Note").unwrap_err().to_string().contains("not a Kind and a name"));
        assert!(goal("Note/a=Ready").unwrap_err().to_string().contains("not the status of a condition"));
    }
}
