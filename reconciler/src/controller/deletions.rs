//! Children that another client deletes again and again.
//!
//! This is a fight about a whole object: the controller creates the child again, and every pass succeeds. The causes of the
//! owner's passes name the deletions. Those by passes of this process, and those after the owner is gone, do not count.

use std::time::Duration;

use parking_lot::Mutex;
use reknit_injection::internal::{Namespaced, SharedTable};
use tokio::time::Instant;

use crate::queue::DeletedChild;

/// The longest pause between two deletions of a child.
const MAX_PAUSE: Duration = Duration::from_secs(10 * 60);
/// The number of deletions that are a fight.
const FIGHT: u32 = 3;
/// The time until a fight is reported again, doubled each time.
const REPORT_AGAIN: Duration = Duration::from_secs(10 * 60);
/// The maximum number of children whose deletions are counted. The namespaces share them.
const MAX_CHILDREN: usize = 10_000;

/// The deleted children.
#[derive(Debug, Default)]
pub(super) struct Deletions(Mutex<Children>);

#[derive(Debug, Default)]
struct Children {
    deleted: SharedTable<Child, Deleted, MAX_CHILDREN>,
    swept: Option<Instant>,
}

/// A child of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Child {
    owner_uid: Box<str>,
    resource: Box<str>,
    /// `namespace/name`, or `name`.
    key: Box<str>,
}

impl Namespaced for Child {
    fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }
}

#[derive(Debug)]
struct Deleted {
    times: u32,
    since: Instant,
    last: Instant,
    report: Instant,
    next_gap: Duration,
}

/// A deletion that is part of a fight.
#[derive(Debug)]
pub(super) struct Deletion {
    pub(super) text: String,
    /// True for the first one of a fight, and then after ten minutes, twenty, and so on.
    pub(super) is_to_report: bool,
}

impl Deletions {
    /// Counts the deletion of a child. Returns it if it is part of a fight.
    pub(super) fn count(&self, owner_uid: &str, child: &DeletedChild<'_>) -> Option<Deletion> {
        let (now, mut children) = (Instant::now(), self.0.lock());
        let DeletedChild { resource, key, may_have_left } = *child;
        let child = Child { owner_uid: owner_uid.into(), resource: resource.into(), key: key.into() };
        if !children.has_room_for(&child, now) {
            return None;
        }
        let deleted = children.deleted.entry(child, || Deleted::new(now));
        if deleted.is_expired(now) {
            *deleted = Deleted::new(now);
        }
        deleted.times += 1;
        deleted.last = now;
        if deleted.times < FIGHT {
            return None;
        }
        let is_to_report = deleted.report <= now;
        if is_to_report {
            deleted.report = now + deleted.next_gap;
            deleted.next_gap *= 2;
        }
        let (times, seconds) = (deleted.times, (now - deleted.since).as_secs().max(1));
        let or_left =
            if may_have_left { ", or took it out of the selection of this controller," } else { "" };
        let text = format!("another client deleted {resource} {key}{or_left} {times} times in {seconds} s");
        Some(Deletion { text, is_to_report })
    }
}

impl Children {
    /// Drops expired children of a full table, at most once a second, and returns true if this child can be counted.
    fn has_room_for(&mut self, child: &Child, now: Instant) -> bool {
        let is_swept = self.swept.is_some_and(|swept| now - swept < Duration::from_secs(1));
        if self.deleted.is_full() && !is_swept {
            self.swept = Some(now);
            self.deleted.retain(|deleted| !deleted.is_expired(now));
        }
        self.deleted.has_room_for(child, |deleted| (deleted.times, deleted.last))
    }
}

impl Deleted {
    fn new(now: Instant) -> Self {
        Self { times: 0, since: now, last: now, report: now, next_gap: REPORT_AGAIN }
    }

    fn is_expired(&self, now: Instant) -> bool {
        now - self.last > MAX_PAUSE
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn web(may_have_left: bool) -> DeletedChild<'static> {
        DeletedChild { resource: "deployments.apps", key: "shop/web", may_have_left }
    }

    #[tokio::test(start_paused = true)]
    async fn the_third_deletion_of_a_child_of_the_same_owner_is_reported_and_then_with_growing_gaps() {
        let deletions = Deletions::default();
        let mut reports = Vec::new();
        for n in 1..=2400 {
            let deletion = deletions.count("owner", &web(false));
            assert_eq!(deletion.is_some(), n >= 3);
            reports
                .extend(deletion.filter(|deletion| deletion.is_to_report).map(|deletion| (n, deletion.text)));
            assert!(deletions.count(&n.to_string(), &web(false)).is_none(), "another owner");
            advance(Duration::from_secs(1)).await;
        }
        let numbers: Vec<_> = reports.iter().map(|(n, _)| *n).collect();
        assert_eq!(numbers, [3, 603, 1803]);
        assert_eq!(reports[0].1, "another client deleted deployments.apps shop/web 3 times in 2 s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_child_that_may_only_have_left_the_selection_is_not_said_to_be_deleted() {
        let deletions = Deletions::default();
        let last = (0..3).filter_map(|_| deletions.count("owner", &web(true))).last().unwrap();
        let start = "another client deleted deployments.apps shop/web, or took it out of the selection of this controller, 3";
        assert!(last.text.starts_with(start), "{}", last.text);
    }

    #[tokio::test(start_paused = true)]
    async fn rare_deletions_are_no_fight_and_the_number_of_counted_children_is_bounded() {
        let deletions = Deletions::default();
        for _ in 0..10 {
            assert!(deletions.count("owner", &web(false)).is_none());
            advance(MAX_PAUSE + Duration::from_secs(1)).await;
        }
        (0..MAX_CHILDREN + 5).for_each(|n| _ = deletions.count(&n.to_string(), &web(false)));
        assert_eq!(deletions.0.lock().deleted.values().count(), MAX_CHILDREN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_with_many_deleted_children_takes_no_room_from_others() {
        let deletions = Deletions::default();
        (0..MAX_CHILDREN).for_each(|n| _ = deletions.count(&n.to_string(), &web(false)));
        let other = DeletedChild { resource: "deployments.apps", key: "bank/web", may_have_left: false };
        let fights = (0..3).filter_map(|_| deletions.count("owner", &other)).count();
        assert_eq!(fights, 1);
        assert_eq!(deletions.0.lock().deleted.values().count(), MAX_CHILDREN);
    }
}
