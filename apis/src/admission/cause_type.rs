//! The kind of a fault, as Kubernetes clients read it.

/// The kind of a fault. The client of a refused request reads it in `status.details.causes` of the response.
///
/// The API server uses these types for the faults of fields (`CauseType` of metav1, `field.ErrorType` in Go).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CauseType {
    /// The value is malformed or out of bounds.
    #[default]
    Invalid,
    /// The value has the wrong JSON type.
    TypeInvalid,
    /// The field is required and not set.
    Required,
    /// The field or value is not permitted in this object or request.
    Forbidden,
    /// The value must be unique and occurs twice.
    Duplicate,
    /// The value is not one of the supported values.
    NotSupported,
    /// The object that the value refers to does not exist.
    NotFound,
    /// The value is too long.
    TooLong,
    /// The list has too many items.
    TooMany,
}

impl CauseType {
    /// Returns the `reason` of a cause, such as `FieldValueRequired`.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Required => "FieldValueRequired",
            Self::Forbidden => "FieldValueForbidden",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotSupported => "FieldValueNotSupported",
            Self::NotFound => "FieldValueNotFound",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
        }
    }

    /// The text with which the API server begins the message of such a cause.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::Required => "Required value",
            Self::Forbidden => "Forbidden",
            Self::Duplicate => "Duplicate value",
            Self::NotSupported => "Unsupported value",
            Self::NotFound => "Not found",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
        }
    }
}
