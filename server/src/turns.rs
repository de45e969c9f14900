//! The line of requests for something that one of them uses at a time, in which clients take turns.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// A lock for which clients wait in turns: after a request of one client, each other client that waits has its turn. So a
/// client with many requests delays one of another client by one request at most. The requests of a client keep their order.
///
/// ```
/// use reknit_server::Turns;
///
/// # async fn read(turns: &Turns, client: std::net::IpAddr) {
/// let turn = turns.wait(client).await;
/// // Use what there is one of.
/// drop(turn);
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<Mutex<Line>>);

/// The turn of a request. It ends when this is dropped.
#[derive(Debug)]
#[must_use = "the turn ends when this is dropped"]
pub struct Turn(Turns);

#[derive(Debug, Default)]
struct Line {
    is_taken: bool,
    waiting: HashMap<IpAddr, VecDeque<oneshot::Sender<Turn>>>,
    /// The clients in `waiting`, each once, in the order of their turns.
    order: VecDeque<IpAddr>,
}

impl Turns {
    /// Waits for the turn of a request of this client.
    pub async fn wait(&self, client: IpAddr) -> Turn {
        let granted = {
            let mut line = self.0.lock();
            if !line.is_taken {
                line.is_taken = true;
                return Turn(self.clone());
            }
            line.add(client)
        };
        match granted.await {
            Ok(turn) => turn,
            Err(_) => std::future::pending().await, // never: the line drops a sender only once it has sent
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut line = self.0.0.lock();
            let next = line.next();
            line.is_taken = next.is_some();
            next
        };
        // If that request has ended meanwhile, its turn ends at once.
        let _ = next.map(|next| next.send(Self(self.0.clone())));
    }
}

impl Line {
    fn add(&mut self, client: IpAddr) -> oneshot::Receiver<Turn> {
        let (sender, receiver) = oneshot::channel();
        let requests = self.waiting.entry(client).or_default();
        if requests.is_empty() {
            self.order.push_back(client);
        }
        requests.push_back(sender);
        receiver
    }

    /// Removes and returns the next request that still waits.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        while let Some(client) = self.order.pop_front() {
            let mut requests = self.waiting.remove(&client).unwrap_or_default();
            requests.retain(|request| !request.is_closed());
            let next = requests.pop_front();
            if !requests.is_empty() {
                self.waiting.insert(client, requests);
                self.order.push_back(client);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt;

    use super::*;

    fn client(number: u8) -> IpAddr {
        Ipv4Addr::new(127, 0, 0, number).into()
    }

    #[tokio::test]
    async fn a_client_with_many_requests_delays_another_by_one() {
        let (turns, mut order) = (Turns::default(), Vec::new());
        let mut turn = turns.wait(client(1)).await;
        let mut waiting: Vec<_> = [1, 1, 1, 2, 2]
            .into_iter()
            .map(|number| (number, Box::pin(turns.wait(client(number)))))
            .collect();
        assert!(waiting.iter_mut().all(|(_, wait)| wait.as_mut().now_or_never().is_none()));
        while !waiting.is_empty() {
            drop(turn);
            let next = waiting
                .iter_mut()
                .enumerate()
                .find_map(|(index, (_, wait))| wait.as_mut().now_or_never().map(|turn| (index, turn)));
            let (index, granted) = next.unwrap();
            order.push(waiting.remove(index).0);
            turn = granted;
        }
        assert_eq!(order, [1, 2, 1, 2, 1]);
    }

    #[tokio::test]
    async fn a_request_that_no_longer_waits_has_no_turn() {
        let turns = Turns::default();
        let turn = turns.wait(client(1)).await;
        let mut ended = [Box::pin(turns.wait(client(1))), Box::pin(turns.wait(client(2)))];
        let mut last = Box::pin(turns.wait(client(1)));
        assert!(ended.iter_mut().all(|wait| wait.as_mut().now_or_never().is_none()));
        assert!(last.as_mut().now_or_never().is_none());
        let [first, second] = ended;
        drop(first);
        drop(turn); // the second one has its turn
        drop(second);
        let turn = last.now_or_never().unwrap();
        drop(turn);
        assert!(turns.wait(client(3)).now_or_never().is_some());
    }
}
