//! Matrix products by their dimensions `M`, `N`, `K`: analyse, recommend, sweep and tile, in the form that tools of this
//! field exchange.

use axum::{extract::State, http::StatusCode, response::Response};
use roofline_core::{
    Device, Format, Op,
    op::Linear,
    predict::Tier,
    recommend::RecommendationResult,
    tiling::{Machine, Thin, Tile, Tiling, occupancy, score},
    units::Bytes,
};
use roofline_verbs::{
    Context, analyze,
    measure::MeasuredKernel,
    recommend,
    sweep::{self, QUICK, SHAPES, Shape},
    tiling,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    super::{
        answers::{self, json},
        extract::{Fields, Json, Params},
        jobs::{News, routes},
        refusal::Refusal,
        state::{Shared, State as Server},
    },
    benchmark, nvml,
    points::{RooflineLine, RooflinePoint, lines, named, point},
    wish::RecommendSpec,
};

/// The device of a request that names none.
const DEVICE: &str = "b10";
/// What products are compared in, in this order.
pub(in crate::server) const PRECISIONS: [&str; 5] = ["FP16", "FP8_E4M3", "NVFP4", "INT8", "INT4"];

/// A product, and how it is multiplied.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::server) struct GEMMSpec {
    #[serde(rename = "M")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub(in crate::server) m: u64,
    #[serde(rename = "N")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub(in crate::server) n: u64,
    #[serde(rename = "K")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub(in crate::server) k: u64,
    pub(in crate::server) precision: String,
    #[schemars(range(min = 1, max = 1_048_576))]
    tile_m: u64,
    #[schemars(range(min = 1, max = 1_048_576))]
    tile_n: u64,
    #[schemars(range(min = 1, max = 1_048_576))]
    tile_k: u64,
}

impl Default for GEMMSpec {
    fn default() -> Self {
        let precision = "FP16".to_owned();
        Self { m: 4096, n: 4096, k: 4096, precision, tile_m: 128, tile_n: 128, tile_k: 32 }
    }
}

/// How a product cuts into a tile; of one with fewer rows than any tile, how the rows of its weight are split.
#[derive(Serialize, JsonSchema)]
pub(in crate::server) struct TilingResult {
    tile_m: u64,
    tile_n: u64,
    tile_k: u64,
    shared_mem_bytes: u64,
    tiles_total: u64,
    waves: f64,
    wave_efficiency: f64,
    sm_occupancy_pct: f64,
    l2_hit_rate_estimate: f64,
    efficiency_score: f64,
    /// Bytes that a multiprocessor must have on their way, where this is a split of rows: tiles are then blocks, and shared
    /// memory holds the input.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_in_flight_per_sm: Option<u64>,
}

/// `value` with so many decimals, as these routes have always written it.
fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (value * scale).round() / scale
}

/// Everything about one product on one device.
#[derive(Serialize, JsonSchema)]
pub(in crate::server) struct AnalyzeResponse {
    hardware: String,
    simulated: Vec<RooflinePoint>,
    measured: Vec<RooflinePoint>,
    roofline_lines: Vec<RooflineLine>,
    recommendation: RecommendationResult,
    /// The tile that cuts it best; none where none fits, or the device is not known well enough.
    tiling: Option<TilingResult>,
    /// What the GPU did, where there is one.
    nvml: Option<nvml::Look>,
}

/// Many products on one device.
#[derive(Serialize, JsonSchema)]
pub(in crate::server) struct SweepResponse {
    hardware: String,
    points: Vec<RooflinePoint>,
    roofline_lines: Vec<RooflineLine>,
}

/// The device that a query names.
pub(in crate::server) fn hardware(context: &Context, query: &Params) -> Result<Device, Refusal> {
    Ok(context.device(query.get("hardware_key").unwrap_or(DEVICE))?)
}

fn spec(body: Map<String, Value>) -> Result<GEMMSpec, Refusal> {
    let spec: GEMMSpec = serde_json::from_value(Value::Object(body))
        .map_err(|error| Refusal::body(error.to_string(), "fields: M, N, K, precision, tile_m, tile_n, tile_k"))?;
    checked(spec)
}

