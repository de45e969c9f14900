//! What can be said about a controller beside what it watches and does.

use std::time::Duration;

use crate::limits::Limits;

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) name: String,
    pub(crate) workers: usize,
    pub(crate) finalizer: Option<String>,
    pub(crate) field_manager: Option<String>,
    pub(crate) resync: Duration,
    pub(crate) class: Option<(String, String)>,
    pub(crate) limits: Limits,
}

impl Options {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            workers: 2,
            finalizer: None,
            field_manager: None,
            resync: Duration::from_secs(10 * 60 * 60),
            class: None,
            limits: Limits::default(),
        }
    }
}
