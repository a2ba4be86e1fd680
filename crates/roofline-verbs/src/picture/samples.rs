//! Pictures for the tests, of the size and with the numbers that real ones have.

use roofline_core::units::{ByteRate, FlopRate, Intensity};

use super::{Bar, Ceiling, Class, Group, Lines, Memory, Pareto, Point, Roofline, Series, Shares, Spotted, Time, Times};

const BANDWIDTH: f64 = 4.8;
const PEAKS: [(&str, f64); 4] = [("FP32", 66.9), ("TF32", 494.7), ("BF16", 989.4), ("FP8", 1978.9)];

/// Numbers that look random and are the same in every run.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    /// The next one, from 0 to 1.
    pub(super) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

pub(super) fn point(label: &str, class: Class, series: &str, intensity: f64, efficiency: f64) -> Point {
    let peak = if series == "fp8" { 1978.9 } else { 989.4 };
    Point {
        label: label.to_owned(),
        intensity: Intensity::new(intensity),
        rate: FlopRate::new((intensity * BANDWIDTH).min(peak) * efficiency * 1e12),
        class,
        series: series.to_owned(),
        measured: efficiency != 1.0,
    }
}

/// An H200 without points.
pub(super) fn h200() -> Roofline {
    let ceiling = |(label, peak): (&str, f64)| Ceiling { label: label.to_owned(), peak: FlopRate::new(peak * 1e12) };
    Roofline {
        title: "Llama-3-8B on H200 SXM5 141GB".to_owned(),
        subtitle: "decode at batch 1 and prefill of 2048 tokens, context 4096, ideal roofline".to_owned(),
        memories: vec![Memory { label: "HBM3e".to_owned(), bandwidth: ByteRate::new(BANDWIDTH * 1e12) }],
        ceilings: PEAKS.map(ceiling).to_vec(),
        points: Vec::new(),
        brief: false,
    }
}

pub(super) fn three() -> Roofline {
    let points = vec![
        point("decode", Class::Total, "bf16", 1.02, 1.0),
        point("prefill attention", Class::Attention, "bf16", 730.0, 0.62),
        point("prefill", Class::Total, "bf16", 1610.0, 1.0),
    ];
    Roofline { points, ..h200() }
}

/// Decode and prefill of a model in two precisions, predicted and measured.
pub(super) fn model() -> Roofline {
    let mut numbers = Numbers(7);
    let mut points = Vec::new();
    let operators = [
        ("q_proj", Class::Product, 1.0, 1365.0),
        ("k_proj", Class::Product, 0.999, 617.0),
        ("v_proj", Class::Product, 0.999, 617.0),
        ("o_proj", Class::Product, 1.0, 1365.0),
        ("gate_proj", Class::Product, 1.0, 1638.0),
        ("up_proj", Class::Product, 1.0, 1638.0),
        ("down_proj", Class::Product, 1.0, 1638.0),
        ("lm_head", Class::Product, 1.0, 1400.0),
        ("attention", Class::Attention, 3.97, 810.0),
        ("rms_norm", Class::Elementwise, 0.75, 0.8),
        ("swiglu", Class::Elementwise, 0.67, 0.66),
        ("rope", Class::Elementwise, 0.9, 0.95),
    ];
    for (series, factor) in [("bf16", 1.0), ("fp8", 1.97)] {
        for (name, class, decode, prefill) in operators {
            let factor = if class == Class::Product { factor } else { 1.0 };
            points.push(point(&format!("{name} decode"), class, series, decode * factor, 1.0));
            points.push(point(&format!("{name} prefill"), class, series, prefill * factor, 1.0));
        }
        for (name, intensity) in [("decode", 1.03), ("prefill", 1290.0)] {
            points.push(point(name, Class::Total, series, intensity * factor, 1.0));
            points.push(point(name, Class::Total, series, intensity * factor, 0.55 + 0.3 * numbers.next()));
        }
    }
    for (name, class, _, prefill) in operators.into_iter().take(4) {
        points.push(point(&format!("{name} prefill"), class, "bf16", prefill, 0.5 + 0.4 * numbers.next()));
    }
    Roofline { points, ..h200() }
}

/// Two memories, and units whose peaks are equal or nearly so.
pub(super) fn crowded() -> Roofline {
    let mut roofline = three();
    let cache = Memory { label: "L2".to_owned(), bandwidth: ByteRate::new(12e12) };
    roofline.memories.push(cache);
    for (label, peak) in [("FP16", 989.4), ("INT8", 1978.9), ("FP64 tensor", 66.9), ("FP64", 33.5)] {
        roofline.ceilings.push(Ceiling { label: label.to_owned(), peak: FlopRate::new(peak * 1e12) });
    }
    roofline
}

/// Points anywhere under the roof.
pub(super) fn scattered(count: usize, seed: u64) -> Roofline {
    let mut numbers = Numbers(seed);
    let classes = [Class::Product, Class::Attention, Class::Elementwise, Class::Total];
    let points = (0..count).map(|at| {
        let intensity = 10_f64.powf(numbers.next() * 4.0 - 0.4);
        let series = ["bf16", "fp8", "w4a16"][at % 3];
        let class = classes[(numbers.next() * 3.2) as usize];
        point(&format!("layer {at} proj"), class, series, intensity, if at % 2 == 0 { 1.0 } else { numbers.next() })
    });
    Roofline { points: points.collect(), ..h200() }
}