/// A product that there can be, in a tile that there can be.
fn checked(spec: GEMMSpec) -> Result<GEMMSpec, Refusal> {
    Linear::new(spec.m, spec.n, spec.k).map_err(|error| Refusal::body(error.to_string(), "choose another shape"))?;
    let tile = 1..=1 << 20;
    if ![spec.tile_m, spec.tile_n, spec.tile_k].iter().all(|side| tile.contains(side)) {
        return Err(Refusal::body("a side of the tile is out of range", "1 to 1048576"));
    }
    Ok(spec)
}

/// `POST /api/analyze`; with `model` in its body what `roofline analyze` answers.
pub(in crate::server) async fn analyze(
    State(state): State<Shared>,
    query: Params,
    Fields(body): Fields,
) -> Result<Response, Refusal> {
    if body.contains_key("model") {
        query.only(&[])?;
        return answers::route(state, body, analyze::analyze).await;
    }
    query.only(&["hardware_key", "run_all_precisions", "backend"])?;
    let (spec, all) = (spec(body)?, query.flag("run_all_precisions")?);
    let names: Vec<&str> = if all { PRECISIONS.to_vec() } else { vec![&spec.precision] };
    let what = if all { "" } else { "GEMM " };
    let mut response = analyzed(&state, &query, &spec, all)?;
    let shape = Shape { m: spec.m, n: spec.n, k: spec.k };
    response.measured = measured(&state, &query, &[shape], &names, what).await?;
    json(&response)
}

/// The same without touching the GPU.
pub(in crate::server) async fn public_analyze(
    State(state): State<Shared>,
    query: Params,
    Fields(body): Fields,
) -> Result<Response, Refusal> {
    query.only(&["hardware_key"])?;
    json(&AnalyzeResponse { nvml: None, ..analyzed(&state, &query, &spec(body)?, false)? })
}

fn analyzed(state: &Server, query: &Params, spec: &GEMMSpec, all: bool) -> Result<AnalyzeResponse, Refusal> {
    let context = state.context();
    let device = hardware(&context, query)?;
    let simulated = if all {
        let point = |name: &&str| point(&context, &device, (spec.m, spec.n, spec.k), name, "").ok();
        PRECISIONS.iter().filter_map(point).collect()
    } else {
        vec![point(&context, &device, (spec.m, spec.n, spec.k), &spec.precision, "GEMM ")?]
    };
    let nvml = state.allow_measure.then(nvml::look_once).and_then(Result::ok);
    Ok(AnalyzeResponse {
        hardware: device.name.clone(),
        simulated,
        measured: Vec::new(),
        roofline_lines: lines(&device),
        recommendation: short(&context, query.get("hardware_key"), query.number("memory_limit_gb")?, spec)?,
        tiling: tilings(&device, spec).ok().and_then(|tilings| tilings.into_iter().next()),
        nvml,
    })
}

/// Measures products as a job and waits for it; nothing where nobody may, or the device is not in this machine.
async fn measured(
    state: &Shared,
    query: &Params,
    shapes: &[Shape],
    names: &[&str],
    what: &str,
) -> Result<Vec<RooflinePoint>, Refusal> {
    let backend = benchmark::backend(query)?;
    if !state.allow_measure || (backend.is_none() && !roofline_run::cuda::present()) {
        return Ok(Vec::new());
    }
    let context = state.context();
    let device = hardware(&context, query)?;
    let mut theirs: Vec<(String, &str)> = Vec::new();
    for name in names {
        let plan = named(name)?;
        if plan.on(&device, None).is_ok() {
            theirs.push((plan.label(), name));
        }
    }
    let ours = theirs.iter().map(|(ours, _)| ours.clone()).collect();
    let job = benchmark::job(state, shapes, ours, backend, &device).await?;
    routes::wait(&job).await;
    if let Some(error) = job.record().error {
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error, format!("GET /api/jobs/{} has more", job.id)));
    }
    let kernels = job.news(0).0.into_iter().filter_map(|news| match news {
        News::Point(kernel) => Some(kernel),
        _ => None,
    });
    let theirs = |ours: &str| theirs.iter().find(|(known, _)| known == ours).map(|(_, name)| *name);
    let told = |kernel: &MeasuredKernel| {
        let Op::Linear(Linear { m, n, k }) = kernel.op else { return None };
        let precision = theirs(&kernel.precision)?;
        let simulated = point(&context, &device, (m.get(), n.get(), k.get()), precision, "").ok()?;
        Some(RooflinePoint {
            ai: kernel.ai,
            tflops: kernel.measured_tflops,
            time_us: kernel.measured_time_us,
            label: format!("{what}{m}x{n}x{k} [{precision}] (measured)"),
            source: "measured".to_owned(),
            precision: precision.to_owned(),
            shape: format!("{m}x{n}x{k}"),
            bottleneck: simulated.bottleneck,
            bandwidth_gb_s: Some(kernel.measured_bandwidth_gb_s),
            ..RooflinePoint::default()
        })
    };
    Ok(kernels.filter_map(|kernel| told(&kernel)).collect())
}

