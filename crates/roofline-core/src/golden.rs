//! Numbers that are known without this program, each with its reason: derived by hand, or published.
//!
//! Tests go through them, and so does `roofline check` in an installed program. Many circulate with element bits only, so
//! times and intensities are [`Sizes::Nominal`] unless the name says `exact`.

use crate::{
    Device, Dim, Format, Graph, Machine, Math, Model, Precision, Registry, Result,
    device::Peaks,
    format::{Shape, Sizes},
    machine::Stack,
    predict::{Estimate, predict},
    units::{ByteRate, FlopRate},
};

/// A known number beside what this program makes of it.
#[derive(Clone, Debug)]
pub struct Golden {
    /// What it is, with its unit.
    pub name: String,
    /// Why it is that.
    pub why: String,
    /// The number.
    pub expected: f64,
    /// What was computed.
    pub found: f64,
    /// The largest relative difference: zero where the number is exact, else the digits that it was published with.
    pub tolerance: f64,
}

impl Golden {
    /// Whether the two are the same.
    pub fn holds(&self) -> bool {
        // Written so that a NaN fails.
        (self.found / self.expected - 1.0).abs() <= self.tolerance
    }
}

/// Every known number, computed now.
pub fn golden() -> Result<Vec<Golden>> {
    let parts = [work()?, sizes()?, times()?, ridges()?, parameters()?, caches()?];
    Ok(parts.into_iter().flatten().collect())
}

fn of(name: String, why: impl Into<String>, expected: f64, found: f64, tolerance: f64) -> Golden {
    Golden { name, why: why.into(), expected, found, tolerance }
}

/// 60 GB/s with CUDA-core-class rates, as an Orin Nano is often quoted.
fn edge() -> Result<Device> {
    let rates = [(Math::Fp16, 2.7), (Math::Int8, 5.5), (Math::Int4, 11.0), (Math::Fp32, 1.3)];
    let peaks = Peaks::distinct(rates.map(|(math, peak)| (math, FlopRate::new(peak * 1e12))))?;
    Device::custom("60 GB/s", ByteRate::new(60e9), peaks, None)
}

fn estimate(graph: &Graph, precision: &str, sizes: Sizes, device: &Device) -> Result<Estimate> {
    let machine = Machine::new(device.clone(), Stack::Roofline).counting(sizes);
    Ok(predict(graph, &precision.parse()?, &machine)?.total.ideal)
}

/// Bytes of a 4096 x 4096 product with a vector, one format for both operands, 16-bit output: `K b + N K b + 2 N`.
fn work() -> Result<Vec<Golden>> {
    let graph = Graph::gemv(4096, 4096)?;
    let cases = [
        (Format::FP32, 67_133_440.0),
        (Format::FP16, 33_570_816.0),
        (Format::FP8, 16_789_504.0),
        (Format::INT8, 16_789_504.0),
        (Format::INT4_G128, 8_398_848.0),
        (Format::INT2_G64, 4_203_520.0),
    ];
    let mut all = Vec::new();
    for (format, bytes) in cases {
        let (weights, activations, output, kv, math) = (format, format, Format::FP16, Format::FP16, Math::Fp16);
        let precision = Precision { weights, activations, kv, output, query: output, math, attention: math };
        let work = graph.nodes[0].op.work(&precision, Sizes::Nominal);
        let why = "K b + N K b + 2 N bytes";
        all.push(of(format!("GEMV 4096 x 4096 {format}, bytes"), why, bytes, work.bytes().value(), 0.0));
        let why = "2 N K operations over those bytes";
        let ai = 33_554_432.0 / bytes;
        all.push(of(format!("GEMV 4096 x 4096 {format}, FLOP/B"), why, ai, work.intensity().value(), 1e-12));
    }
    let flops = estimate(&graph, "fp16", Sizes::Nominal, &edge()?)?.work.flops.value();
    all.push(of("GEMV 4096 x 4096, operations".to_owned(), "2 x 4096^2", 33_554_432.0, flops, 0.0));
    Ok(all)
}

