//! API servers that do not say that they honour dry runs.

use super::*;

/// A transport to an aggregated API server of the group of Lamps, which stores what a dry run asks for.
fn without_dry_runs(server: &ApiServer, hash: &'static str) -> Transport {
    let live = Transport::from(server.client());
    let aggregated = tower::service_fn(move |mut request: Request<Body>| {
        let live = live.clone();
        async move {
            let path = request.uri().path().to_owned();
            if path == "/apis/plan.reknit.dev/v1" {
                let resource = json!({"name": "lamps", "kind": "Lamp", "storageVersionHash": hash});
                let list = json!({"kind": "APIResourceList", "resources": [resource]});
                return Ok(reply::Reply::ok(&list).into_response());
            }
            if path.starts_with("/apis/plan.reknit.dev/") && request.method() != http::Method::GET {
                let uri = request.uri().to_string().replace("dryRun=All", "");
                *request.uri_mut() = uri.parse()?;
            }
            live.send(request).await.map_err(tower::BoxError::from)
        }
    });
    Transport::new(aggregated, "default")
}

#[tokio::test]
async fn nothing_is_sent_to_an_api_server_that_does_not_say_that_it_honours_dry_runs() {
    for (hash, is_sent) in [("", false), ("k1o=", true)] {
        let server = server();
        paint(&server, "red").await;
        let (objects, _) = (server.objects(), server.take_writes());
        let main = Main::new("test").plannable().controller(|cx| painter(cx, "blue"));
        let (status, text, json) = plan(main, without_dry_runs(&server, hash)).await.unwrap();
        let writes = server.take_writes();
        assert_eq!(writes.iter().any(|write| write.resource == "lamps/status"), is_sent, "{writes:?}");
        if !is_sent {
            assert_eq!(server.objects(), objects);
            assert_eq!(status, 3, "{text}");
            let lamp = json["objects"].as_array().unwrap().iter().find(|object| object["kind"] == "Lamp");
            assert_eq!(lamp.unwrap()["after"]["status"]["color"], "blue");
            let reason =
                "Lamp default/desk: the object, since its API server does not say that it honours dry runs";
            assert!(text.contains(reason), "{text}");
        }
    }
}

#[tokio::test]
async fn a_subresource_of_an_api_server_that_does_not_say_that_it_honours_dry_runs_is_not_written() {
    let server = server();
    let main = Main::new("test").plannable().controller(|cx| {
        let script: Script = |client, _, _| {
            async move {
                let path = "/apis/subresources.plan.reknit.dev/v1/namespaces/default/lamps/desk/restart";
                let restart = http::Request::put(path).body(b"{}".to_vec())?;
                Ok(client.request_text(restart).await.map(|_| ())?)
            }
            .boxed()
        };
        Ok(Controller::of::<Lamp>(cx).reconciler(Scripted(cx.client(), cx.get(), script)).build())
    });
    let (status, text, _) = plan(main, server.client().into()).await.unwrap();
    assert_eq!((status, server.take_writes().len()), (4, 0), "{text}");
    assert!(
        text.contains("lamps/desk/restart: its API server does not say that it honours dry runs"),
        "{text}"
    );
    assert!(text.contains("PUT restart"), "{text}");
}