/// `POST /api/recommend`; with `subject` in its body what `roofline recommend` answers, and with `model` as well.
pub(in crate::server) async fn recommend(
    State(state): State<Shared>,
    query: Params,
    Fields(body): Fields,
) -> Result<Response, Refusal> {
    if body.contains_key("subject") {
        query.only(&[])?;
        return answers::route(state, body, recommend::recommend).await;
    }
    let wish = RecommendSpec::read(&query, body)?;
    if let Some(question) = wish.question(DEVICE) {
        return answers::route(state, question, recommend::recommend).await;
    }
    json(&short(&state.context(), wish.hardware_key.as_deref(), wish.memory_limit_gb, &checked(wish.product())?)?)
}

fn short(
    context: &Context,
    on: Option<&str>,
    limit_gb: Option<f64>,
    spec: &GEMMSpec,
) -> Result<RecommendationResult, Refusal> {
    let place = recommend::Place {
        on: Some(on.unwrap_or(DEVICE).to_owned()),
        // Tools of the field speak of the roofline itself.
        tier: Some(Tier::Ideal),
        memory_limit: limit_gb.map(|limit| Bytes::new(limit * 1e9)),
        ..recommend::Place::default()
    };
    let Linear { m, n, k } = Linear::new(spec.m, spec.n, spec.k)?;
    Ok(recommend::short(context, &recommend::Product { m, n, k, place })?)
}

/// `POST /api/sweep`; with an object as its body what `roofline sweep` answers, else the standard shapes.
pub(in crate::server) async fn sweep(
    State(state): State<Shared>,
    query: Params,
    Json(body): Json,
) -> Result<Response, Refusal> {
    let listed = match body {
        Some(Value::Object(body)) => {
            query.only(&[])?;
            let request: sweep::Request = answers::read(body)?;
            if request.measure {
                let hint = "POST /api/jobs with `\"verb\": \"sweep\"` does";
                return Err(Refusal::new(
                    StatusCode::FORBIDDEN,
                    "a sweep that is answered at once measures nothing",
                    hint,
                ));
            }
            return answers::answer(&state, request, sweep::sweep).await;
        }
        Some(Value::Array(list)) => list,
        None => Vec::new(),
        Some(_) => return Err(Refusal::body("the body is neither a list of precisions nor an object", "see /docs")),
    };
    query.only(&["hardware_key", "run_measured", "quick", "precisions", "backend"])?;
    benchmark::backend(&query)?;
    let text = |value: &Value| {
        let text = value.as_str().map(str::to_owned);
        text.ok_or_else(|| Refusal::body(format!("{value} is no precision"), "a list of names, such as [\"FP16\"]"))
    };
    let mut names: Vec<String> = listed.iter().map(text).collect::<Result<_, _>>()?;
    names.extend(query.all("precisions").flat_map(|list| list.split(',')).map(str::to_owned));
    let quick = query.flag("quick")?;
    let asked = !names.is_empty();
    if !asked {
        let usual: &[&str] = if quick { &PRECISIONS[..3] } else { &PRECISIONS };
        names = usual.iter().map(|name| (*name).to_owned()).collect();
    }
    if names.len() > 64 {
        return Err(Refusal::body(format!("{} precisions are asked for", names.len()), "64 at most"));
    }
    let context = state.context();
    let device = hardware(&context, &query)?;
    let mut points = Vec::new();
    let shapes = if quick { &QUICK[..] } else { &SHAPES[..] };
    for Shape { m, n, k } in shapes.iter().copied() {
        for name in &names {
            match point(&context, &device, (m, n, k), name, "") {
                Ok(point) => points.push(point),
                Err(refusal) if asked => return Err(refusal),
                // The usual ones are those that the device has.
                Err(_) => {}
            }
        }
    }
    if query.flag("run_measured")? {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        points.extend(measured(&state, &query, shapes, &names, "").await?);
    }
    json(&SweepResponse { hardware: device.name.clone(), points, roofline_lines: lines(&device) })
}