/// Exact sizes: of a matrix of 4096 x 4096 in a format, and of a product's operands with all their scales.
fn sizes() -> Result<Vec<Golden>> {
    let (rows, columns) = (Dim::new("rows", 4096)?, Dim::new("columns", 4096)?);
    let elements = 16_777_216.0;
    let cases = [
        ("fp16", 2.0 * elements, "2 bytes each"),
        ("int8", elements + 2.0 * 4096.0, "a byte each and a 16-bit scale per row"),
        ("fp8", elements + 2.0 * 4096.0, "a byte each and a 16-bit scale per row"),
        ("int4-g128", elements * 4.125 / 8.0, "4 bits and a 16-bit scale per 128"),
        ("nf4", elements * 4.5 / 8.0, "4 bits and an FP32 maximum per 64"),
        ("mxfp4", elements * 4.25 / 8.0, "4 bits and an 8-bit exponent per 32"),
        ("nvfp4", elements * 4.5 / 8.0 + 4.0, "4 bits, an E4M3 scale per 16, one FP32 scale"),
        ("q8_0", elements * 8.5 / 8.0, "ggml: 34 bytes per 32"),
        ("q6_k", elements * 6.5625 / 8.0, "ggml: 210 bytes per 256"),
        ("q5_k", elements * 5.5 / 8.0, "ggml: 176 bytes per 256"),
        ("q4_k", elements * 4.5 / 8.0, "ggml: 144 bytes per 256"),
        ("q4_0", elements * 4.5 / 8.0, "ggml: 18 bytes per 32"),
    ];
    let mut all = Vec::new();
    for (name, bytes, why) in cases {
        let format: Format = name.parse()?;
        let found = format.bytes(Shape::matrix(rows, columns), Sizes::Exact).value();
        all.push(of(format!("{name} 4096 x 4096, exact bytes"), why, bytes, found, 0.0));
    }
    let rates = [(Math::Fp16, 200.0), (Math::Fp4, 800.0), (Math::Int8, 400.0)];
    let peaks = Peaks::distinct(rates.map(|(math, peak)| (math, FlopRate::new(peak * 1e12))))?;
    let device = Device::custom("1 TB/s", ByteRate::new(1e12), peaks, None)?;
    let graph = Graph::gemv(4096, 4096)?;
    let cases = [
        ("mxfp4", 8_923_264.0, "4.25 bits for both operands, 16-bit output"),
        // 9,513,232 is often printed, from a tensor scale per 1024 elements that the format does not have.
        ("nvfp4", 9_447_688.0, "4.5 bits for both operands, an FP32 scale for each tensor"),
        ("w4a16", 8_667_136.0, "4.125 bits, 16-bit activations: 8,650,752 + 8192 + 8192"),
        ("nf4", 9_453_568.0, "4.5 bits, 16-bit activations: 9,437,184 + 16,384"),
        ("int8", 16_797_698.0, "rows with a 16-bit scale, one activation row: 16,777,216 + 8192 + 4096 + 2 + 8192"),
    ];
    for (name, bytes, why) in cases {
        let found = estimate(&graph, name, Sizes::Exact, &device)?.work.bytes().value();
        all.push(of(format!("GEMV 4096 x 4096 {name}, exact bytes"), why, bytes, found, 0.0));
    }
    Ok(all)
}

/// Memory-bound products are bytes over bandwidth.
fn times() -> Result<Vec<Golden>> {
    let (registry, edge) = (Registry::builtin(), edge()?);
    let cases = [
        // 280 us is often quoted for FP16: that is the INT8 value.
        (4096, "fp16", 559.51, 1e-5),
        (4096, "int8", 279.83, 2e-5),
        (4096, "int4/int4", 139.98, 2e-5),
        (2048, "fp16", 139.95, 5e-5),
        (8192, "fp16", 2237.5, 5e-5),
    ];
    let mut all = Vec::new();
    for (side, precision, micros, tolerance) in cases {
        let found = estimate(&Graph::gemv(side, side)?, precision, Sizes::Nominal, &edge)?.time().micros();
        let name = format!("GEMV {side} x {side} {precision} at 60 GB/s, us");
        all.push(of(name, "bytes over bandwidth", micros, found, tolerance));
    }
    for (name, rate, micros) in [("h100", "3.35", 10.02), ("h200", "4.8", 6.99)] {
        let device = registry.find(name)?;
        let found = estimate(&Graph::gemv(4096, 4096)?, "fp16", Sizes::Nominal, &device)?.time().micros();
        let why = format!("33,570,816 bytes at {rate} TB/s");
        all.push(of(format!("GEMV 4096 x 4096 fp16 on {name}, us"), why, micros, found, 1e-3));
    }
    Ok(all)
}

