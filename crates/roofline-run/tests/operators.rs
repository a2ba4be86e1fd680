//! Every operator on every backend, right on odd shapes: one body for each, which runs on the processor at every level of
//! its instructions, and on a GPU where somebody asks for that (`cargo xtask test` does where there is one).

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use roofline_core::{
    Device, Dim, Graph, Math, Registry,
    device::{Kind as DeviceKind, Peaks},
    graph::Ffn,
    measurement::{Residency, Subject},
    op::{Attention, Cache, Elementwise, ElementwiseKind as Kind, ExpertSide, Experts},
    precision::PrecisionSpec,
    units::{ByteRate, FlopRate},
};
use roofline_isa::Isa;
use roofline_run::{
    Backend, Cpu, Error,
    cpu::machine::Machine,
    cuda::{Cuda, Gpu},
};

/// Declares both tests of each operator.
macro_rules! operators {
    ($($operator:ident),+ $(,)?) => {
        $(mod $operator {
            #[test]
            fn on_the_processor() {
                super::on_the_processor(super::$operator);
            }

            #[test]
            #[ignore = "needs an NVIDIA GPU"]
            fn on_a_gpu() {
                super::on_a_gpu(super::$operator);
            }
        })+
    };
}

operators! {
    products_of_few_rows,
    products_of_many_rows,
    activated_products,
    products_of_experts,
    attention_over_a_cache,
    attention_of_a_prompt,
    kernels_over_elements,
}

/// How many kernels must be there, so that a refusal does not pass for a right result.
#[derive(Clone, Copy)]
struct Least {
    processor: usize,
    gpu: usize,
}

/// A backend, and what it has run.
struct Bench<'a> {
    backend: &'a mut dyn Backend,
    place: String,
}

impl Bench<'_> {
    fn is_gpu(&self) -> bool {
        self.backend.name() == "cuda"
    }

    /// Runs every node of `graph` in each precision. What is wrong fails, what has no kernel has to say so.
    fn right(&mut self, graph: &Graph, precisions: &str, least: Least) {
        let mut right = 0;
        for name in precisions.split_whitespace() {
            let formats = match name.parse::<PrecisionSpec>().unwrap().on(self.backend.device()) {
                Ok(formats) => formats,
                Err(error) => {
                    println!("{} {name}: {error}", self.place);
                    continue;
                }
            };
            for node in &graph.nodes {
                let subject = Subject::new(node, name, formats);
                let words = format!("{} {}", self.place, subject.words());
                match self.backend.prepare(&subject, Residency::Warm) {
                    Ok(mut case) => {
                        let check = case.check().unwrap_or_else(|error| panic!("{words}: {error}"));
                        let time = case.sample().unwrap_or_else(|error| panic!("{words}: {error}"));
                        println!("{words} {:.2} us, off by {:.1e}", time.micros(), check.error);
                        right += 1;
                    }
                    Err(Error::Unsupported { reason, .. }) => println!("{words}: {reason}"),
                    Err(error) => panic!("{words}: {error}"),
                }
            }
        }
        let least = if self.is_gpu() { least.gpu } else { least.processor };
        assert!(right >= least, "{}: {right} of {least} kernels of {:?}", self.place, graph.nodes);
    }
}

