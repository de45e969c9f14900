//! The client whose writes, and reads of single objects, are in the stores once they return.

use bytes::Bytes;
use futures::FutureExt;
use http::{Method, Request, Response};
use kube::client::Body;
use serde::Deserialize;

use reknit_apis::Key;

use crate::{
    extensions::Newest,
    intake::AnswerTo,
    raw::Raw,
    read_back::read_back,
    registry::Informers,
    resource_path::ResourcePath,
    transport::{Answer, Transport, collect, whole},
};

impl Informers {
    /// The same way, with the answers to successful writes, and to reads of single objects, going to the informers
    /// they concern, before whoever asked gets them.
    pub(crate) fn reading_own_writes(&self, transport: &Transport) -> Transport {
        let (informers, below) = (self.clone(), transport.clone());
        transport.with(move |request| {
            let told = Told::of(&request, &informers);
            let answer = below.send(request);
            let Some(told) = told else { return answer };
            let (below, informers) = (below.clone(), informers.clone());
            async move { told.pass_on(answer.await?, &below, &informers).await }.boxed()
        })
    }
}

/// A request whose answer is the newest state of something that informers hold.
struct Told {
    path: String,
    writes: bool,
    request: AnswerTo,
}

/// What a deletion answers where it does not answer the object.
#[derive(Deserialize)]
struct Status {
    kind: String,
    status: String,
    #[serde(default)]
    details: Details,
}

#[derive(Default, Deserialize)]
struct Details {
    uid: Option<String>,
}

#[derive(Deserialize)]
struct List {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Named,
}

#[derive(Deserialize)]
struct Named {
    namespace: Option<String>,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions {
    #[serde(default)]
    dry_run: Vec<String>,
}

impl Told {
    fn of(request: &Request<Body>, informers: &Informers) -> Option<Self> {
        let (method, query) = (request.method(), request.uri().query().unwrap_or_default());
        let deleting = *method == Method::DELETE;
        let path = ResourcePath::read(request.uri().path())?;
        // With a resourceVersion it may be answered from a cache; without a name it is a list.
        let one = path.is_of_one() && path.subresource().is_none();
        let reads = *method == Method::GET && query.is_empty() && one;
        let writes = deleting || [Method::POST, Method::PUT, Method::PATCH].contains(method);
        if !(reads || writes) || query.contains("dryRun") {
            return None;
        }
        // These answer with streams, or with whatever another server says; a token leaves its account as it was.
        let foreign =
            matches!(path.subresource(), Some("proxy" | "exec" | "attach" | "portforward" | "token"));
        if foreign || !informers.concerns(&path) || (deleting && is_dry(request.body())) {
            return None;
        }
        let path = request.uri().path().to_owned();
        let request = match request.extensions().get() {
            _ if deleting => AnswerTo::Deletion,
            Some(status) => AnswerTo::Status(*status),
            None => AnswerTo::Other,
        };
        Some(Self { path, writes, request })
    }

    async fn pass_on(
        self,
        answer: Answer,
        transport: &Transport,
        informers: &Informers,
    ) -> kube::Result<Answer> {
        if !answer.status().is_success() {
            return Ok(answer);
        }
        let (mut head, body) = answer.into_parts();
        let answered = collect(body).await?;
        if let Some(newest) = self.answered(&answered, transport, informers).await {
            head.extensions.insert(newest);
        }
        Ok(Response::from_parts(head, whole(answered)))
    }

    /// Tells the informers what the answer says of the objects, and where it does not, what a list says of them. What
    /// the next write to the one in the answer has to know.
    async fn answered(&self, answer: &Bytes, transport: &Transport, informers: &Informers) -> Option<Newest> {
        let path = ResourcePath::read(&self.path)?;
        let text = std::str::from_utf8(answer).ok()?;
        match self.tell(&path, text, informers) {
            Ok(newest) => newest,
            Err(unsaid) => {
                Box::pin(read_back(transport, informers, &path, unsaid)).await; // seldom, and large
                None
            }
        }
    }

    /// `Err` are the objects of which the answer does not say what became of them, if there are any.
    fn tell(
        &self,
        path: &ResourcePath<'_>,
        text: &str,
        informers: &Informers,
    ) -> Result<Option<Newest>, Vec<Key>> {
        let deleting = self.request.is_deletion();
        let erased = deleting && path.subresource().is_none();
        if let Some(Details { uid }) = erased.then(|| Status::success(text)).flatten()
            && let Some(key) = path.key()
        {
            informers.erased(path, &key, uid.as_deref());
            return Ok(None);
        }
        if deleting && !path.is_of_one() {
            return Err(items(text));
        }
        match Raw::read(text).ok().filter(|raw| informers.wrote(path, raw, text, self.request)) {
            Some(raw) => Ok(raw.newest()),
            None => Err(path.key().filter(|_| self.writes).into_iter().collect()),
        }
    }
}

impl Status {
    /// What it says of a success.
    fn success(text: &str) -> Option<Details> {
        let said: Self = serde_json::from_str(text).ok()?;
        (said.kind == "Status" && said.status == "Success").then_some(said.details)
    }
}

/// Which objects a deletion of a collection says that it deleted.
fn items(text: &str) -> Vec<Key> {
    let Ok(deleted) = serde_json::from_str::<List>(text) else { return Vec::new() };
    deleted
        .items
        .iter()
        .map(|item| Key::new(item.metadata.namespace.as_deref(), item.metadata.name.as_str()))
        .collect()
}

/// Whether the options in a deletion's body ask only what would happen. A body that cannot be looked at is taken so.
fn is_dry(body: &Body) -> bool {
    let Some(Some(Ok(bytes))) = body.try_clone().map(|body| body.collect_bytes().now_or_never()) else {
        return true;
    };
    !bytes.is_empty() && serde_json::from_slice::<DeleteOptions>(&bytes).is_ok_and(|o| !o.dry_run.is_empty())
}

#[cfg(test)]
mod tests;
