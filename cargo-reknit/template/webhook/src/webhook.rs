//! The webhook of the Kinds.

use reknit::prelude::*;

/// Constructs the webhook.
pub fn webhook(_: &Context) -> Result<Webhook> {
    let webhook = Webhook::new("hello.example.com");
    // reknit:scaffold:webhook
    Ok(webhook)
}
