//! The number of items in the pages of a list.
//!
//! A page is read as a whole, so its size in bytes decides how much memory a list needs beside the cache. Whoever may create
//! large objects must not be able to exhaust it.

use std::time::Duration;

use bytes::Bytes;

use super::Failure;

/// The number of items in a page. Smaller pages would need more requests and save no memory.
pub(crate) const PAGE_SIZE: u32 = 500;

/// The smallest number of items in a page, after larger pages have taken too long.
const MIN_PAGE_SIZE: u32 = 50;

/// The time within which a page counts as quick. One of twice the size then takes less than the time limit of a request.
const QUICK_PAGE: Duration = Duration::from_secs(15);

/// The number of bytes up to which a page counts as small.
const SMALL_PAGE: usize = 4 << 20;

/// The maximum number of bytes in a page of several items. The rest of a larger one is not read.
pub(super) const MAX_PAGE: usize = 16 << 20;

/// The number of items of a page that was too large is divided by this.
const SHRINK: u32 = 8;

/// The number of items in the next page of a list.
pub(super) struct PageSize(u32);

impl Default for PageSize {
    fn default() -> Self {
        Self(PAGE_SIZE)
    }
}

impl PageSize {
    pub(super) fn items(&self) -> u32 {
        self.0
    }

    /// Halves the next page after one that took too long, doubles it after a quick and small one, and makes it far smaller
    /// after one with too many bytes. An outage also makes pages take too long, and says nothing about their size.
    pub(super) fn adapt(&mut self, answer: &Result<Bytes, Failure>, took: Duration) {
        self.0 = match answer {
            Err(Failure::TooLarge) => (self.0 / SHRINK).max(1),
            Err(failure) if failure.is_timeout() => (self.0 / 2).max(MIN_PAGE_SIZE.min(self.0)),
            Ok(page) if took < QUICK_PAGE && page.len() <= SMALL_PAGE => (self.0 * 2).min(PAGE_SIZE),
            _ => self.0,
        };
    }
}
