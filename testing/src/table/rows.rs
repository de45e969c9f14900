//! Tables of test cases.

use std::panic::Location;

use reknit_injection::{Context, Permission};
use reknit_reconciler::{Controller, Result};

use super::{given::Given, want::Want};
use crate::Verb;

/// Test cases of one controller, created by [`table`].
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
///     .row("a missing namespace is not greeted", "gone", nothing(), Want::skip())
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
    /// The expected effects. `None` if they are not compared.
    want: Option<Want>,
    location: &'static Location<'static>,
}

/// The results of all cases.
pub(super) struct Ran {
    pub(super) failures: Vec<String>,
    /// The permissions that the constructor declared.
    pub(super) permissions: Vec<Permission>,
}

/// Creates a table for the controller of this constructor, which is the one that the program uses.
pub fn table<C: Fn(&Context) -> Result<Controller>>(constructor: C) -> Table<C> {
    Table { constructor, rows: Vec::new() }
}

impl Row {
    #[track_caller]
    fn new(name: &str, key: &str, given: Given, want: Option<Want>) -> Self {
        Self { name: name.into(), key: key.into(), given, want, location: Location::caller() }
    }
}

impl<C: Fn(&Context) -> Result<Controller>> Table<C> {
    /// Adds a case: the key to reconcile, the objects that exist, and the expected effects. The name of the case is the
    /// fact that it shows.
    #[track_caller]
    pub fn row(mut self, name: &str, key: &str, given: Given, want: Want) -> Self {
        self.rows.push(Row::new(name, key, given, Some(want)));
        self
    }

    /// Adds a case whose effects are not compared, because another test does that. It fails only if the declared
    /// permissions do not cover a request. [`each_permission_is_needed`](super::each_permission_is_needed) needs no
    /// more.
    #[track_caller]
    pub fn unchecked_row(mut self, name: &str, key: &str, given: Given) -> Self {
        self.rows.push(Row::new(name, key, given, None));
        self
    }

    /// Runs every case.
    ///
    /// # Panics
    ///
    /// Panics if a case fails, with the name and the location of each failed case and a diff. A case also fails if no
    /// object of the controller's Kind can have its key, or if the declared permissions do not cover a request. Panics
    /// if the constructor fails.
    #[expect(clippy::panic, reason = "a failed assertion of a test panics")]
    pub async fn run(self) {
        let total = self.rows.len();
        let Ran { failures, .. } = self.run_all().await;
        if !failures.is_empty() {
            panic!("{} of {total} cases failed:\n{}", failures.len(), failures.concat());
        }
    }

    /// Adds a value to the constructor's [`Context`] in every case, as [`Given::provide`] does.
    pub fn provide<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        let provide = |row: Row| Row { given: row.given.provide(value.clone()), ..row };
        self.rows = self.rows.into_iter().map(provide).collect();
        self
    }

    /// Takes a permission away in every case, as [`Given::denying`] does.
    pub fn denying(mut self, verb: Verb, resource: &str) -> Self {
        let deny = |row: Row| Row { given: row.given.denying(verb, resource), ..row };
        self.rows = self.rows.into_iter().map(deny).collect();
        self
    }

    pub(super) async fn run_all(self) -> Ran {
        let mut ran = Ran { failures: Vec::new(), permissions: Vec::new() };
        for Row { name, key, given, want, location } in self.rows {
            let difference = match given.try_reconcile(&self.constructor, &key).await {
                Ok(effects) => {
                    ran.permissions.extend(effects.permissions.declared());
                    want.and_then(|want| effects.difference(want))
                }
                Err(error) => Some(error.to_string()),
            };
            let failure =
                |difference| format!("\n{name} ({location}), the reconcile of {key}:\n{difference}\n");
            ran.failures.extend(difference.map(failure));
        }
        ran
    }
}
