//! The reflector: keeps a cache up to date by a list and watches, and recovers from failures. If several namespaces are
//! selected, each has a reflector of its own.
//!
//! A watch that ends or breaks is resumed after the last version that it reported. Before the next watch, the reflector
//! lists again if:
//!
//! - the server has compacted the version (410);
//! - the server did not know the resource (404);
//! - this process is permitted to list but not to watch;
//! - several watches in a row sent no event, or could not be opened, as behind a proxy that holds back the answers;
//! - the server has told no version, as some aggregated API servers do: a watch without one reports no deletion that came
//!   before it;
//! - the server's resourceVersions are lower than before, as after a restore from a backup. Such a server would accept
//!   the watch and send nothing. So before the reflector resumes a watch that broke or sent nothing, it lists one item
//!   to learn the server's version. If the server fails to list that item (500), such as one that cannot be converted or
//!   decrypted any more, the watch is resumed all the same: it reports the other objects.
//!
//! Until the new list, the objects stay cached, even if the server does not know the resource any more: the objects may
//! still exist, since a CustomResourceDefinition may only have stopped serving the version.

mod backoff;
mod error;
mod lines;
mod page;
mod page_size;
mod requests;
#[cfg(test)]
mod tests;

use std::{mem, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, future::join_all};
use reknit_apis::internal::random_range;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::{
    backoff::Backoff,
    lines::{Line, Lines},
    page_size::PageSize,
    requests::Requests,
};
pub use self::{backoff::jittered, lines::read_watch, page::read_page};
pub(crate) use self::{error::Failure, page::Page, page_size::PAGE_SIZE, requests::fetch};
use crate::{
    cache::Cache,
    client::Transport,
    informer::{cached::Cached, selection::Selection},
    log_limit::LogLimit,
    object::{Malformed, ResourceVersion},
};

/// The range of the time after which the server ends a watch, in seconds.
const WATCH_SECONDS: std::ops::Range<u64> = 240..290;

/// The time without an event after which the reflector closes a watch, since a broken connection may cause no error.
/// Bookmarks arrive every minute. If the server sends no bookmarks, this time begins when the server should have ended
/// the watch.
const MAX_SILENCE: Duration = Duration::from_secs(120);

/// The number of [empty](WatchEnd::Empty) watches in a row, or of those in a row that could not be opened, after which the
/// reflector lists again.
const MAX_EMPTY_WATCHES: u32 = 3;

/// The shortest time between the starts of two watches. Otherwise a server or a proxy that ends each watch after its first
/// event would get requests without a pause.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The time after which an open watch counts as healthy.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);

/// The maximum backoff after a 404, so that a resource that is installed later is found soon.
const MAX_NOT_FOUND_BACKOFF: Duration = Duration::from_secs(2);

/// The number of lists in a row with 404 or 403 after which the resource counts as unavailable. A single 404 may come
/// from an API server that is starting.
const MAX_REFUSED_LISTS: u32 = 3;

/// Runs the reflectors of a cache, one for each [part](Selection::parts) of its selection. Never returns; the informer
/// aborts it when it is dropped.
pub(crate) async fn run<K: Cached>(cache: Arc<Cache<K>>, transport: Transport) {
    let parts = cache.selection.parts().into_iter().enumerate();
    join_all(parts.map(|(part, selection)| {
        let requests = Requests::new(transport.clone(), &cache.kind, &selection, K::metadata_api());
        run_part(cache.clone(), requests, part, selection)
    }))
    .await;
}

