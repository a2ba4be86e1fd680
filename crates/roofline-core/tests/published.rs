//! What runtimes reach of their devices, against the speeds that people published.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{fs, path::Path};

use roofline_core::{
    Machine, Model, Plan, Registry,
    machine::{Basis, Stack},
    model::{Lowering, Workload},
    predict,
    published::{Effects, Figure, Phase, Scored, Speed, judge, scores},
};

fn speeds() -> Vec<Speed> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/published/speeds.csv");
    let text = fs::read_to_string(path).unwrap();
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    reader.deserialize().map(Result::unwrap).collect()
}

#[test]
fn every_published_name_is_known() {
    for speed in speeds() {
        assert!(Figure::of(&speed).is_ok(), "{speed:?}: {:?}", Figure::of(&speed).err());
    }
}

#[test]
fn what_ships_describes_the_figures_it_was_fitted_to() {
    let speeds = speeds();
    let figures: Vec<Figure> = speeds.iter().map(|speed| Figure::of(speed).unwrap()).collect();
    let all: Vec<&Figure> = figures.iter().collect();
    let scored = scores(&all, Effects::builtin());
    let of = |which: &dyn Fn(&Speed) -> bool| {
        let own = speeds.iter().zip(&scored).filter(|(speed, _)| which(speed)).map(|(_, scored)| *scored);
        judge(&own.collect::<Vec<Scored>>())
    };
    // Seen, so better than the errors of devices left out, which `cargo xtask calibrations` measures.
    let token = of(&|speed| speed.phase == Phase::Decode && speed.batch == 1);
    let (prompt, request) = (of(&|speed| speed.phase == Phase::Prefill), of(&|speed| speed.phase == Phase::Request));
    assert!(token.rows > 200 && token.median < 0.06 && token.p90 < 0.2, "{token:?}");
    assert!(prompt.rows > 100 && prompt.median < 0.1 && prompt.p90 < 0.35, "{prompt:?}");
    assert!(request.rows > 50 && request.median < 0.1 && request.p90 < 0.3, "{request:?}");
    for (figure, speed) in figures.iter().zip(&speeds) {
        let (time, factor) = figure.expected(Effects::builtin());
        assert!(time >= figure.floor * (1.0 - 1e-9) && factor > 1.0, "{speed:?}: {time} below {}", figure.floor);
    }
}

#[test]
fn a_figure_is_forecast_as_the_same_question_is_answered() {
    // A release that nobody published has no factor of its own, so the figure and the forecast stand on the same terms.
    let ask = |device: &str, family: &str, model: &str, quant: &str, batch, devices, phase| {
        let speed = Speed {
            source: String::new(),
            device: device.to_owned(),
            devices,
            runtime: "a release of tomorrow".to_owned(),
            runtime_family: family.to_owned(),
            model: model.to_owned(),
            quant: quant.to_owned(),
            batch,
            context: 700,
            phase,
            generated: None,
            tokens_per_s: 1.0,
            note: String::new(),
        };
        let (told, _) = Figure::of(&speed).unwrap().expected(Effects::builtin());
        let stack: Stack = roofline_core::published::stack_of(family).unwrap();
        let machine = Machine::new(Registry::builtin().find(device).unwrap().into_owned(), stack);
        let model = Model::find(model).unwrap();
        let workload = match phase {
            Phase::Decode => Workload::decode(batch, 700),
            _ => Workload::prefill(batch, 700),
        };
        let ranks = roofline_core::Dim::new("devices", devices).unwrap();
        let graph = model.graph(workload.unwrap(), Lowering { ranks, ..Lowering::default() }).unwrap();
        let plan: Plan = roofline_core::published::plan_of(quant, stack, model.anatomy.order.len()).unwrap();
        let forecast = predict(&graph, &plan, &machine).unwrap();
        let expected = forecast.total.expected.time.seconds().value();
        assert!((told / expected - 1.0).abs() < 5e-3, "{device} {family} {quant}: {told} and {expected}");
        forecast.basis
    };
    assert_eq!(ask("rtx_4090", "llama.cpp", "llama-3-8b", "Q4_K_M", 1, 1, Phase::Decode), Basis::Published);
    assert_eq!(ask("apple_m2_ultra", "mlx-lm", "llama-3-8b", "MLX 4bit g64", 1, 1, Phase::Prefill), Basis::Published);
    assert_eq!(ask("mi300x", "vllm", "llama-3.1-70b", "FP8", 8, 8, Phase::Decode), Basis::Published);
    // Nobody published ExLlamaV2 on an Apple chip: what others have in common.
    assert_eq!(ask("apple_m3_max", "exllamav2", "llama-3-8b", "fp16", 1, 1, Phase::Decode), Basis::Prior);
    ask("h100_sxm", "tensorrt-llm", "llama-3.1-8b", "FP8", 64, 1, Phase::Decode);
}
