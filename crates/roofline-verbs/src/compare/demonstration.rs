//! A whole model beside theory, with nothing to download: the one that comes with the program.

use serde_json::json;

use super::{Request, Subject};
use crate::{Context, Error, Result, demo, predict::ModelPass, request::Setting};

/// What the demo is: its checkpoint, and two that are made of it first.
pub(super) fn demonstrated(context: &Context, request: &Request) -> Result<Request> {
    if request.subject.is_some() || request.from.is_some() || request.measured.is_some() {
        return Err(Error::request("⟨demo⟩ has its own subject", "leave out the other one, or leave out ⟨demo⟩"));
    }
    if !request.precision.is_empty() {
        let hint = "`⟨roofline quantize demo⟩` writes others, and `⟨roofline compare model demo⟩` takes them ⟨beside⟩";
        return Err(Error::request("⟨demo⟩ has its own plans", hint));
    }
    let asked = json!({ "model": demo::NAME });
    let asked: ModelPass = serde_json::from_value(asked).map_err(|error| Error::request(error.to_string(), ""))?;
    let mut passes = request.passes.clone();
    for plan in ["w8a16", "w4a16"] {
        passes.beside.push(demo::quantized(context, plan)?);
    }
    let subject = Some(Subject::Model(ModelPass { setting: Setting { tier: request.tier, ..asked.setting }, ..asked }));
    Ok(Request { demo: false, subject, tier: None, passes, ..request.clone() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{context::Home, note::Nobody, request::from_json};

    #[test]
    fn what_it_cannot_be_asked_with() {
        let refused = |body: serde_json::Value| {
            let context = Context::local(Arc::new(Home::none()), Arc::new(Nobody));
            demonstrated(&context, &from_json(body).unwrap()).err().unwrap().to_string()
        };
        let gemv = json!({ "demo": true, "subject": "gemv", "n": 4096, "k": 4096 });
        assert!(refused(gemv).contains("has its own subject"));
        assert!(refused(json!({ "demo": true, "precision": "w4a16" })).contains("has its own plans"));
        // It is unpacked, so there must be a place for it.
        assert!(refused(json!({ "demo": true })).contains("no folder"));
    }
}
