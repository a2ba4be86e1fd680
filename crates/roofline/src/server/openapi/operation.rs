//! The table of routes, as the document shows them.

use roofline_core::recommend::RecommendationResult;
use roofline_verbs::{
    analyze, chart, compare, devices, formats, measure, models, plot, precisions, predict, recommend, sweep, tiling,
};
use schemars::SchemaGenerator;
use serde_json::{Value, json};

use super::{
    super::{
        catalogue::{DEVICE_FILTERS, Health},
        compat::{
            hardware::{HardwareListItem, HardwareSpecInput, Registered},
            imports::{FlexibleImportRequest, ImportBenchmarkResponse, ValidateRequest},
            nvml::Look,
            products::{AnalyzeResponse, GEMMSpec, SweepResponse, TilingResult},
            wish::RecommendSpec,
        },
        jobs::{
            Question, Record,
            routes::{Detail, List},
        },
        trace::KINDS,
    },
    schema::{asked, either, of, one_of, query as fields},
};

type Generated<T> = fn(&mut SchemaGenerator) -> T;

/// A route.
pub(in crate::server) struct Operation {
    pub(in crate::server) method: &'static str,
    pub(in crate::server) path: &'static str,
    pub(super) summary: &'static str,
    pub(super) query: fn() -> Vec<Value>,
    /// The schema of the body, and whether there must be one.
    pub(super) body: Generated<Option<(Value, bool)>>,
    /// What a body may be beside JSON, byte by byte.
    pub(super) also: &'static [&'static str],
    pub(in crate::server) example: Option<&'static str>,
    pub(in crate::server) status: &'static str,
    pub(in crate::server) kind: &'static str,
    pub(super) answer: Generated<Value>,
}

impl Operation {
    /// A name for programs that make programs of the document.
    pub(super) fn id(&self) -> String {
        let words = self.path.split(['/', '{', '}', '-', '.']).filter(|word| !word.is_empty() && *word != "api");
        format!("{}_{}", self.method, words.collect::<Vec<_>>().join("_"))
    }

    pub(super) fn path_parameters(&self) -> Vec<Value> {
        let names = self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let parameter = |name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
        names.map(parameter).collect()
    }
}

const fn get(path: &'static str, summary: &'static str, answer: Generated<Value>) -> Operation {
    Operation {
        method: "get",
        path,
        summary,
        query: Vec::new,
        body: |_| None,
        also: &[],
        example: None,
        status: "200",
        kind: "application/json",
        answer,
    }
}

/// Names the device in the query.
fn hardware_key() -> Vec<Value> {
    vec![query("hardware_key", &json!({ "type": "string", "default": "b10" }), "A key or alias of GET /api/devices")]
}

fn query(name: &str, schema: &Value, description: &str) -> Value {
    json!({ "name": name, "in": "query", "required": false, "schema": schema, "description": description })
}

fn flag(name: &str, description: &str) -> Value {
    query(name, &json!({ "type": "boolean", "default": false }), description)
}

fn side(name: &str) -> Value {
    query(name, &json!({ "type": "integer", "minimum": 1, "maximum": 2_147_483_647, "default": 4096 }), "A dimension")
}

const fn verb(
    path: &'static str,
    summary: &'static str,
    body: Generated<Option<(Value, bool)>>,
    example: &'static str,
    answer: Generated<Value>,
) -> Operation {
    Operation { method: "post", body, example: Some(example), ..get(path, summary, answer) }
}

