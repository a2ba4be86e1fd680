//! What must hold for every input.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use proptest::prelude::*;
use roofline_core::{
    Device, Dim, Error, Format, Graph, Machine, Math, Model, Op, Plan, Precision, Registry,
    advice::advise,
    format::{CATALOGUE, Shape, Sizes},
    graph::Ffn,
    machine::Stack,
    model::{Lowering, Workload},
    op::{Attention, Cache},
    plan::Assignment,
    precision::{NAMED, PrecisionSpec},
    predict::{Bound, Forecast, Predicted, Tier, forecast},
    units::{ByteRate, Bytes, FlopRate, Intensity, Seconds},
};

fn dim() -> impl Strategy<Value = Dim> {
    prop_oneof![1u64..10_000, 1u64..Dim::MAX].prop_map(|value| Dim::new("test", value).unwrap())
}

fn graphs() -> impl Strategy<Value = Graph> {
    let gemm = (dim(), dim(), dim()).prop_map(|(m, n, k)| Graph::gemm(m.get(), n.get(), k.get()).unwrap());
    let attention = (dim(), 1u64..200, 1u64..64, dim(), dim(), dim(), any::<bool>(), any::<bool>()).prop_map(
        |(batch, groups, kv_heads, head_dim, a, b, causal, fused)| {
            let dim = |value| Dim::new("test", value).unwrap();
            let (queries, context) = (a.min(b), a.max(b));
            let (heads, kv_heads) = (dim(groups * kv_heads), dim(kv_heads));
            let attention = Attention {
                batch,
                heads,
                kv_heads,
                head_dim,
                value_dim: head_dim,
                queries,
                context,
                causal,
                window: None,
                cache: Cache::Separate,
            };
            Graph::attention(attention.checked().unwrap(), fused)
        },
    );
    let ffn = (dim(), dim(), dim(), any::<bool>(), any::<bool>())
        .prop_map(|(tokens, hidden, inner, gated, fused)| Graph::ffn(Ffn { tokens, hidden, inner, gated }, fused));
    prop_oneof![gemm, attention, ffn]
}

fn devices() -> impl Strategy<Value = Device> {
    let all: Vec<Device> = Registry::builtin().devices().cloned().collect();
    prop::sample::select(all)
}

fn precisions() -> impl Strategy<Value = PrecisionSpec> {
    let long = ["int4-g32-zp/bf16/fp8", "nvfp4/fp8/nvfp4", "int8/int8/int8", "nf4-dq/fp16", "mxfp4/mxfp6/fp8-tensor"];
    let all: Vec<PrecisionSpec> = NAMED
        .iter()
        .map(roofline_core::precision::Named::precision)
        .chain(long.iter().map(|text| text.parse().unwrap()))
        .collect();
    prop::sample::select(all)
}

fn sizes() -> impl Strategy<Value = Sizes> {
    prop_oneof![Just(Sizes::Exact), Just(Sizes::Nominal)]
}

/// What one precision everywhere makes of a graph.
fn uniform(graph: &Graph, precision: Precision, sizes: Sizes, device: &Device) -> Result<Forecast, Error> {
    let machine = Machine::new(device.clone(), Stack::Roofline).counting(sizes);
    forecast(graph, &Assignment::uniform(precision), &machine)
}

/// What `f` gives where this device can run it at all.
fn resolve(spec: &PrecisionSpec, device: &Device) -> Option<Precision> {
    spec.on(device).ok()
}

