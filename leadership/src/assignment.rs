//! The assignment of buckets to members. Every member computes the same assignment from the same leases.

use std::cmp::Reverse;

use reknit_apis::internal::HashMap;

/// Returns the member that has to lead each bucket, or `None` if there are no members.
///
/// Each member gets the number of buckets divided by the number of members, rounded down or up. A holder keeps its
/// buckets up to that number, so only surplus buckets move. A holder that is not a member, such as one of an earlier
/// version of this library, keeps all of its buckets. `members` has no duplicates; earlier members are preferred.
pub(crate) fn assign<'a>(members: &[&'a str], holders: &[Option<&'a str>]) -> Vec<Option<&'a str>> {
    let mut shares = shares(members, holders);
    let mut keep = |holder: &'a str| match shares.get_mut(holder) {
        Some(0) => None,
        Some(left) => {
            *left -= 1;
            Some(holder)
        }
        None => Some(holder),
    };
    let mut assigned: Vec<_> = holders.iter().map(|holder| holder.and_then(&mut keep)).collect();
    for bucket in assigned.iter_mut().filter(|bucket| bucket.is_none()) {
        let next = members.iter().find(|member| shares.get(**member).is_some_and(|left| *left > 0));
        *bucket = next.copied();
        if let Some(left) = next.and_then(|member| shares.get_mut(*member)) {
            *left -= 1;
        }
    }
    assigned
}

/// The number of buckets of each member. If the division has a remainder, some members get one more: first those that
/// already hold more than the quotient, so that a bucket that was just moved is not moved again.
fn shares<'a>(members: &[&'a str], holders: &[Option<&str>]) -> HashMap<&'a str, usize> {
    let quotient = holders.len().checked_div(members.len()).unwrap_or_default();
    let remainder = holders.len().checked_rem(members.len()).unwrap_or_default();
    let held = |member: &str| holders.iter().filter(|holder| **holder == Some(member)).count();
    let mut ranked = members.to_vec();
    ranked.sort_by_key(|member| Reverse(held(member) > quotient));
    let share = |(rank, member)| (member, quotient + usize::from(rank < remainder));
    ranked.into_iter().enumerate().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves every bucket to its assigned member. Returns the number of moves of held buckets, and the sorted shares.
    fn settle<'a>(members: &[&'a str], holders: &mut Vec<Option<&'a str>>) -> (usize, Vec<usize>) {
        let assigned = assign(members, holders);
        let moves = holders.iter().zip(&assigned).filter(|(holder, member)| holder != member).count();
        *holders = assigned;
        assert_eq!(assign(members, holders), *holders, "a settled assignment does not change");
        let mut shares: Vec<_> = members
            .iter()
            .map(|member| holders.iter().filter(|holder| **holder == Some(*member)).count())
            .collect();
        shares.sort_unstable();
        (moves, shares)
    }

    #[test]
    fn members_share_the_buckets_and_only_surplus_buckets_move() {
        let mut holders = vec![None; 10];
        assert_eq!(settle(&["a"], &mut holders).1, [10]);
        assert_eq!(settle(&["a", "b"], &mut holders), (5, vec![5, 5]));
        assert_eq!(settle(&["a", "b", "c"], &mut holders), (3, vec![3, 3, 4]));
        for holder in holders.iter_mut().filter(|holder| **holder == Some("c")) {
            *holder = None;
        }
        assert_eq!(settle(&["a", "b"], &mut holders), (3, vec![5, 5]));
        assert_eq!(settle(&["a", "b", "c"], &mut holders), (3, vec![3, 3, 4]));
    }

    #[test]
    fn the_order_in_which_surplus_buckets_are_released_moves_no_further_bucket() {
        let before: Vec<_> = ["a"; 5].into_iter().chain(["b"; 5]).map(Some).collect();
        let members = ["a", "b", "c"];
        for first in ["a", "b"] {
            let (mut holders, goal) = (before.clone(), assign(&members, &before));
            while let Some(surplus) =
                (0..10).rev().find(|n| holders[*n] == Some(first) && goal[*n] == Some("c"))
            {
                holders[surplus] = None;
                for bucket in 0..10 {
                    let kept = goal[bucket] == holders[bucket] && holders[bucket].is_some();
                    assert!(!kept || assign(&members, &holders)[bucket] == goal[bucket]);
                }
            }
        }
    }

    #[test]
    fn with_fewer_buckets_than_members_some_members_get_none() {
        let mut holders = vec![None];
        assert_eq!(settle(&["a", "b", "c"], &mut holders).1, [0, 0, 1]);
        assert_eq!(settle(&["z", "a", "b", "c"], &mut holders), (0, vec![0, 0, 0, 1]));
    }

    #[test]
    fn a_holder_that_is_not_a_member_keeps_its_buckets() {
        let holders = [Some("old"), None, Some("old")];
        assert_eq!(assign(&["a"], &holders), [Some("old"), Some("a"), Some("old")]);
        assert_eq!(assign(&[], &holders), [Some("old"), None, Some("old")]);
    }
}