/// `POST /api/tiling`, in its query or as `roofline tiling` takes it.
pub(in crate::server) async fn tiling(
    State(state): State<Shared>,
    query: Params,
    Json(body): Json,
) -> Result<Response, Refusal> {
    match body {
        Some(Value::Object(body)) => {
            query.only(&[])?;
            return answers::route(state, body, tiling::tiling).await;
        }
        Some(_) => return Err(Refusal::body("the body is no object", "say it in the query, or as an object")),
        None => {}
    }
    query.only(&["M", "N", "K", "precision", "hardware_key"])?;
    let mut fields = Map::new();
    for name in ["M", "N", "K"] {
        if let Some(value) = query.whole(name)? {
            fields.insert(name.to_owned(), value.into());
        }
    }
    if let Some(precision) = query.get("precision") {
        fields.insert("precision".to_owned(), precision.into());
    }
    json(&tilings(&hardware(&state.context(), &query)?, &spec(fields)?)?)
}

fn tilings(device: &Device, spec: &GEMMSpec) -> Result<Vec<TilingResult>, Refusal> {
    let product = Linear::new(spec.m, spec.n, spec.k)?;
    let machine = Machine::of(device)?;
    let format = operands(&spec.precision, device)?;
    let named = Tile { m: spec.tile_m, n: spec.tile_n, k: spec.tile_k };
    let usual = GEMMSpec::default();
    let rows = if named == (Tile { m: usual.tile_m, n: usual.tile_n, k: usual.tile_k }) {
        if Thin::applies(product) {
            return Ok(vec![split(product, format, device)?]);
        }
        Tiling::sweep(product, format, machine)?
    } else {
        vec![Tiling::of(product, named, format, machine)]
    };
    let row = |tiling: Tiling| TilingResult {
        tile_m: tiling.tile.m,
        tile_n: tiling.tile.n,
        tile_k: tiling.tile.k,
        shared_mem_bytes: tiling.shared_bytes.value() as u64,
        tiles_total: tiling.tiles,
        waves: rounded(tiling.waves, 2),
        wave_efficiency: rounded(tiling.wave_efficiency, 3),
        sm_occupancy_pct: rounded(100.0 * tiling.occupancy, 1),
        l2_hit_rate_estimate: rounded(tiling.l2_share, 3),
        efficiency_score: rounded(tiling.score, 3),
        bytes_in_flight_per_sm: None,
    };
    Ok(rows.into_iter().map(row).collect())
}

/// A product with fewer rows than any tile, in the fields of one.
fn split(product: Linear, format: Format, device: &Device) -> Result<TilingResult, Refusal> {
    let thin = Thin::of(product, format, device)?;
    let occupancy = occupancy(thin.blocks_per_sm);
    Ok(TilingResult {
        tile_m: product.m.get(),
        tile_n: thin.rows_per_block,
        tile_k: product.k.get().div_ceil(thin.k_splits),
        shared_mem_bytes: if thin.input_in_shared { thin.input_bytes.value() as u64 } else { 0 },
        tiles_total: thin.blocks,
        waves: rounded(thin.waves, 2),
        wave_efficiency: rounded(thin.wave_efficiency, 3),
        sm_occupancy_pct: rounded(100.0 * occupancy, 1),
        l2_hit_rate_estimate: rounded(thin.l2_share, 3),
        efficiency_score: rounded(score(thin.wave_efficiency, occupancy, thin.l2_share), 3),
        bytes_in_flight_per_sm: Some(thin.bytes_in_flight_per_sm.value() as u64),
    })
}

/// What a tile of a precision holds.
fn operands(precision: &str, device: &Device) -> Result<Format, Refusal> {
    let spec = named(precision)?;
    Ok(spec.layers(device)?.activations)
}
