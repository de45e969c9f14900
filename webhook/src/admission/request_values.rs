//! The values of ConfigMaps that a request carries.

use std::sync::Arc;

use reknit_apis::Request;
use reknit_injection::{Config, Context, FromConfigMap, config_map_name};

use super::{caches::Caches, outcome::ReviewOutcome, review::Review};

/// The ConfigMaps whose values requests carry.
#[derive(Clone, Default)]
pub(crate) struct RequestValues {
    declared: Vec<fn(&mut Self, &Context)>,
    /// Each adds the latest value of a ConfigMap. Empty until the ConfigMaps are watched.
    add: Vec<Arc<dyn Fn(Request) -> Request + Send + Sync>>,
    /// The informers of the ConfigMaps. Empty without a system namespace.
    pub(crate) caches: Caches,
}

impl RequestValues {
    /// Declares a ConfigMap.
    pub(crate) fn declare<T: FromConfigMap>(&mut self) {
        self.declared.push(Self::watch_value::<T>);
    }

    fn watch_value<T: FromConfigMap>(&mut self, cx: &Context) {
        let config = Config::<T>::new(cx, |_| {});
        if let Some(informer) = config.handle() {
            self.caches.add(&format!("ConfigMap {}", config_map_name(T::NAME)), informer);
        }
        self.add.push(Arc::new(move |request| request.with::<T>(config.get())));
    }

    /// Watches the declared ConfigMaps in the system namespace of the Context. Their informers start together with the
    /// other informers of the Context.
    pub(crate) fn watch(&mut self, cx: &Context) {
        // No controller waits for these informers.
        let cx = cx.scoped();
        std::mem::take(&mut self.declared).into_iter().for_each(|watch| watch(self, &cx));
    }

    /// Adds the values to the request of a review.
    pub(crate) fn add_to(&self, mut review: Review) -> Review {
        review.change = review.change.map(|mut change| {
            change.request = self.add.iter().fold(change.request, |request, add| add(request));
            change
        });
        review
    }

    /// Answers a review by the handler. Denies the request if a value is still missing.
    pub(crate) fn review(
        &self,
        review: Review,
        handler: impl FnOnce(Review) -> ReviewOutcome,
    ) -> ReviewOutcome {
        match (&review.change, self.caches.check()) {
            (Some(change), Err(denial)) => {
                denial.deny(review.response, &review.kind, &change.request.name).into()
            }
            _ => handler(review),
        }
    }
}
