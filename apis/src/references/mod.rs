//! References to objects and addresses, as fields of an object.

mod destination;
mod escape;
mod reference;
mod url;

pub use self::{
    destination::Destination,
    reference::{InvalidReference, KReference, Reference},
    url::{Url, UrlError},
};