/// At every level, as a processor with all units: which one a precision takes depends on what there is.
fn on_the_processor(operator: fn(&mut Bench<'_>)) {
    let units = [Math::Fp32, Math::Int16, Math::Bf16, Math::Int8];
    let rates = units.iter().zip(1..).map(|(math, at)| (*math, FlopRate::new(f64::from(at) * 1e12)));
    let device = Device::custom("a processor", ByteRate::new(1e11), Peaks::distinct(rates).unwrap(), None).unwrap();
    let device = Device { kind: DeviceKind::Cpu, ..device };
    let machine = Machine::detect();
    for isa in Isa::restrictions() {
        let mut cpu = Cpu::held_back(&machine, device.clone(), isa);
        operator(&mut Bench { backend: &mut cpu, place: isa.to_string() });
    }
}

fn on_a_gpu(operator: fn(&mut Bench<'_>)) {
    // Kernels are compiled once for all tests.
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let gpu = Gpu::open(0, Some(folder)).unwrap();
    let place = gpu.name.clone();
    let device = Registry::builtin().reported(&place).expect("a GPU of the registry").into_owned();
    operator(&mut Bench { backend: &mut Cuda::new(gpu, device), place });
}

fn dim(value: u64) -> Dim {
    Dim::new("size", value).unwrap()
}

fn products_of_few_rows(on: &mut Bench<'_>) {
    let precisions = "fp32 tf32 fp16 bf16 fp8 int8 w8a16 fp8a16 w4a16 nf4 mxfp4a16 nvfp4a16 int4-g32/bf16 \
                      int4-g64/fp16 int4-g32-zp/bf16 int4-g64-zp/fp16 int4-g128-zp/bf16 int4-g128/fp16 nf4/fp16 \
                      mxfp4/fp16 nvfp4/fp16 int8/fp16 fp8/fp16";
    for (m, n, k) in
        [(1, 1, 64), (1, 17, 128), (1, 1000, 1032), (3, 48, 320), (8, 896, 4864), (9, 100, 200), (16, 2049, 1096)]
    {
        on.right(&Graph::gemm(m, n, k).unwrap(), precisions, Least { processor: 15, gpu: 15 });
    }
}

fn products_of_many_rows(on: &mut Bench<'_>) {
    let precisions = "fp32 tf32 fp16 bf16 fp8 int8 fp8-e4m3-tensor/fp8-e4m3-tensor";
    // Blocks of a processor's kernels are narrower than a GPU's, and it is asked at every level.
    let narrow = |wide: u64, enough: u64| if on.is_gpu() { wide } else { enough };
    let [tall, taller] = [(300, narrow(896, 104), 4864), (1024, narrow(2056, 264), 520)];
    for (m, n, k) in [(17, 64, 64), (33, 1000, 1032), tall, taller] {
        on.right(&Graph::gemm(m, n, k).unwrap(), precisions, Least { processor: 4, gpu: 5 });
    }
    // Quantized weights alone; NF4 is refused where its blocks run over row ends.
    let quantized = "w8a16 fp8a16 w4a16 nf4 mxfp4a16 nvfp4a16 int4-g32/bf16 int4-g64/fp16 int4-g32-zp/bf16 int4-g64-zp/fp16 \
                     int4-g128-zp/bf16 int4-g128/fp16 nf4/fp16 mxfp4/fp16 nvfp4/fp16 int8/fp16 fp8/fp16";
    for (m, n, k) in [(17, 64, 64), (24, 2049, 1096), (33, 1000, 1032), (64, tall.1, 4864), (77, 100, 200), tall] {
        on.right(&Graph::gemm(m, n, k).unwrap(), quantized, Least { processor: 0, gpu: 15 });
    }
}

fn activated_products(on: &mut Bench<'_>) {
    for (tokens, hidden, inner, gated) in
        [(1, 1024, 2816, true), (11, 200, 1000, true), (40, 512, 520, true), (2, 128, 300, false)]
    {
        let ffn = Ffn { tokens: dim(tokens), hidden: dim(hidden), inner: dim(inner), gated };
        let precisions = "bf16 fp16 w8a16 fp8a16 w4a16 nf4 mxfp4a16 nvfp4a16";
        on.right(&Graph::ffn(ffn, true), precisions, Least { processor: 4, gpu: 4 });
    }
}

/// Few rows run as they come and many are sorted; the processor has no kernel that takes experts as one operator, and says so.
fn products_of_experts(on: &mut Bench<'_>) {
    let precisions = "bf16 fp16 w8a16 fp8a16 w4a16 nf4 mxfp4a16 nvfp4a16 int4-g32/bf16 int4-g64-zp/bf16 int4-g128/fp16 \
                      mxfp4/fp16 int8/fp16";
    for [tokens, active, experts, n, k] in
        [[1, 1, 2, 16, 64], [3, 2, 4, 200, 320], [40, 4, 8, 128, 576], [300, 2, 24, 264, 640], [1000, 8, 16, 768, 128]]
    {
        for side in [ExpertSide::GatedUp, ExpertSide::Up, ExpertSide::Down] {
            let [tokens, experts, active, n, k] = [tokens, experts, active, n, k].map(dim);
            let op = Experts { tokens, experts, active, n, k, side };
            on.right(&Graph::experts(op), precisions, Least { processor: 0, gpu: 12 });
        }
    }
    // Rows that are no whole steps are multiplied as they lie, where they are of 16 bit.
    for side in [ExpertSide::GatedUp, ExpertSide::Down] {
        let [tokens, experts, active, n, k] = [7, 4, 2, 100, 72].map(dim);
        let op = Experts { tokens, experts, active, n, k, side };
        on.right(&Graph::experts(op), "bf16 fp16 w8a16", Least { processor: 0, gpu: 2 });
    }
}

/// Of `queries` new tokens in each of `batch` sequences.
fn attention([batch, heads, kv_heads, queries, context, width]: [u64; 6]) -> Attention {
    Attention {
        batch: dim(batch),
        heads: dim(heads),
        kv_heads: dim(kv_heads),
        queries: dim(queries),
        context: dim(context),
        head_dim: dim(width),
        value_dim: dim(width),
        cache: Cache::Separate,
        causal: true,
        window: None,
    }
}

fn attention_over_a_cache(on: &mut Bench<'_>) {
    for shape in [
        [1, 8, 8, 1, 1, 64],
        [1, 32, 8, 1, 777, 128],
        [3, 28, 4, 1, 4097, 80],
        [5, 16, 1, 1, 300, 96],
        [2, 6, 2, 1, 1000, 256],
    ] {
        let graph = Graph::attention(attention(shape), true);
        on.right(&graph, "bf16 fp16 bf16/bf16/fp8 bf16/bf16/int8", Least { processor: 2, gpu: 2 });
    }
}

fn attention_of_a_prompt(on: &mut Bench<'_>) {
    let precisions = "bf16 fp16 bf16/bf16/fp8 bf16/bf16/int8";
    for shape in [[1, 8, 8, 33, 33, 64], [2, 14, 2, 7, 300, 80], [1, 4, 1, 129, 129, 128]] {
        on.right(&Graph::attention(attention(shape), true), precisions, Least { processor: 2, gpu: 2 });
    }
    // A window, tokens that see each other, and the widest heads; a chunk that few tiles have all the keys of.
    let windowed = Attention { window: Some(dim(50)), ..attention([1, 4, 2, 300, 300, 96]) };
    let both_ways = Attention { causal: false, ..attention([2, 4, 2, 77, 200, 128]) };
    for shape in [windowed, both_ways, attention([1, 4, 1, 70, 333, 256]), attention([1, 8, 2, 5, 3000, 128])] {
        on.right(&Graph::attention(shape, true), precisions, Least { processor: 0, gpu: 2 });
    }
}

fn kernels_over_elements(on: &mut Bench<'_>) {
    let kinds = [
        Kind::Norm,
        Kind::Rope,
        Kind::Residual,
        Kind::KvWrite,
        Kind::Embedding,
        Kind::GatedActivation,
        Kind::Activation,
    ];
    for kind in kinds {
        for (tokens, vectors, width) in [(1, 1, 4096), (7, 3, 100), (33, 8, 128)] {
            let op = Elementwise { kind, tokens, vectors: dim(vectors), width: dim(width) };
            // The processor turns no heads as wide as that.
            let processor = if kind == Kind::Rope && width > 2048 { 0 } else { 2 };
            on.right(&Graph::elementwise(op), "bf16 fp16", Least { processor, gpu: 2 });
        }
    }
}
