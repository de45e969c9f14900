//! A page of a list.

use std::borrow::Cow;

use reknit_apis::Key;

use super::Failure;
use crate::object::{RawObject, ScanResult, Scanner};

/// The metadata of a page of a list.
#[derive(Default)]
pub(crate) struct Page<'a> {
    pub(crate) resource_version: Cow<'a, str>,
    /// The token that requests the next page; `None` on the last page.
    pub(crate) continue_token: Option<String>,
}

/// An object, or the error if its metadata is malformed.
pub(crate) type Item<'a> = ScanResult<RawObject<'a>>;

impl<'a> Page<'a> {
    /// Reads a page and calls `on_item` with each item and its text. An item with malformed metadata does not affect
    /// the other items. If the response turns out not to be a list, `on_item` may have been called already.
    pub(crate) fn read(bytes: &'a [u8], mut on_item: impl FnMut(Item<'a>, &'a str)) -> Result<Self, Failure> {
        let (mut page, mut has_items) = (None, false);
        let read = |scanner: &mut Scanner<'a>| {
            scanner.object(|name, scanner| {
                match &*name {
                    "metadata" => page = Some(Self::scan(scanner)?),
                    "items" => {
                        has_items = true;
                        if !scanner.accept_null() {
                            scanner.array(|scanner| {
                                scanner.attempt(RawObject::scan).map(|(item, text)| on_item(item, text))
                            })?;
                        }
                    }
                    _ => drop(scanner.value()?),
                }
                Ok(())
            })
        };
        Scanner::over(text(bytes)?, read).map_err(Failure::malformed)?;
        // A response without the field `items` must not count as an empty list.
        page.filter(|_| has_items).ok_or_else(|| Failure::malformed("the response is not a list"))
    }

    fn scan(scanner: &mut Scanner<'a>) -> ScanResult<Self> {
        let mut page = Self::default();
        scanner.object(|name, scanner| {
            match &*name {
                "resourceVersion" => page.resource_version = scanner.string_or_null()?.unwrap_or_default(),
                "continue" => {
                    page.continue_token =
                        scanner.string_or_null()?.filter(|token| !token.is_empty()).map(Into::into)
                }
                _ => drop(scanner.value()?),
            }
            Ok(())
        })?;
        Ok(page)
    }
}

/// Reads a page. Returns the keys of its items, `None` for those with malformed metadata, or `None` if it is not a list.
pub fn read_page(bytes: &[u8]) -> Option<Vec<Option<Key>>> {
    let mut keys = Vec::new();
    Page::read(bytes, |item, _| keys.push(item.ok().map(|object| object.key()))).ok()?;
    Some(keys)
}

/// Converts bytes to text. UTF-8 is checked once for the whole text.
pub(super) fn text(bytes: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(bytes).map_err(Failure::malformed)
}
