//! The objects that a test can store or expect: those of a declared type, and those of a Kind known at run time.

use kube::{
    Resource,
    core::{GroupVersionKind, TypeMeta},
    discovery::ApiResource,
};
use reknit_apis::Key;
use reknit_injection::{Cached, Context, Informer, select};
use serde::Serialize;
use serde_json::Value;

/// An object that a test can store or expect: of any type with a fixed Kind, or a `DynamicObject` that has its
/// apiVersion and kind, as from `DynamicObject::new`. The trait is implemented for all of these.
///
/// ```
/// use k8s_openapi::api::core::v1::{Namespace, Pod};
/// use kube::{api::{ApiResource, DynamicObject}, core::GroupVersionKind};
/// use reknit_testing::{TestObject, given};
///
/// let channel = ApiResource::from_gvk(&GroupVersionKind::gvk("messaging.example.com", "v1", "Channel"));
/// let object = DynamicObject::new("events", &channel).within("shop");
/// assert_eq!(object.api_resource().plural, "channels");
///
/// let state = given(Namespace::default()).and(object);
/// # let _ = state;
/// ```
pub trait TestObject: Cached + Serialize {
    /// Returns the resource of the object. The plural of a `DynamicObject` is the one that kube derives from its kind.
    ///
    /// # Panics
    ///
    /// Panics if it is a `DynamicObject` without apiVersion and kind.
    fn api_resource(&self) -> ApiResource;

    /// Returns a function that reads an object of the resource from its informer.
    #[doc(hidden)]
    fn reader(cx: &Context, resource: &ApiResource) -> Reader;
}

/// Reads the object of a key from an informer, as JSON.
type Reader = Box<dyn Fn(&Key) -> Option<Value> + Send>;

impl<K: Cached<DynamicType: TestKind> + Serialize> TestObject for K {
    fn api_resource(&self) -> ApiResource {
        K::DynamicType::api_resource(self)
    }

    fn reader(cx: &Context, resource: &ApiResource) -> Reader {
        K::DynamicType::reader::<K>(cx, resource)
    }
}

/// The ways to know the Kind of an object: by its type, or by its fields.
pub trait TestKind: Sized {
    fn api_resource<K: Resource<DynamicType = Self> + Serialize>(object: &K) -> ApiResource;
    fn reader<K: Cached<DynamicType = Self> + Serialize>(cx: &Context, resource: &ApiResource) -> Reader;
}

impl TestKind for () {
    fn api_resource<K: Resource<DynamicType = ()> + Serialize>(_: &K) -> ApiResource {
        ApiResource::erase::<K>(&())
    }

    fn reader<K: Cached<DynamicType = ()> + Serialize>(cx: &Context, _: &ApiResource) -> Reader {
        read_from(cx.get::<Informer<K>>())
    }
}

impl TestKind for ApiResource {
    #[expect(clippy::expect_used, reason = "a mistake in a test panics")]
    fn api_resource<K: Resource<DynamicType = Self> + Serialize>(object: &K) -> ApiResource {
        let fields = serde_json::to_value(object).expect("an object is JSON");
        let types: TypeMeta =
            serde_json::from_value(fields).expect("a dynamic object in a test has apiVersion and kind");
        let kind = GroupVersionKind::try_from(&types).expect("the apiVersion of a dynamic object is valid");
        ApiResource::from_gvk(&kind)
    }

    fn reader<K: Cached<DynamicType = Self> + Serialize>(cx: &Context, resource: &ApiResource) -> Reader {
        read_from(cx.informer_of(resource, select()))
    }
}

fn read_from<K: Cached + Serialize>(informer: Informer<K>) -> Reader {
    Box::new(move |key| serde_json::to_value(&*informer.get(key)?).ok())
}