pub(in crate::server) const OPERATIONS: &[Operation] = &[
    get("/api/health", "The server, and the machine it runs on", of::<Health>),
    Operation {
        query: || fields::<devices::Request>(DEVICE_FILTERS),
        ..get("/api/devices", "Devices, with everything their files say", of::<devices::Answer>)
    },
    get("/api/devices/{key}", "One device", of::<devices::Answer>),
    get("/api/models", "Models: dimensions, parameters, cache", of::<models::Answer>),
    get("/api/models/{key}", "One model", of::<models::Answer>),
    get("/api/formats", "Number formats: size, range, error, who multiplies them", of::<formats::Answer>),
    get("/api/formats/{key}", "One format", of::<formats::Answer>),
    Operation {
        query: || fields::<precisions::Request>(&["on"]),
        ..get("/api/precisions", "Named precisions: which format at which place", of::<precisions::Answer>)
    },
    verb(
        "/api/predict",
        "How fast it can run: time, bound and reason of an operator or a model",
        asked::<predict::Request>,
        r#"{"subject":"gemv","n":4096,"k":4096,"on":["h200"],"precision":["bf16","w4a16"]}"#,
        of::<predict::Answer>,
    ),
    verb(
        "/api/roofline",
        "The same with everything a picture needs: ceilings, diagonals, points",
        asked::<predict::Request>,
        r#"{"subject":"model","model":"llama-3-8b","on":["h200"],"precision":["bf16"],"phase":"decode","batch":8,"context":4096}"#,
        of::<chart::Answer>,
    ),
    Operation {
        kind: "image/svg+xml",
        ..verb(
            "/api/plot",
            "A picture: the roofline, time against batch or context, shares of the time",
            asked::<plot::Request>,
            r#"{"kind":"roofline","models":["llama-3-8b"],"on":["h200"],"precision":["bf16","w4a16"]}"#,
            |_| json!({ "type": "string" }),
        )
    },
    Operation {
        query: || {
            [hardware_key(), vec![flag("run_all_precisions", "FP16, FP8_E4M3, NVFP4, INT8 and INT4"), backend()]]
                .concat()
        },
        ..verb(
            "/api/analyze",
            "Everything about one product; with `model`, what a measured run achieved",
            either::<GEMMSpec, analyze::Request>,
            r#"{"M":1,"N":4096,"K":4096,"precision":"FP16"}"#,
            one_of::<AnalyzeResponse, analyze::Answer>,
        )
    },
    Operation {
        query: hardware_key,
        ..verb(
            "/api/public/analyze",
            "Everything about one product, without touching a GPU",
            asked::<GEMMSpec>,
            r#"{"M":1,"N":4096,"K":4096,"precision":"FP16"}"#,
            of::<AnalyzeResponse>,
        )
    },
    Operation {
        query: recommend_query,
        ..verb(
            "/api/recommend",
            "Which precision to use: every plan predicted, ranked by a goal within limits",
            either::<RecommendSpec, recommend::Request>,
            r#"{"M":1,"N":4096,"K":4096}"#,
            one_of::<RecommendationResult, recommend::Answer>,
        )
    },
    Operation {
        query: recommend_query,
        ..verb(
            "/api/public/recommend",
            "The same",
            either::<RecommendSpec, recommend::Request>,
            r#"{"M":1,"N":4096,"K":4096}"#,
            one_of::<RecommendationResult, recommend::Answer>,
        )
    },
    Operation {
        query: || {
            let list = json!({ "type": "array", "items": { "type": "string" }, "maxItems": 64 });
            let precisions = query("precisions", &list, "Names; those of the device when left out");
            let quick = flag("quick", "Three shapes instead of ten");
            [hardware_key(), vec![flag("run_measured", "Measure them, too"), quick, precisions, backend()]].concat()
        },
        ..verb(
            "/api/sweep",
            "Products from a decoded token to a long prompt; with an object, what `roofline sweep` answers",
            |generator| {
                let list = json!({ "type": "array", "items": { "type": "string" }, "maxItems": 64 });
                asked::<sweep::Request>(generator).map(|(schema, _)| (json!({ "anyOf": [list, schema] }), false))
            },
            r#"["FP16","NVFP4"]"#,
            one_of::<SweepResponse, sweep::Answer>,
        )
    },
    Operation {
        query: || {
            let precision = query("precision", &json!({ "type": "string", "default": "FP16" }), "Of the operands");
            [hardware_key(), vec![side("M"), side("N"), side("K"), precision]].concat()
        },
        ..verb(
            "/api/tiling",
            "How a product cuts into tiles, best first",
            |generator| asked::<tiling::Request>(generator).map(|(schema, _)| (schema, false)),
            r#"{"m":4096,"n":4096,"k":4096,"on":"h200","format":"bf16"}"#,
            one_of::<Vec<TilingResult>, tiling::Answer>,
        )
    },
    get("/api/hardware", "Devices in short", of::<Vec<HardwareListItem>>),
    verb(
        "/api/hardware",
        "Describes a device that is in no list; it is known until the server stops",
        asked::<HardwareSpecInput>,
        r#"{"name":"My chip","bandwidth_gb_s":1200,"flops_by_precision":{"FP16":300,"INT8":600},"memory_gb":64}"#,
        of::<Registered>,
    ),
    get("/api/public/hardware", "The same list", of::<Vec<HardwareListItem>>),
    verb(
        "/api/import-benchmarks",
        "Reads measurements made elsewhere, and completes what follows from their shapes",
        asked::<FlexibleImportRequest>,
        r#"{"simplified":[{"shape":"4096x4096","precision":"FP16","time_us":203.4}]}"#,
        of::<ImportBenchmarkResponse>,
    ),
    verb(
        "/api/public/import-benchmarks",
        "The same",
        asked::<FlexibleImportRequest>,
        r#"{"simplified":[{"shape":"4096x4096","precision":"FP16","time_us":203.4}]}"#,
        of::<ImportBenchmarkResponse>,
    ),
    verb(
        "/api/validate",
        "Measurements made elsewhere against the roof of a device",
        asked::<ValidateRequest>,
        r#"{"hardware_key":"gb10","benchmarks":[{"kernel_type":"gemv","shape":[4096,4096],"precision":"FP16","measured_time_us":203.4}]}"#,
        of::<compare::Judged>,
    ),
    job(
        "/api/measure",
        "How fast it does run: a job that runs kernels, checks them and times them",
        asked::<measure::Request>,
        r#"{"subject":"gemv","n":4096,"k":4096,"precision":["fp32","bf16"]}"#,
    ),
    job(
        "/api/compare",
        "Theory against measurement, as a job",
        asked::<compare::Request>,
        r#"{"subject":"gemv","n":4096,"k":4096}"#,
    ),
    Operation {
        query: || fields::<compare::Upload>(&["name", "on", "tier"]),
        also: &KINDS,
        ..verb(
            "/api/trace",
            "What a profiler recorded, against the roof: the file of torch.profiler or `ncu --csv` is the body, compressed or not",
            |_| {
                let about = "What `export_chrome_trace` writes";
                Some((json!({ "type": ["object", "array"], "description": about }), true))
            },
            r#"{"deviceProperties":[{"id":0,"name":"NVIDIA H200"}],"traceEvents":[{"ph":"X","cat":"kernel","name":"gemm","ts":1,"dur":42.5,"pid":0,"tid":7,"args":{"device":0,"stream":7}}]}"#,
            of::<compare::Answer>,
        )
    },
    job(
        "/api/jobs",
        "Any of `measure`, `compare` and `sweep` as a job",
        |_| {
            let verbs = json!({ "type": "string", "enum": Question::VERBS });
            let schema = json!({ "type": "object", "properties": { "verb": verbs }, "required": ["verb"] });
            Some((schema, true))
        },
        r#"{"verb":"sweep","measure":true,"quick":true}"#,
    ),
    get("/api/jobs", "All jobs, the latest first", of::<List>),
    get("/api/jobs/{id}", "A job with its finished kernels, and its answer once it is done", of::<Detail>),
    Operation {
        method: "delete",
        ..get("/api/jobs/{id}", "Cancels a job that has not ended; forgets one that has", of::<Record>)
    },
    Operation { method: "post", ..get("/api/jobs/{id}/cancel", "Cancels a job that has not ended", of::<Record>) },
    Operation {
        kind: "text/event-stream",
        ..get(
            "/api/jobs/{id}/events",
            "What happens, as server-sent events: `progress`, `point`, `skipped` and `end`, from the start or from Last-Event-ID on",
            |_| Value::Null,
        )
    },
    Operation {
        method: "post",
        kind: "text/event-stream",
        query: benchmark_query,
        ..get("/api/benchmark/stream", "Shapes times precisions, each measured and sent as it finishes", |_| {
            Value::Null
        })
    },
    Operation {
        kind: "text/event-stream",
        query: benchmark_query,
        ..get("/api/benchmark/stream", "The same, for an EventSource", |_| Value::Null)
    },
    get("/api/nvml/status", "What the GPU of this machine does now", of::<Look>),
    Operation { kind: "text/event-stream", ..get("/api/nvml/stream", "The same every half second", |_| Value::Null) },
];