async fn run_part<K: Cached>(cache: Arc<Cache<K>>, requests: Requests, part: usize, selection: Selection) {
    let backoff = Backoff::new(format!("backoff/{}/{part}", cache.name));
    let mut reflector = Reflector {
        cache,
        requests,
        part,
        selection,
        version: None,
        may_be_restored: false,
        next_watch: Instant::now(),
        empty_watches: 0,
        unopened_watches: 0,
        has_bookmarks: false,
        refused_lists: 0,
        has_expired: false,
        page_size: PageSize::default(),
        without_pages: false,
        backoff,
        log_limit: LogLimit::default(),
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
    /// The index of the part of the cache's selection that this reflector lists and watches.
    part: usize,
    /// The selection of that part.
    selection: Selection,
    /// The version up to which the cache has everything, and from which the next watch starts; `None` if a list comes
    /// next.
    version: Option<String>,
    /// True if the server may have been restored from a backup since the last watch.
    may_be_restored: bool,
    /// The earliest start of the next watch.
    next_watch: Instant,
    /// The number of [empty](WatchEnd::Empty) watches in a row.
    empty_watches: u32,
    /// The number of watches in a row that could not be opened, although the server was not overloaded.
    unopened_watches: u32,
    /// True if a watch has sent a bookmark since the last list.
    has_bookmarks: bool,
    /// The number of lists in a row with 404 or 403.
    refused_lists: u32,
    /// True if the last failure was an expired version.
    has_expired: bool,
    page_size: PageSize,
    /// True if the next list is read in one request, since the version expired between the pages of the last list.
    without_pages: bool,
    backoff: Backoff,
    log_limit: LogLimit,
}

/// The end of a watch without an error event.
#[derive(PartialEq)]
enum WatchEnd {
    /// The watch sent events.
    Normal,
    /// Another list is requested.
    Unwanted,
    /// The watch sent nothing, and ended at the requested time.
    Quiet,
    /// The watch sent no event, not even a bookmark, and ended too early, did not end in time, or sent a malformed
    /// line.
    Empty,
    /// The connection broke, or the watch failed after its first event.
    Broken,
}

impl<K: Cached> Reflector<K> {
    /// Lists if a list comes next, and otherwise watches until the watch ends. If the server was restored from a
    /// backup, does neither, and a list comes next.
    async fn step(&mut self) -> Result<(), Failure> {
        if self.version.is_none() {
            return self.list().await;
        }
        if self.may_be_restored && self.is_restored().await? {
            tracing::warn!(
                informer = self.cache.name,
                "the API server's resourceVersion is lower than before, listing again"
            );
            self.version = None;
            return Ok(());
        }
        self.may_be_restored = true;
        // A timer takes a millisecond even if its time has come, in which passes would write before the watch is open.
        if self.next_watch > Instant::now() {
            sleep_until(self.next_watch).await;
        }
        let opened = Instant::now();
        self.next_watch = opened + WATCH_INTERVAL;
        let end = self.watch().await;
        if opened.elapsed() >= HEALTHY_AFTER {
            self.backoff.reset();
        }
        let end = end?;
        if end == WatchEnd::Unwanted {
            self.version = None;
            return Ok(());
        }
        self.empty_watches = match end {
            WatchEnd::Normal | WatchEnd::Quiet => 0,
            WatchEnd::Empty => self.empty_watches + 1,
            WatchEnd::Broken | WatchEnd::Unwanted => self.empty_watches,
        };
        if self.empty_watches >= MAX_EMPTY_WATCHES {
            return Err(Failure::NoEvents(MAX_EMPTY_WATCHES));
        }
        self.may_be_restored = end != WatchEnd::Normal;
        self.version.take_if(|version| version.is_empty());
        if (self.may_be_restored || self.version.is_none()) && opened.elapsed() < HEALTHY_AFTER {
            let pause = sleep(self.backoff.next(Duration::MAX));
            tokio::select! {
                biased;
                () = self.cache.progress.list_requested(self.part) => self.version = None,
                () = pause => {}
            }
        }
        Ok(())
    }

    async fn list(&mut self) -> Result<(), Failure> {
        self.cache.metrics.lists.inc();
        let _is_requested = self.cache.progress.list_requested(self.part).now_or_never(); // this list serves a waiting request
        self.cache.start_list(self.part);
        let is_whole = mem::take(&mut self.without_pages);
        let (version, mut next) = self.page(is_whole, None).await?;
        while next.is_some() {
            match self.page(is_whole, next.clone()).await {
                // To list from the start would be more work for a server that has too much. The token expires.
                Err(failure) if failure.is_overload() => self.pause(&failure).await,
                result => {
                    self.without_pages = matches!(result, Err(Failure::Expired(_)));
                    (_, next) = result?;
                }
            }
        }
        self.cache.finish_list(self.part, &version);
        tracing::debug!(informer = self.cache.name, version, "listed");
        self.version = Some(version);
        (self.may_be_restored, self.empty_watches, self.has_bookmarks) = (false, 0, false);
        self.refused_lists = 0;
        Ok(())
    }

    /// Reads a page, or the whole list, into the cache, and returns the version of the list and the token of the next page.
    async fn page(
        &mut self,
        is_whole: bool,
        continue_token: Option<String>,
    ) -> Result<(String, Option<String>), Failure> {
        let bytes = match is_whole {
            true => self.requests.page(None, None).await?,
            false => self.small_page(continue_token).await?,
        };
        self.cache.mark_response(self.part);
        let page = Page::read(&bytes, |item, _| match item {
            Ok(raw) => self.cache.apply_listed(&raw),
            Err(error) => self.log_malformed(error),
        })?;
        Ok((page.resource_version.into_owned(), page.continue_token))
    }

    /// Requests a page, and smaller ones as long as it has too many bytes.
    async fn small_page(&mut self, continue_token: Option<String>) -> Result<Bytes, Failure> {
        loop {
            let start = Instant::now();
            let answer = self.requests.page(Some(self.page_size.items()), continue_token.clone()).await;
            self.page_size.adapt(&answer, start.elapsed());
            if !matches!(answer, Err(Failure::TooLarge)) {
                return answer;
            }
        }
    }

    /// Returns true if the server's version is below the highest one seen. False if it is not known, because the server
    /// fails to list an item. The answer does not count as a response, since it brings no change of an object.
    async fn is_restored(&mut self) -> Result<bool, Failure> {
        let highest =
            self.cache.read(|stores| stores.part(self.part).map(|store| store.highest().to_owned()));
        let highest = highest.unwrap_or_default();
        let bytes = match self.requests.page(Some(1), None).await {
            Err(failure @ Failure::Refused { code: 500, .. }) if !failure.is_overload() => {
                self.report(&failure, false);
                return Ok(false);
            }
            answer => answer?,
        };
        self.cache.progress.mark_attempt(self.part);
        let page = Page::read(&bytes, |_, _| ())?;
        let current = ResourceVersion::parse(&page.resource_version);
        Ok(current.is_some() && current < ResourceVersion::parse(&highest))
    }

    /// Opens a watch and applies its events until it ends.
    async fn watch(&mut self) -> Result<WatchEnd, Failure> {
        self.cache.metrics.watches.inc();
        let version = self.version.clone().unwrap_or_default();
        let duration = self.watch_duration();
        let opened = Instant::now();
        let mut lines = self.open_watch(&version, duration).await?;
        self.cache.mark_response(self.part);
        self.cache.progress.mark_watched(self.part);
        let mut has_events = false;
        loop {
            let until_overdue = duration.saturating_sub(opened.elapsed()) + MAX_SILENCE;
            let limit = if self.has_bookmarks { MAX_SILENCE } else { until_overdue };
            let next = tokio::select! {
                biased;
                () = self.cache.progress.list_requested(self.part) => return Ok(WatchEnd::Unwanted),
                next = timeout(limit, lines.next()) => next.unwrap_or(Err(Failure::Timeout(limit))),
            };
            let line = match next.and_then(|line| line.map(Line::read).transpose()) {
                Ok(Some(line)) => line,
                Ok(None) if has_events => return Ok(WatchEnd::Normal),
                Ok(None) if opened.elapsed() >= duration => return Ok(WatchEnd::Quiet),
                Ok(None) => return Ok(WatchEnd::Empty),
                Err(failure) => return Ok(self.end_broken_watch(&failure, has_events)),
            };
            self.cache.mark_response(self.part);
            self.apply_event(line)?;
            self.backoff.reset();
            has_events = true;
        }
    }

    /// Opens a watch, and counts those in a row that could not be opened.
    async fn open_watch(&mut self, version: &str, duration: Duration) -> Result<Lines, Failure> {
        let opened = self.requests.watch(version, duration).await;
        self.unopened_watches = match &opened {
            Ok(_) => 0,
            Err(failure) if failure.is_overload() => self.unopened_watches,
            Err(_) => self.unopened_watches.saturating_add(1),
        };
        opened
    }

    /// Returns the time after which the server ends a watch, at random, so that many watches do not end at once.
    fn watch_duration(&self) -> Duration {
        let stream = format_args!("watch/{}/{}", self.cache.name, self.part);
        Duration::from_secs(random_range(stream, WATCH_SECONDS))
    }

    /// Counts a broken watch and logs it at debug level: if opening the next watch fails too, that is logged as a
    /// warning.
    fn end_broken_watch(&self, failure: &Failure, has_events: bool) -> WatchEnd {
        self.cache.metrics.failures.inc();
        tracing::debug!(informer = self.cache.name, why = %failure, "the watch broke");
        match failure {
            Failure::Timeout(_) | Failure::Malformed(_) if !has_events => WatchEnd::Empty,
            _ => WatchEnd::Broken,
        }
    }

    fn apply_event(&mut self, line: Line<'_>) -> Result<(), Failure> {
        self.cache.metrics.events.inc();
        if line.event == "ERROR" {
            return Err(line.failure());
        }
        let raw = match line.object {
            Ok(raw) => raw,
            Err(error) => {
                self.log_malformed(error);
                return Ok(());
            }
        };
        if matches!(&*line.event, "ADDED" | "MODIFIED" | "DELETED") {
            self.cache.metrics.record_change();
        }
        match &*line.event {
            "ADDED" | "MODIFIED" => self.cache.apply_watched(&raw),
            "DELETED" => self.cache.apply_deletion(&raw),
            "BOOKMARK" => {
                self.has_bookmarks = true;
                self.cache.apply_bookmark(self.part, raw.resource_version());
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

    fn log_malformed(&self, why: Malformed) {
        tracing::error!(informer = self.cache.name, %why, "skipping an object whose metadata cannot be read");
    }

    /// Decides whether a list or a watch from the last version comes next, logs the failure, and waits.
    async fn recover(&mut self, failure: Failure) {
        let was_expired = mem::replace(&mut self.has_expired, matches!(failure, Failure::Expired(_)));
        // A server that responds with 410 can serve a list. So list at once, even after an outage, except after
        // repeated 410 without a success in between.
        let lists_at_once = self.has_expired && (!was_expired || self.backoff.is_fresh());
        let was_list = self.version.is_none();
        let is_unavailable =
            matches!(failure, Failure::NotFound(_) | Failure::Forbidden(_) | Failure::NotServed(_));
        self.refused_lists = if was_list && is_unavailable { self.refused_lists + 1 } else { 0 };
        if self.refused_lists >= MAX_REFUSED_LISTS {
            self.cache.progress.mark_unavailable(self.part, &self.explain(&failure));
        }
        // The server would refuse the same watch again. A process without permission to watch learns of changes by
        // lists, as in client-go.
        let is_refused = matches!(
            failure,
            Failure::Forbidden(_)
                | Failure::NotServed(_)
                | Failure::Refused { code: 400 | 405 | 422 | 501, .. }
        ) || self.unopened_watches >= MAX_EMPTY_WATCHES;
        let has_lost_version = matches!(
            failure,
            Failure::Expired(_) | Failure::NotFound(_) | Failure::Watch(_) | Failure::NoEvents(_)
        );
        if is_refused && !was_list {
            self.cache.progress.mark_refused(self.part, &self.explain(&failure));
        }
        if is_refused || has_lost_version {
            self.version = None;
        }
        if lists_at_once {
            // A single expired version is normal, and causes no warning.
            self.backoff.next(Duration::ZERO);
            self.report(&failure, true);
        } else {
            self.pause(&failure).await;
        }
    }

    /// Reports a failure, and waits before the next request: for the backoff, or for as long as the server asked.
    async fn pause(&mut self, failure: &Failure) {
        let limit =
            if matches!(failure, Failure::NotFound(_)) { MAX_NOT_FOUND_BACKOFF } else { Duration::MAX };
        let wait = self.backoff.next(limit).max(failure.retry_after().unwrap_or_default());
        self.report(failure, false);
        sleep(wait).await;
    }

    fn explain(&self, failure: &Failure) -> String {
        failure.explain(&self.cache.kind, self.selection.namespace_of_part())
    }

    /// Counts the failure, records it in the progress, and logs it: at debug level if it `is_expected` or another
    /// warning was logged within the last minute, else as a warning.
    fn report(&mut self, failure: &Failure, is_expected: bool) {
        self.cache.metrics.failures.inc();
        self.cache.progress.mark_attempt(self.part);
        let why = self.explain(failure);
        self.cache.progress.mark_failed(self.part, &why);
        if is_expected || !self.log_limit.allows(&()) {
            tracing::debug!(informer = self.cache.name, why, "list or watch failed, retrying");
        } else {
            tracing::warn!(
                informer = self.cache.name,
                why,
                "list or watch failed, retrying; this warning is repeated once a minute"
            );
        }
    }
}