pub(super) fn lines() -> Lines {
    let formats = [("bf16", 16.06), ("fp8", 9.09), ("w8a16", 9.1), ("w4a16", 5.7), ("nvfp4", 5.55)];
    let series = formats.into_iter().map(|(label, gigabytes)| {
        let time = |batch: f64| ((gigabytes + batch * 0.537) / BANDWIDTH).max(batch * 0.0162) / batch;
        let points = (0..=9).map(|power| f64::from(1 << power)).map(|batch| (batch, time(batch))).collect();
        Series { label: label.to_owned(), points }
    });
    Lines {
        title: "Time per token against batch".to_owned(),
        subtitle: "Llama-3-8B on H200, context 4096, ideal roofline".to_owned(),
        x_label: "batch, sequences".to_owned(),
        y_label: "ms per token".to_owned(),
        log_x: true,
        log_y: true,
        series: series.collect(),
    }
}

pub(super) fn shares() -> Shares {
    let parts = [
        ("qkv", [9.5, 8.7, 3.1, 10.4]),
        ("attention", [3.2, 24.0, 66.0, 14.9]),
        ("o_proj", [6.3, 5.0, 2.0, 6.6]),
        ("gate and up", [45.2, 38.0, 15.2, 44.0]),
        ("down_proj", [22.6, 18.0, 7.7, 21.8]),
        ("lm_head", [6.9, 4.0, 3.0, 0.4]),
        ("norm", [2.0, 0.8, 1.4, 0.7]),
        ("rope", [0.7, 0.4, 0.3, 0.5]),
        ("swiglu", [2.6, 0.8, 1.2, 0.4]),
        ("sampling", [1.0, 0.3, 0.1, 0.3]),
    ];
    let bars = ["decode, batch 1", "decode, batch 32", "decode, batch 32, context 32 k", "prefill, 2048 tokens"];
    let bar = |(at, label): (usize, &str)| Bar {
        label: label.to_owned(),
        parts: parts.iter().map(|(name, shares)| ((*name).to_owned(), shares[at])).collect(),
    };
    Shares {
        title: "Where the time goes".to_owned(),
        subtitle: "Llama-3-8B in bf16 on H200, share of time per operator".to_owned(),
        bars: bars.into_iter().enumerate().map(bar).collect(),
    }
}

/// Texts and numbers that no picture should contain.
pub(super) fn hostile() -> Roofline {
    let label = "</text><script>alert('x')</script>&\"\u{0}\u{1b}[31m\u{202e}\u{ffff}漢字".to_owned();
    let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e300, 1e-300, f64::MIN_POSITIVE, 1.0];
    let point = |intensity: f64, rate: f64| Point {
        label: label.clone(),
        intensity: Intensity::new(intensity),
        rate: FlopRate::new(rate),
        class: Class::Product,
        series: label.clone(),
        measured: false,
    };
    let pairs = values.iter().flat_map(|x| values.iter().map(|y| (*x, *y)));
    Roofline {
        title: label.repeat(9),
        subtitle: label.clone(),
        memories: values.map(|value| Memory { label: label.clone(), bandwidth: ByteRate::new(value) }).to_vec(),
        ceilings: values.map(|value| Ceiling { label: label.clone(), peak: FlopRate::new(value) }).to_vec(),
        points: pairs.map(|(x, y)| point(x, y)).collect(),
        brief: false,
    }
}

pub(super) fn pareto() -> Pareto {
    let plans = [
        ("bf16", 16.6, 309.0, 0, true),
        ("fp8", 9.6, 541.0, 1, true),
        ("w8a16", 9.6, 541.0, 0, true),
        ("w4a16", 6.2, 870.0, 2, false),
        ("int4-g32/bf16, int8-g32 head", 5.6, 930.0, 2, true),
        ("mxfp4a16, <b>int8</b> cache", 5.3, 1010.0, 4, true),
        ("unbounded", f64::NAN, f64::INFINITY, 3, true),
    ];
    let spotted = |(label, x, y, class, front): (&str, f64, f64, usize, bool)| Spotted {
        label: label.to_owned(),
        x,
        y,
        class,
        front,
        chosen: label.starts_with("int4"),
    };
    let classes = ["up to +1 %", "up to +5 %", "up to +15 %", "more", "unknown"];
    Pareto {
        title: "Llama 3 8B on H200".to_owned(),
        subtitle: "7 plans for one more token".to_owned(),
        x_label: "memory, GB".to_owned(),
        y_label: "tokens/s".to_owned(),
        classes: classes.map(str::to_owned).to_vec(),
        plans: plans.map(spotted).to_vec(),
        limit: Some(20.0),
    }
}

pub(super) fn times() -> Times {
    let bar = |label: &str, ideal: f64, expected: Option<f64>, measured: f64, note: &'static str| Time {
        label: label.to_owned(),
        ideal,
        expected,
        measured,
        of_roof: ideal / measured,
        note,
        bad: note == "slow",
    };
    let one = vec![
        bar("fp32", 2101.0, Some(2256.0), 2144.0, ""),
        bar("bf16", 1051.0, Some(1131.0), 1140.0, ""),
        bar("w8a16 (cast)", 526.0, None, 4722.0, "on purpose"),
        bar("w4a16", 12.0, Some(343.0), 3670.0, "slow"),
    ];
    let absurd = vec![bar("<&>", f64::NAN, Some(f64::INFINITY), 0.0, ""), bar("漢字", 9.0, None, 5.0, "")];
    let group = |label: &str, bars| Group { label: label.to_owned(), bars };
    Times {
        title: "Time of each kernel".to_owned(),
        subtitle: "in us; the longest of an operator fills the width".to_owned(),
        unit: "us".to_owned(),
        groups: vec![group("gemv 1 x 4096 x 4096", one), group("</text>", absurd)],
    }
}