/// A route that answers with a job to be waited for.
const fn job(
    path: &'static str,
    summary: &'static str,
    body: Generated<Option<(Value, bool)>>,
    example: &'static str,
) -> Operation {
    Operation { status: "202", ..verb(path, summary, body, example, of::<Record>) }
}

fn backend() -> Value {
    let names = json!({ "type": "string", "enum": ["cpu", "cuda", "null"] });
    query("backend", &names, "Who runs the kernels; the GPU when left out")
}

fn benchmark_query() -> Vec<Value> {
    let shapes = query("shapes", &json!({ "type": "string" }), "M,N,K;M,N,K");
    let precisions = query("precisions", &json!({ "type": "string" }), "Names with commas between them");
    let saturate = flag("saturate", "The shapes that fill a machine instead");
    [hardware_key(), vec![shapes, precisions, saturate, backend()]].concat()
}

fn recommend_query() -> Vec<Value> {
    let limit = query("memory_limit_gb", &json!({ "type": "number" }), "Memory that the weights may take");
    let phases = json!({ "type": "string", "enum": ["prefill", "decode"] });
    let phase = query("phase", &phases, "What a product without M, or the model, is for");
    let model = query("model", &json!({ "type": "string" }), "A key of GET /api/models instead of a product");
    [hardware_key(), vec![limit, phase, model]].concat()
}
