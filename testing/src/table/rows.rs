//! Many cases of one controller.

use std::{fmt::Write as _, panic::Location};

use reknit_injection::Context;
use reknit_reconciler::{Controller, Result};

use super::{Given, Want};

/// Cases of one controller: what each finds, and what it is to do. Made by [`table`].
///
/// ```
/// use k8s_openapi::api::core::v1::Namespace;
/// use reknit_injection::Context;
/// use reknit_reconciler::{Controller, Event, Outcome, ReconcileKind, Result};
/// use reknit_testing::{Want, given, nothing, table};
///
/// # struct Greeter;
/// # impl ReconcileKind for Greeter {
/// #     type Kind = Namespace;
/// #     async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
/// #         Ok(Outcome::done().event(Event::normal("Greeted", "hello")))
/// #     }
/// # }
/// fn controller(cx: &Context) -> Result<Controller> {
///     Ok(Controller::of::<Namespace>(cx).reconciler(Greeter).build())
/// }
///
/// # fn shop() -> Namespace {
/// #     let mut shop = Namespace::default();
/// #     shop.metadata.name = Some("shop".into());
/// #     shop
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// table(controller)
///     .row("a namespace is greeted", "shop", given(shop()), Want::done().event(Event::normal("Greeted", "hello")))
///     .row("one that went is not", "gone", nothing(), Want::skip())
///     .run()
///     .await;
/// # }
/// ```
#[must_use = "nothing happens before `.run()`"]
pub struct Table<C> {
    constructor: C,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    key: String,
    given: Given,
    want: Want,
    place: &'static Location<'static>,
}

/// Cases of the controller that this constructor makes: the very one that main uses.
pub fn table<C: Fn(&Context) -> Result<Controller>>(constructor: C) -> Table<C> {
    Table { constructor, rows: Vec::new() }
}

impl<C: Fn(&Context) -> Result<Controller>> Table<C> {
    /// This case as well: a pass over this key, which finds this, is to do that. Its name is the fact that it shows.
    #[track_caller]
    pub fn row(mut self, name: &str, key: &str, given: Given, want: Want) -> Self {
        let place = Location::caller();
        self.rows.push(Row { name: name.into(), key: key.into(), given, want, place });
        self
    }

    /// Runs every case.
    ///
    /// # Panics
    ///
    /// Where one failed, with the name and place of each that did, and in what it did something else than it was to, or
    /// that no object of the controller's Kind can have its key; and where the constructor fails.
    #[expect(clippy::panic, reason = "it is an assertion")]
    pub async fn run(self) {
        let (mut failed, all) = (String::new(), self.rows.len());
        let mut failures = 0;
        for Row { name, key, given, want, place } in self.rows {
            let difference = match given.tried(&self.constructor, &key).await {
                Ok(passed) => passed.difference(want),
                Err(error) => Some(error.to_string()),
            };
            if let Some(difference) = difference {
                failures += 1;
                let _ = writeln!(failed, "\n{name} ({place}), the pass over {key}:\n{difference}");
            }
        }
        if failures > 0 {
            panic!("{failures} of {all} cases failed:\n{failed}");
        }
    }
}