proptest! {
    /// No estimate is under what the bytes or the operations take at the dense peak, and none invents a third limit.
    #[test]
    fn the_physical_floor(graph in graphs(), device in devices(), spec in precisions(), sizes in sizes()) {
        let Some(precision) = resolve(&spec, &device) else { return Ok(()) };
        let Ok(forecast) = uniform(&graph, precision, sizes, &device) else { return Ok(()) };
        let mut sum = 0.0;
        for Predicted { node, prediction, .. } in &forecast.kernels {
            let estimate = prediction.ideal;
            prop_assert!(prediction.expected.time.seconds() >= estimate.time().seconds());
            prop_assert!(prediction.expected.low <= prediction.expected.time);
            prop_assert!(prediction.expected.time <= prediction.expected.high);
            let work = node.op.work(&precision, sizes);
            let memory = work.bytes().value() / device.memory.bandwidth.value();
            let compute = work.flops.value() / device.peaks.of(node.op.math(&precision)).unwrap().value();
            let time = estimate.time().seconds().value();
            prop_assert!(time >= memory && time >= compute);
            prop_assert_eq!(time, memory.max(compute));
            prop_assert_eq!(estimate.bound(), if memory >= compute { Bound::Memory } else { Bound::Compute });
            let above = estimate.ridge_distance() < 1.0 - 1e-12;
            prop_assert!(!above || estimate.bound() == Bound::Compute);
            sum += time;
        }
        let total = forecast.total.ideal.time().seconds().value();
        prop_assert!(total.is_finite() && total > 0.0);
        prop_assert!((total / sum - 1.0).abs() < 1e-12);
        prop_assert!(forecast.total.ideal.overlapped().value() <= total * (1.0 + 1e-12));
    }

    #[test]
    fn work_adds(graph in graphs(), device in devices(), spec in precisions(), sizes in sizes()) {
        let Some(precision) = resolve(&spec, &device) else { return Ok(()) };
        let Ok(forecast) = uniform(&graph, precision, sizes, &device) else { return Ok(()) };
        let sum: roofline_core::Work = graph.nodes.iter().map(|node| node.op.work(&precision, sizes)).sum();
        prop_assert!((forecast.total.ideal.work.flops / sum.flops - 1.0).abs() < 1e-12);
        prop_assert!((forecast.total.ideal.work.bytes() / sum.bytes() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn more_rows_are_never_cheaper(
        (m, n, k) in (1u64..100_000, 1u64..100_000, 1u64..100_000),
        more in 1u64..1000,
        device in devices(),
        spec in precisions(),
        sizes in sizes(),
    ) {
        let Some(precision) = resolve(&spec, &device) else { return Ok(()) };
        let time = |m, n, k| uniform(&Graph::gemm(m, n, k).unwrap(), precision, sizes, &device).unwrap().total.ideal.time();
        let base = time(m, n, k);
        prop_assert!(time(m + more, n, k) >= base);
        prop_assert!(time(m, n + more, k) >= base);
        prop_assert!(time(m, n, k + more) >= base);
    }

    /// The same for whole models: no pass is under what its bytes or operations take, sums agree, and neither more
    /// sequences nor a longer context are cheaper.
    #[test]
    fn models_keep_the_floor_and_their_order(
        model in prop::sample::select(Model::builtin()),
        device in devices(),
        spec in precisions(),
        (batch, context) in (1u64..64, 2u64..20_000),
        prefill in any::<bool>(),
        fused in any::<bool>(),
    ) {
        let Ok(plan) = Plan::of(spec).on(&device, Some(&model.anatomy)) else { return Ok(()) };
        let machine = Machine::new(device.clone(), Stack::Roofline);
        let new = if prefill { context } else { 1 };
        let run = |batch: u64, new: u64, context: u64| {
            let graph = model.graph(Workload::chunk(batch, new, context)?, Lowering { fused, ..Lowering::default() })?;
            forecast(&graph, &plan, &machine)
        };
        let Ok(told) = run(batch, new, context) else { return Ok(()) };
        let total = &told.total.ideal;
        prop_assert!(told.total.expected.time.seconds() >= total.time().seconds());
        let fastest = device.peaks.iter().map(|(_, peak)| peak.value()).fold(0.0, f64::max);
        let time = total.time().seconds().value() * (1.0 + 1e-12);
        prop_assert!(time >= total.work.bytes().value() / device.memory.bandwidth.value());
        prop_assert!(time >= total.work.flops.value() / fastest);
        prop_assert!((total.time().seconds().value() / told.kernels.iter().map(|one| one.prediction.ideal.time().seconds().value()).sum::<f64>() - 1.0).abs() < 1e-9);
        prop_assert!(run(batch + 1, new, context).unwrap().total.ideal.time().seconds().value() >= total.time().seconds().value() * (1.0 - 1e-12));
        let longer = run(batch, if prefill { context + 1 } else { 1 }, context + 1).unwrap().total.ideal;
        prop_assert!(longer.time().seconds().value() >= total.time().seconds().value() * (1.0 - 1e-12));
        let footprint = |context| {
            let workload = Workload::chunk(batch, 1, context).unwrap();
            model.footprint(workload, Lowering::default(), &plan, Sizes::Exact).unwrap().total()
        };
        prop_assert!(footprint(context + 1) >= footprint(context));
    }

    /// Scales only add.
    #[test]
    fn exact_is_never_below_nominal(rows in dim(), columns in dim(), entry in prop::sample::select(CATALOGUE)) {
        let format: Format = entry.name.parse().unwrap();
        let shape = Shape::matrix(rows, columns);
        prop_assert!(format.bytes(shape, Sizes::Exact) >= format.bytes(shape, Sizes::Nominal));
    }

    #[test]
    fn advice_keeps_its_word(graph in graphs(), device in devices(), spec in precisions(), sizes in sizes()) {
        let Some(precision) = resolve(&spec, &device) else { return Ok(()) };
        let Ok(forecast) = uniform(&graph, precision, sizes, &device) else { return Ok(()) };
        let machine = Machine::new(device.clone(), Stack::Roofline).counting(sizes);
        let Ok(advice) = advise(&graph, &forecast, &precision, &machine, Tier::Ideal) else { return Ok(()) };
        if let Some(alternative) = advice.alternative {
            let other = alternative.precision.parse::<PrecisionSpec>().unwrap().on(&device).unwrap();
            let Precision { output, kv, query, .. } = precision;
            let other = Precision { output, kv, query, ..other };
            let time = uniform(&graph, other, sizes, &device).unwrap().total.ideal.time();
            prop_assert!((forecast.total.ideal.time() / time / alternative.speedup - 1.0).abs() < 1e-9);
            prop_assert!(other.weights.nominal_bits() >= 4);
        }
        if let (Some(rows), Op::Linear(linear)) = (advice.ridge_rows, graph.nodes[0].op) {
            let bound = |m: u64| {
                let graph = Graph::gemm(m, linear.n.get(), linear.k.get()).unwrap();
                uniform(&graph, precision, sizes, &device).unwrap().total.ideal.bound()
            };
            prop_assert_eq!(bound(rows), Bound::Compute);
            prop_assert_eq!(bound(rows - 1), Bound::Memory);
        }
    }

    /// What is shown reads back as the same quantity, to the four digits that are shown.
    #[test]
    fn quantities_round_trip(value in 1e-9f64..1e20) {
        let close = |shown: f64| (shown / value - 1.0).abs() < 1e-3;
        prop_assert!(close(Bytes::new(value).to_string().parse::<Bytes>().unwrap().value()));
        prop_assert!(close(ByteRate::new(value).to_string().parse::<ByteRate>().unwrap().value()));
        prop_assert!(close(FlopRate::new(value).to_string().parse::<FlopRate>().unwrap().value()));
        prop_assert!(close(Seconds::new(value).to_string().parse::<Seconds>().unwrap().value()));
        prop_assert!(close(Intensity::new(value).to_string().parse::<Intensity>().unwrap().value()));
    }

    /// Any text gets an answer or an error, never a panic.
    #[test]
    fn hostile_text_is_refused(text in "\\PC{0,40}|[0-9a-zµ.+/ _@-]{0,24}") {
        let _ = text.parse::<Bytes>();
        let _ = text.parse::<FlopRate>();
        let _ = text.parse::<Seconds>();
        let _ = text.parse::<Format>();
        let _ = text.parse::<PrecisionSpec>();
        let _ = text.parse::<Plan>();
        let _ = Plan::list(&text);
        let _ = Plan::from_toml(&text);
        let _ = text.parse::<Math>();
        let _ = Registry::builtin().find(&text);
        let _ = Device::from_toml(&text, &text);
    }

    #[test]
    fn hostile_device_files_are_refused(
        bandwidth in "[-0-9e.]{0,8} ?[kMGTPE]?B/s|\\PC{0,12}",
        peak in "[-0-9e.]{0,8} ?[kMGTPE]?FLOP/s|\\PC{0,12}",
        unit in "fp16|int8|\\PC{0,8}",
    ) {
        let text = format!("name = 'x'\n[memory]\nbandwidth = '{bandwidth}'\n[peaks]\n'{unit}' = '{peak}'\n");
        if let Ok(device) = Device::from_toml(&text, "x.toml") {
            prop_assert!(device.memory.bandwidth >= ByteRate::new(1e6));
            prop_assert!(device.peaks.iter().all(|(_, peak)| peak >= FlopRate::new(1e6)));
        }
    }

    #[test]
    fn dimensions_are_bounded(value in any::<u64>()) {
        let dim = Dim::new("n", value);
        if (1..=Dim::MAX).contains(&value) {
            prop_assert_eq!(dim.unwrap().get(), value);
        } else {
            let refused = matches!(dim, Err(Error::Dimension { what: "n", .. }));
            prop_assert!(refused);
        }
    }
}