/// Critical intensity: peak over bandwidth.
fn ridges() -> Result<Vec<Golden>> {
    // A device without the unit has no ridge, and no number is the wrong number.
    let ridge =
        |device: &Device, math| device.critical_intensity(math).map_or(f64::NAN, crate::units::Intensity::value);
    let (registry, edge) = (Registry::builtin(), edge()?);
    let mut all = vec![
        of("ridge of 2.7 TFLOP/s at 60 GB/s".to_owned(), "2700 / 60", 45.0, ridge(&edge, Math::Fp16), 1e-9),
        of("ridge of 5.5 TOP/s at 60 GB/s".to_owned(), "5500 / 60", 91.67, ridge(&edge, Math::Int8), 1e-4),
    ];
    let cases = [
        ("t4", 203.1, "65 TFLOP/s over 320 GB/s"),
        ("v100", 138.9, "125 TFLOP/s over 900 GB/s"),
        ("a100_40gb", 200.6, "312 TFLOP/s over 1555 GB/s"),
        ("a100_80gb", 153.0, "312 TFLOP/s over 2039 GB/s"),
        ("h100", 295.34, "989.4 TFLOP/s over 3.35 TB/s; 590 is with the sparse figure"),
        ("l4", 403.3, "121 TFLOP/s over 300 GB/s"),
        ("rtx4090", 163.9, "165.2 TFLOP/s over 1008 GB/s"),
        ("h200", 206.1, "989.4 TFLOP/s over 4.8 TB/s"),
        ("b200", 2250.0 / 7.7, "2250 TFLOP/s over 7.7 TB/s; 562.5 is with the sparse figure and 8 TB/s"),
    ];
    for (name, expected, why) in cases {
        let found = ridge(&*registry.find(name)?, Math::Fp16);
        all.push(of(format!("ridge of {name} in FP16, FLOP/B"), why, expected, found, 5e-4));
    }
    Ok(all)
}

/// Counts that model pages on Hugging Face state for their safetensors files.
fn parameters() -> Result<Vec<Golden>> {
    let cases: [(&str, f64); 5] = [
        ("tinyllama-1.1b", 1_100_048_384.0),
        ("llama-2-7b", 6_738_415_616.0),
        ("llama-3-8b", 8_030_261_248.0),
        ("mistral-7b", 7_241_732_096.0),
        ("qwen2.5-7b", 7_615_616_512.0),
    ];
    let mut all = Vec::new();
    for (name, expected) in cases {
        let found = Model::find(name)?.parameters() as f64;
        all.push(of(format!("{name}, parameters"), "the model page's count of its safetensors", expected, found, 1e-9));
    }
    Ok(all)
}

/// Bytes of keys and values per token at 16 bit.
fn caches() -> Result<Vec<Golden>> {
    let cases = [
        ("llama-2-7b", 524_288.0, "2 x 32 layers x 32 heads x 128 x 2 bytes"),
        ("llama-3-8b", 131_072.0, "2 x 32 x 8 x 128 x 2"),
        ("llama-2-70b", 327_680.0, "2 x 80 x 8 x 128 x 2"),
        ("llama-3.1-405b", 516_096.0, "2 x 126 x 8 x 128 x 2"),
        ("qwen2.5-7b", 57_344.0, "2 x 28 x 4 x 128 x 2"),
        ("gemma-7b", 458_752.0, "2 x 28 x 16 x 256 x 2"),
        ("phi-2", 327_680.0, "2 x 32 x 32 x 80 x 2"),
        ("deepseek-v3", 70_272.0, "latent attention: 61 x (512 + 64) x 2 (arXiv 2412.19437)"),
        ("deepseek-v2-lite", 31_104.0, "27 x 576 x 2"),
    ];
    let context = Dim::new("context", 1000)?;
    let mut all = Vec::new();
    for (name, expected, why) in cases {
        let bytes = Model::find(name)?.kv_bytes(Dim::ONE, context, Dim::ONE, Format::BF16, Sizes::Exact);
        all.push(of(format!("{name}, cache bytes per token"), why, expected, bytes.value() / 1000.0, 0.0));
    }
    Ok(all)
}
