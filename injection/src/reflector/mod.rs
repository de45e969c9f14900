//! The reflector: keeps a cache in step with the API server by a list and watches, and recovers from failures.
//!
//! A watch that ends or breaks is resumed after the last version that it reported. A new list comes first if that is not
//! possible:
//!
//! - the server has compacted the version (410);
//! - the resource was unknown for a while (404);
//! - this process may list but not watch;
//! - several watches in a row sent no event;
//! - the server's resourceVersions are lower than before, as after a restore from a backup. Such a server would accept the watch
//!   and send nothing. So before a watch is resumed that broke or sent nothing, a list of one item shows the version.
//!
//! The cached objects stay meanwhile, even if the server does not know the resource any more: they may still exist, since
//! a CustomResourceDefinition may only have stopped serving the version.

mod backoff;
mod error;
mod page;
mod requests;
#[cfg(test)]
mod tests;
mod watch;

use std::{mem, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use self::{backoff::Backoff, requests::Requests, watch::Line};
pub(crate) use self::{
    error::Failure,
    page::Page,
    requests::{PAGE, fetch},
};
use crate::{
    cache::Cache,
    client::Transport,
    informer::cached::Cached,
    object::{Malformed, ResourceVersion},
};

/// The range of the time after which the server ends a watch, in seconds.
const WATCH_SECONDS: std::ops::Range<u64> = 240..290;

/// The time without an event after which a watch is cut. Bookmarks arrive every minute, and a broken connection does not
/// show otherwise. A server that sends no bookmarks gets this time after it should have ended the watch.
const SILENCE: Duration = Duration::from_secs(120);

/// The number of watches in a row without an expected event after which a new list is read.
const MAX_EMPTY_WATCHES: u32 = 3;

/// The time after which an open watch counts as healthy.
const HEALTHY: Duration = Duration::from_secs(10);

/// The time within which a resource is found that is installed later.
const NOT_FOUND_BACKOFF: Duration = Duration::from_secs(2);

/// The number of lists in a row with 404 after which the resource counts as not served. A single 404 may come from an API
/// server that is starting.
const MAX_NOT_FOUND: u32 = 3;

/// The interval between warnings about one informer.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Runs the reflector of a cache. Never returns; the informer aborts it when it is dropped.
pub(crate) async fn run<K: Cached>(cache: Arc<Cache<K>>, transport: Transport) {
    let requests = Requests::new(transport, &cache.kind, &cache.selection, K::metadata_api());
    let mut reflector = Reflector {
        cache,
        requests,
        version: None,
        may_be_restored: false,
        empty_watches: 0,
        has_bookmarks: false,
        not_found: 0,
        has_expired: false,
        without_pages: false,
        backoff: Backoff::default(),
        warned: None,
    };
    loop {
        if let Err(failure) = reflector.step().await {
            reflector.recover(failure).await;
        }
    }
}

struct Reflector<K> {
    cache: Arc<Cache<K>>,
    requests: Requests,
    /// The version up to which everything is in the cache; `None` if a list comes next.
    version: Option<String>,
    /// True if the server may have been restored from a backup since the last watch.
    may_be_restored: bool,
    /// The number of watches in a row without an expected event.
    empty_watches: u32,
    /// True if a watch has sent a bookmark since the last list.
    has_bookmarks: bool,
    /// The number of lists in a row with 404.
    not_found: u32,
    /// True if the last failure was an expired version.
    has_expired: bool,
    /// True if the next list is read in one piece, since the version expired while the pages of the last one were read.
    without_pages: bool,
    backoff: Backoff,
    warned: Option<Instant>,
}

/// The end of a watch without an error event.
#[derive(PartialEq)]
enum WatchEnd {
    /// The watch had sent events.
    Normal,
    /// The watch had sent nothing, and ended in time.
    Quiet,
    /// The watch had sent nothing, not even a bookmark, and ended early or was cut.
    Empty,
    /// The connection broke.
    Broken,
}

impl<K: Cached> Reflector<K> {
    async fn step(&mut self) -> Result<(), Failure> {
        if self.version.is_none() {
            return self.list().await;
        }
        if self.may_be_restored && self.is_restored().await? {
            tracing::warn!(
                informer = self.cache.name,
                "the API server's store is younger than before, listing again"
            );
            self.version = None;
            return Ok(());
        }
        self.may_be_restored = true;
        let opened = Instant::now();
        let end = self.watch().await;
        if opened.elapsed() >= HEALTHY {
            self.backoff.reset();
        }
        let end = end?;
        self.empty_watches = match end {
            WatchEnd::Normal | WatchEnd::Quiet => 0,
            WatchEnd::Empty => self.empty_watches + 1,
            WatchEnd::Broken => self.empty_watches,
        };
        if self.empty_watches >= MAX_EMPTY_WATCHES {
            return Err(Failure::NoEvents(MAX_EMPTY_WATCHES));
        }
        self.may_be_restored = end != WatchEnd::Normal;
        if self.may_be_restored && opened.elapsed() < HEALTHY {
            sleep(self.backoff.next(Duration::MAX)).await;
        }
        Ok(())
    }

    async fn list(&mut self) -> Result<(), Failure> {
        self.cache.metrics.lists.inc();
        self.cache.start_list();
        let limit = if mem::take(&mut self.without_pages) { None } else { Some(PAGE) };
        let (version, mut next) = self.page(limit, None).await?;
        while next.is_some() {
            let page = self.page(limit, next).await;
            self.without_pages = matches!(page, Err(Failure::Expired(_)));
            (_, next) = page?;
        }
        self.cache.finish_list(&version);
        tracing::debug!(informer = self.cache.name, version, "listed");
        self.version = Some(version);
        (self.may_be_restored, self.empty_watches, self.has_bookmarks) = (false, 0, false);
        self.not_found = 0;
        Ok(())
    }

    /// Reads a page into the cache, and returns the version of the list and the token of the next page.
    async fn page(
        &self,
        limit: Option<u32>,
        after: Option<String>,
    ) -> Result<(String, Option<String>), Failure> {
        let bytes = self.requests.page(limit, after).await?;
        self.cache.progress.attempted();
        let page = Page::read(&bytes, |item, _| match item {
            Ok(raw) => self.cache.apply_listed(&raw),
            Err(error) => self.unreadable(error),
        })?;
        Ok((page.resource_version.into_owned(), page.continue_token))
    }

    /// Returns true if the server's version is below the highest one seen.
    async fn is_restored(&self) -> Result<bool, Failure> {
        let seen = self.cache.read(|store| store.highest().to_owned());
        let bytes = self.requests.page(Some(1), None).await?;
        self.cache.progress.attempted();
        let page = Page::read(&bytes, |_, _| ())?;
        let (now, before) = (ResourceVersion::parse(&page.resource_version), ResourceVersion::parse(&seen));
        Ok(now.is_some() && now < before)
    }

    /// Opens a watch and applies its events until it ends.
    async fn watch(&mut self) -> Result<WatchEnd, Failure> {
        self.cache.metrics.watches.inc();
        let from = self.version.clone().unwrap_or_default();
        let lasting = Duration::from_secs(rand::random_range(WATCH_SECONDS));
        let opened = Instant::now();
        let mut lines = self.requests.watch(&from, lasting).await?;
        self.cache.progress.attempted();
        let mut has_events = false;
        loop {
            let overdue = lasting.saturating_sub(opened.elapsed()) + SILENCE;
            let limit = if self.has_bookmarks { SILENCE } else { overdue };
            let line = timeout(limit, lines.next()).await.unwrap_or(Err(Failure::Timeout(limit)));
            let line = match line.and_then(|line| line.map(Line::read).transpose()) {
                Ok(Some(line)) => line,
                Ok(None) if has_events => return Ok(WatchEnd::Normal),
                Ok(None) if opened.elapsed() >= lasting => return Ok(WatchEnd::Quiet),
                Ok(None) => return Ok(WatchEnd::Empty),
                Err(failure) => return Ok(self.broken(&failure, has_events)),
            };
            self.cache.progress.attempted();
            self.event(line)?;
            self.backoff.reset();
            has_events = true;
        }
    }

    /// Logs a broken connection at debug level. A failure to open the next one is logged as a warning.
    fn broken(&self, failure: &Failure, has_events: bool) -> WatchEnd {
        self.cache.metrics.failures.inc();
        tracing::debug!(informer = self.cache.name, why = %failure, "the watch broke");
        match failure {
            Failure::Timeout(_) | Failure::Malformed(_) if !has_events => WatchEnd::Empty,
            _ => WatchEnd::Broken,
        }
    }

    fn event(&mut self, line: Line<'_>) -> Result<(), Failure> {
        self.cache.metrics.events.inc();
        if line.event == "ERROR" {
            return Err(line.error());
        }
        let raw = match line.object {
            Ok(raw) => raw,
            Err(error) => {
                self.unreadable(error);
                return Ok(());
            }
        };
        match &*line.event {
            "ADDED" | "MODIFIED" => self.cache.apply_watched(&raw),
            "DELETED" => self.cache.apply_deletion(&raw),
            "BOOKMARK" => {
                self.has_bookmarks = true;
                self.cache.apply_bookmark(raw.resource_version());
            }
            other => {
                tracing::debug!(informer = self.cache.name, event = other, "skipping an unknown watch event")
            }
        }
        if !raw.resource_version().is_empty() {
            raw.resource_version().clone_into(self.version.get_or_insert_default());
        }
        Ok(())
    }

    fn unreadable(&self, why: Malformed) {
        tracing::error!(informer = self.cache.name, %why, "skipping an object whose metadata cannot be read");
    }

    /// Decides between a new list and the last version, logs the failure, and waits.
    async fn recover(&mut self, failure: Failure) {
        self.cache.metrics.failures.inc();
        let was_expired = mem::replace(&mut self.has_expired, matches!(failure, Failure::Expired(_)));
        // List at once after a first 410, and also after an outage: a server that answers 410 can serve a list.
        let expired = self.has_expired && (!was_expired || self.backoff.is_fresh());
        let wait = match &failure {
            _ if expired => self.backoff.next(Duration::ZERO),
            Failure::NotFound(_) => self.backoff.next(NOT_FOUND_BACKOFF),
            _ => self.backoff.next(Duration::MAX),
        };
        let listing = self.version.is_none();
        self.not_found =
            if listing && matches!(failure, Failure::NotFound(_)) { self.not_found + 1 } else { 0 };
        if self.not_found >= MAX_NOT_FOUND {
            self.cache.progress.lost(&self.explain(&failure));
        }
        // The same request would fail again. A process that may not watch learns of changes by lists, as in client-go.
        let is_refused = matches!(failure, Failure::Refused { code: 400 | 403 | 405 | 422 | 501, .. });
        let is_lost = matches!(
            failure,
            Failure::Expired(_) | Failure::NotFound(_) | Failure::Watch(_) | Failure::NoEvents(_)
        );
        if is_refused || is_lost {
            self.version = None;
        }
        self.cache.progress.attempted();
        // Versions expire. Only a second expired version in a row is worth a warning.
        self.log(&failure, expired);
        sleep(wait).await;
    }

    fn explain(&self, failure: &Failure) -> String {
        failure.explain(&self.cache.kind, self.cache.selection.in_namespace())
    }

    fn log(&mut self, failure: &Failure, quietly: bool) {
        let why = self.explain(failure);
        self.cache.progress.stuck(&why);
        let has_warned = self.warned.is_some_and(|when| when.elapsed() < WARNING_INTERVAL);
        if quietly || has_warned {
            tracing::debug!(informer = self.cache.name, why, "list or watch failed, retrying");
        } else {
            tracing::warn!(
                informer = self.cache.name,
                why,
                "list or watch failed, retrying; this warning is repeated once a minute"
            );
            self.warned = Some(Instant::now());
        }
    }
}
