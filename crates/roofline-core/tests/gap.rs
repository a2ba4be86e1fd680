//! What lies between kernels: only whole passes of our own kernels on a GPU have it, it never leads below the floor, and it
//! survives its file.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::borrow::Cow;

use roofline_core::{
    Graph, Machine, Model, Plan, Registry,
    calibration::{Calibration, Gap},
    machine::Stack,
    model::{Lowering, Workload},
    predict::{Forecast, Known, Prepared, forecast},
    units::Seconds,
};

fn shipped() -> &'static Calibration {
    let device = Registry::builtin().find("h200").unwrap().into_owned();
    Calibration::builtin(&device, "roofline").unwrap()
}

fn with(kernel: f64) -> Calibration {
    let gap = Gap {
        kernel: Seconds::new(kernel),
        passes: 12,
        models: 3,
        without_mean: 0.11,
        mean: 0.04,
        median: 0.03,
        p90: 0.08,
        provenance: "a test".to_owned(),
        prompts: None,
    };
    Calibration { gap: Some(gap), ..shipped().clone() }
}

fn machine(calibration: Calibration) -> Machine {
    let machine = Machine::new(Registry::builtin().find("h200").unwrap().into_owned(), Stack::Roofline);
    machine.calibrated(Some(Cow::Owned(calibration)))
}

fn told(machine: &Machine, graph: &Graph, model: &Model) -> Forecast {
    let assignment = "w4a16".parse::<Plan>().unwrap().on(&machine.device, Some(&model.anatomy)).unwrap();
    forecast(graph, &assignment, machine).unwrap()
}

#[test]
fn a_pass_has_it_once_per_kernel() {
    let model = Model::find("llama-3-8b").unwrap();
    let graph = model.graph(Workload::decode(1, 2048).unwrap(), Lowering::default()).unwrap();
    let kernels: u64 = graph.nodes.iter().map(|node| node.count).sum();
    let time = |machine: &Machine| told(machine, &graph, &model).total.expected.time.seconds().value();
    let (plain, longer) =
        (time(&machine(Calibration { gap: None, ..shipped().clone() })), time(&machine(with(1.5e-6))));
    assert!((longer - plain - 1.5e-6 * kernels as f64).abs() < 1e-9, "{plain} {longer} {kernels}");
    assert!(time(&machine(with(-0.5e-6))) < plain);
    // No overlap leads below what bytes and operations take.
    let least = told(&machine(with(-1e-4)), &graph, &model);
    for kernel in &least.kernels {
        let expected = kernel.prediction.expected;
        assert!(expected.time.seconds() >= kernel.prediction.ideal.time().seconds());
        assert!(expected.low.seconds() >= kernel.prediction.ideal.time().seconds() && expected.launch >= Seconds::ZERO);
    }
    // Other runtimes start their kernels otherwise.
    let vllm = Calibration { stack: "vllm".to_owned(), ..with(1.5e-6) };
    assert!((time(&machine(vllm)) - plain).abs() < 1e-12);
}

/// Many passes at once say what one says.
#[test]
fn prepared_passes_have_it_too() {
    let (model, machine) = (Model::find("qwen2.5-1.5b").unwrap(), machine(with(0.9e-6)));
    let assignment = "w8a16".parse::<Plan>().unwrap().on(&machine.device, Some(&model.anatomy)).unwrap();
    for workload in [Workload::decode(8, 512).unwrap(), Workload::prefill(2, 1024).unwrap()] {
        let prepared = Prepared::new(&model, &machine, &assignment, Lowering::default(), workload).unwrap();
        let passed = prepared.pass(workload, 1, &mut Known::of(4)).unwrap();
        let graph = model.graph(workload, Lowering::default()).unwrap();
        assert_eq!(passed.total, forecast(&graph, &assignment, &machine).unwrap().total);
    }
}

#[test]
fn it_survives_its_file_and_nonsense_does_not() {
    let own = with(-0.35e-6);
    let text = toml::to_string(&own).unwrap();
    assert!(text.contains("[gap]\nkernel_s = "), "{}", &text[text.len().saturating_sub(400)..]);
    let read: Calibration = toml::from_str(&text).unwrap();
    assert_eq!(read.checked().unwrap(), own);
    // A file from before has none.
    assert_eq!(shipped().clone().checked().unwrap().stack, "roofline");
    for nonsense in ["inf", "nan", "1.0", "-1.0"] {
        let broken = text.replace("kernel_s = -0.00000035", &format!("kernel_s = {nonsense}"));
        let broken =
            if broken == text { text.replace("kernel_s = -3.5e-7", &format!("kernel_s = {nonsense}")) } else { broken };
        assert_ne!(broken, text);
        assert!(toml::from_str::<Calibration>(&broken).is_ok_and(|read| read.checked().is_err()), "{nonsense}");
    }
    for hostile in ["kernel_s = \"soon\"", "kernel_s = []", "kernel = 1e-6"] {
        let at = text.find("kernel_s").unwrap();
        let end = at + text[at..].find('\n').unwrap();
        let broken = format!("{}{hostile}{}", &text[..at], &text[end..]);
        assert!(toml::from_str::<Calibration>(&broken).is_err(), "{hostile}");
    }
}
