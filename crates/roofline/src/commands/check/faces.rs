//! The faces of the program: that its document of HTTP is whole, and that a question means the same in all of them.

use clap::Parser;
use roofline_verbs::{Context, precisions, predict, request::from_elsewhere};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Check, Status};
use crate::{
    cli::{Cli, Command},
    failure::Failure,
    server,
};

/// Questions as they are typed, and as they are sent.
fn questions() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        (
            "predict",
            "gemv --n 4096 --k 4096 --on b200 --precision bf16,w4a16",
            json!({ "subject": "gemv", "n": 4096, "k": 4096, "on": ["b200"], "precision": ["bf16", "w4a16"] }),
        ),
        (
            "predict",
            "gemm --m 64 --n 4096 --k 4096 --on jetson_orin_nano@7W -p int8",
            json!({ "subject": "gemm", "m": 64, "n": 4096, "k": 4096, "on": "jetson_orin_nano@7W", "precision": "int8" }),
        ),
        (
            "predict",
            "attention --heads 32 --kv-heads 8 --head-dim 128 --context 8192 --on a100",
            json!({ "subject": "attention", "heads": 32, "kv_heads": 8, "head_dim": 128, "context": 8192, "on": "a100" }),
        ),
        (
            "predict",
            "model llama-3-8b --on b200 --precision bf16,fp8 --batch 8 --context 2048",
            json!({
                "subject": "model", "model": "llama-3-8b", "on": "b200", "precision": ["bf16", "fp8"], "batch": 8,
                "context": 2048
            }),
        ),
        ("precisions", "--on t4", json!({ "on": "t4" })),
    ]
}

pub(super) fn checks() -> Vec<Check> {
    let (operations, dangling) = server::routes();
    let mut all = vec![Check::faults("faces", "routes of the OpenAPI document", operations, &dangling)];
    all.extend(questions().iter().map(|(verb, typed, sent)| alike(verb, typed, sent)));
    all
}

/// The same question typed and sent.
fn alike(verb: &'static str, typed: &str, sent: &Value) -> Check {
    let (by_hand, by_wire) = (as_typed(verb, typed), as_sent(verb, sent));
    let (found, right) = match (&by_hand, &by_wire) {
        (Ok(by_hand), Ok(by_wire)) if by_hand == by_wire => {
            (format!("{} bytes of JSON, the same", by_hand.len()), true)
        }
        (Ok(_), Ok(_)) => ("another answer".to_owned(), false),
        (Err(failure), _) => (format!("as typed: {}", failure.message()), false),
        (_, Err(failure)) => (format!("as sent: {}", failure.message()), false),
    };
    Check {
        part: "faces",
        name: format!("{verb} {typed}"),
        expected: "one answer, typed or over HTTP".to_owned(),
        found,
        status: Status::of(right),
        why: None,
    }
}

fn as_typed(verb: &str, typed: &str) -> Result<String, Failure> {
    let context = Context::pure();
    match Cli::try_parse_from(["roofline", verb].into_iter().chain(typed.split_whitespace()))
        .map_err(|error| Failure::typed(&error))?
        .command
    {
        Command::Predict(request) => told(predict::predict(&context, &request)?),
        Command::Precisions(request) => told(precisions::precisions(&context, &request)?),
        _ => Err(Failure::usage(format!("`{verb}` is not looked at"), "ask for a prediction")),
    }
}

fn as_sent(verb: &str, sent: &Value) -> Result<String, Failure> {
    let context = Context::pure();
    match verb {
        "predict" => told(predict::predict(&context, &from_elsewhere(sent.clone())?)?),
        _ => told(precisions::precisions(&context, &from_elsewhere(sent.clone())?)?),
    }
}

fn told(answer: impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(&answer).map_err(|error| Failure::Output(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_question_is_another_answer() {
        let sent = json!({ "subject": "gemv", "n": 4096, "k": 4096, "on": "b200" });
        assert!(alike("predict", "gemv --n 4096 --k 4096 --on b200", &sent).status == Status::Ok);
        let other = alike("predict", "gemv --n 4096 --k 4097 --on b200", &sent);
        assert!(other.status == Status::Failed && other.found == "another answer");
        let unread = alike("predict", "gemv --n 4096 --k 4096 --on b200", &json!({ "subject": "gemv", "m": 1 }));
        assert!(unread.status == Status::Failed && unread.found.starts_with("as sent: "), "{}", unread.found);
    }
}
