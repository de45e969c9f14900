//! Keeps a cache in step with the API server: lists once, then watches, and recovers from whatever goes wrong.
//!
//! A watch that ends or breaks is resumed after the last version it told. A list comes first, and again where that is
//! not possible: the server has forgotten the version (410), the resource was gone for a while (404), lists are allowed
//! and watches are not, or the server's store has become younger than what was heard of it before (it was restored from
//! a backup), which a look at a list of one item shows before a watch is resumed that broke or told nothing: such a
//! server would accept the watch and say nothing. What is held stays meanwhile, also where the server does not know the resource any more: its objects
//! may still be there, as where a CustomResourceDefinition no longer serves the version.

use std::{mem, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use crate::{
    answer::Failure,
    backoff::Backoff,
    cache::Cache,
    informer::Cached,
    intake::Event,
    scan::Malformed,
    source::{Line, PAGE, Page, Source},
    transport::Transport,
    version::Version,
};

/// The server ends a watch after a time between these, in seconds.
const LASTING: std::ops::Range<u64> = 240..290;

/// A watch that says nothing for so long is cut: bookmarks come every minute, and a broken connection does not show.
/// Servers that send no bookmarks are given this time after they should have ended the watch.
const SILENCE: Duration = Duration::from_secs(120);

/// After so many watches in a row that were opened and told nothing, although they should have, a list tells more.
const UNHEARD: u32 = 3;

/// A watch that stood for so long has worked.
const STOOD: Duration = Duration::from_secs(10);

/// A resource that is installed later is found within this time.
const ABSENT: Duration = Duration::from_secs(2);

/// So many lists in a row that find no such resource mean that it is not served: one alone may be an API server that is
/// starting, and does not know all its resources yet.
const ABSENCES: u32 = 3;

/// The same complaint is not made more often.
const COMPLAINT: Duration = Duration::from_secs(60);

/// Never ends; dropped with the informer.
pub(crate) async fn run<K: Cached>(cache: Arc<Cache<K>>, transport: Transport) {
    let source = Source::new(transport, &cache.kind, &cache.selection, K::metadata_api());
    let mut task = ListWatch {
        cache,
        source,
        version: None,
        doubtful: false,
        unheard: 0,
        bookmarks: false,
        absences: 0,
        expired: false,
        unpaged: false,
        backoff: Backoff::default(),
        complained: None,
    };
    loop {
        if let Err(failure) = task.step().await {
            task.recover(failure).await;
        }
    }
}

struct ListWatch<K> {
    cache: Arc<Cache<K>>,
    source: Source,
    /// Everything up to here was told; none where only a list can tell.
    version: Option<String>,
    /// The server may have become younger since the last watch.
    doubtful: bool,
    /// How many watches in a row have told nothing that should have.
    unheard: u32,
    /// A watch has told of a bookmark since the last list.
    bookmarks: bool,
    /// How many lists in a row found no such resource.
    absences: u32,
    /// The last failure was a version that the server no longer has.
    expired: bool,
    /// The next list comes in one piece, since the pages of the last took longer than the server keeps a version.
    unpaged: bool,
    backoff: Backoff,
    complained: Option<Instant>,
}

/// How a watch ended that did not tell why.
#[derive(PartialEq)]
enum Ended {
    /// After it had told something.
    Told,
    /// When it should, with nothing to tell.
    InTime,
    /// It had told nothing, not even a bookmark, and ended early or was cut.
    Unheard,
    /// Its connection broke.
    Broken,
}

impl<K: Cached> ListWatch<K> {
    async fn step(&mut self) -> Result<(), Failure> {
        if self.version.is_none() {
            return self.list().await;
        }
        if self.doubtful && self.is_younger().await? {
            tracing::warn!(
                informer = self.cache.name,
                "the API server's store is younger than it was, listing again"
            );
            self.version = None;
            return Ok(());
        }
        self.doubtful = true;
        let opened = Instant::now();
        let ended = self.watch().await;
        if opened.elapsed() >= STOOD {
            self.backoff.reset();
        }
        let ended = ended?;
        self.unheard = match ended {
            Ended::Told | Ended::InTime => 0,
            Ended::Unheard => self.unheard + 1,
            Ended::Broken => self.unheard,
        };
        if self.unheard >= UNHEARD {
            return Err(Failure::Unheard(UNHEARD));
        }
        self.doubtful = ended != Ended::Told;
        if self.doubtful && opened.elapsed() < STOOD {
            sleep(self.backoff.next(Duration::MAX)).await;
        }
        Ok(())
    }

    async fn list(&mut self) -> Result<(), Failure> {
        self.cache.meters.lists.inc();
        self.cache.list_begins();
        let limit = if mem::take(&mut self.unpaged) { None } else { Some(PAGE) };
        let (version, mut next) = self.page(limit, None).await?;
        while next.is_some() {
            let page = self.page(limit, next).await;
            self.unpaged = matches!(page, Err(Failure::Gone(_)));
            (_, next) = page?;
        }
        self.cache.list_ends(&version);
        tracing::debug!(informer = self.cache.name, version, "listed");
        self.version = Some(version);
        (self.doubtful, self.unheard, self.bookmarks) = (false, 0, false);
        self.absences = 0;
        Ok(())
    }

    /// Takes in a page; what it says of the version of the whole list, and of the next page.
    async fn page(
        &self,
        limit: Option<u32>,
        after: Option<String>,
    ) -> Result<(String, Option<String>), Failure> {
        let bytes = self.source.page(limit, after).await?;
        self.cache.progress.attempted();
        let page = Page::read(&bytes, |item, _| match item {
            Ok(raw) => self.cache.listed(&raw),
            Err(error) => self.unreadable(error),
        })?;
        Ok((page.resource_version.into_owned(), page.continue_token))
    }

    /// Whether the server's version is below what was heard of.
    async fn is_younger(&self) -> Result<bool, Failure> {
        let heard_of = self.cache.read(|store| store.highest().to_owned());
        let bytes = self.source.page(Some(1), None).await?;
        self.cache.progress.attempted();
        let page = Page::read(&bytes, |_, _| ())?;
        let (now, before) = (Version::parse(&page.resource_version), Version::parse(&heard_of));
        Ok(now.is_some() && now < before)
    }

    /// Takes in what a watch tells until it ends.
    async fn watch(&mut self) -> Result<Ended, Failure> {
        self.cache.meters.watches.inc();
        let from = self.version.clone().unwrap_or_default();
        let lasting = Duration::from_secs(rand::random_range(LASTING));
        let opened = Instant::now();
        let mut lines = self.source.watch(&from, lasting).await?;
        self.cache.progress.attempted();
        let mut told = false;
        loop {
            let late = lasting.saturating_sub(opened.elapsed()) + SILENCE;
            let silence = if self.bookmarks { SILENCE } else { late };
            let line = timeout(silence, lines.next()).await.unwrap_or(Err(Failure::Silence(silence)));
            let line = match line.and_then(|line| line.map(Line::read).transpose()) {
                Ok(Some(line)) => line,
                Ok(None) if told => return Ok(Ended::Told),
                Ok(None) if opened.elapsed() >= lasting => return Ok(Ended::InTime),
                Ok(None) => return Ok(Ended::Unheard),
                Err(failure) => return Ok(self.broken(&failure, told)),
            };
            self.cache.progress.attempted();
            self.event(line)?;
            self.backoff.reset();
            told = true;
        }
    }

    /// Connections break; only that one cannot be opened again is worth a warning.
    fn broken(&self, failure: &Failure, told: bool) -> Ended {
        self.cache.meters.failures.inc();
        tracing::debug!(informer = self.cache.name, why = %failure, "a watch broke");
        match failure {
            Failure::Silence(_) | Failure::Malformed(_) if !told => Ended::Unheard,
            _ => Ended::Broken,
        }
    }

    fn event(&mut self, line: Line<'_>) -> Result<(), Failure> {
        self.cache.meters.events.inc();
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
            "ADDED" | "MODIFIED" => self.cache.watched(Event::There, &raw),
            "DELETED" => self.cache.watched(Event::Deleted, &raw),
            "BOOKMARK" => {
                self.bookmarks = true;
                self.cache.bookmark(raw.version());
            }
            other => {
                tracing::debug!(informer = self.cache.name, event = other, "a watch told of an unknown event")
            }
        }
        if !raw.version().is_empty() {
            raw.version().clone_into(self.version.get_or_insert_default());
        }
        Ok(())
    }

    fn unreadable(&self, why: Malformed) {
        tracing::error!(informer = self.cache.name, %why, "an object has no readable metadata");
    }

    /// Decides from where to go on, says what is wrong, and waits.
    async fn recover(&mut self, failure: Failure) {
        self.cache.meters.failures.inc();
        let again = mem::replace(&mut self.expired, matches!(failure, Failure::Gone(_)));
        // After an outage too: what answers so can be listed from.
        let expired = self.expired && (!again || self.backoff.is_fresh());
        let wait = match &failure {
            _ if expired => self.backoff.next(Duration::ZERO),
            Failure::Absent(_) => self.backoff.next(ABSENT),
            _ => self.backoff.next(Duration::MAX),
        };
        let listing = self.version.is_none();
        self.absences = if listing && matches!(failure, Failure::Absent(_)) { self.absences + 1 } else { 0 };
        if self.absences >= ABSENCES {
            self.cache.progress.lost(&self.explain(&failure));
        }
        // What is wrong with the request will still be wrong when the version is the same. And who may not watch, or
        // cannot, is told by lists what changes, as in client-go.
        let hopeless = matches!(failure, Failure::Refused { code: 400 | 403 | 405 | 422 | 501, .. });
        let lost = matches!(
            failure,
            Failure::Gone(_) | Failure::Absent(_) | Failure::Watch(_) | Failure::Unheard(_)
        );
        if hopeless || lost {
            self.version = None;
        }
        self.cache.progress.attempted();
        // Versions expire; only that the next one has expired as well is worth a warning.
        self.complain(&failure, expired);
        sleep(wait).await;
    }

    fn explain(&self, failure: &Failure) -> String {
        failure.explain(&self.cache.kind, self.cache.selection.in_namespace())
    }

    fn complain(&mut self, failure: &Failure, softly: bool) {
        let why = self.explain(failure);
        self.cache.progress.stuck(&why);
        let lately = self.complained.is_some_and(|when| when.elapsed() < COMPLAINT);
        if softly || lately {
            tracing::debug!(informer = self.cache.name, why, "trying again");
        } else {
            tracing::warn!(informer = self.cache.name, why, "trying again, and saying so once a minute");
            self.complained = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests;
