//! The texts of field errors.

use reknit_apis::{FieldError, Level};
use serde::Deserialize;

use crate::{CheckResult, check_equal};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FieldErrorRow {
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

pub(crate) fn field_errors(row: &FieldErrorRow) -> CheckResult {
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
