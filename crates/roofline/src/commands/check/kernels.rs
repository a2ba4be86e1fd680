//! The kernels of this machine: each against a float64 reference, on shapes small enough for all of them.

use roofline_core::{
    Device, Model, Plan,
    device::{Kind, Peaks},
    format::Sizes,
    measurement::{Residency, Subject},
    model::{Lowering, Workload},
    op::Class,
    plan::Kernel,
    precision::NAMED,
    units::{ByteRate, FlopRate},
};
use roofline_isa::Isa;
use roofline_run::{Backend, Cpu};
use roofline_verbs::{Context, gpu, this_machine};

use super::{Check, Status};
use crate::failure::Failure;

/// A model of two layers whose sides are no multiples of what kernels like best, but of a block of 256 weights.
const TINY: &str = r#"{
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 768,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 300,
    "max_position_embeddings": 2048, "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16"
}"#;
/// ggml's blocks, which have no name of their own among the precisions.
const BLOCKS: [&str; 6] = ["q8_0/bf16", "q6_k/bf16", "q5_k/bf16", "q5_0/bf16", "q4_k/bf16", "q4_0/bf16"];
/// What a GPU is asked for: each is compiled first, which takes its time.
const ON_GPU: [&str; 3] = ["bf16", "w8a16", "w4a16"];

/// What became of the kernels of one kind.
#[derive(Default)]
struct Tally {
    right: usize,
    wrong: Vec<String>,
    /// The largest error over its limit.
    closest: f64,
}

pub(super) fn checks(context: &Context) -> Vec<Check> {
    let mut all: Vec<Check> = Isa::restrictions().into_iter().flat_map(processor).collect();
    all.extend(graphics(context));
    all
}

/// Every kernel of the processor with the instructions of `isa`.
fn processor(isa: Isa) -> Vec<Check> {
    let names: Vec<&str> = NAMED.iter().map(|precision| precision.name).chain(BLOCKS).collect();
    let checked = devices().and_then(|devices| {
        let mut tallies = tallies();
        let mut all: Vec<Subject> = Vec::new();
        for device in &devices {
            all.extend(subjects(&names, device)?);
        }
        run(&mut Cpu::held_back(this_machine::machine(), devices[0].clone(), isa), &all, &mut tallies);
        Ok(tallies)
    });
    rows(&format!("on {isa}"), checked)
}

/// The kernels of the GPU, where there is one.
fn graphics(context: &Context) -> Vec<Check> {
    if !roofline_run::cuda::present() {
        return vec![Check {
            part: "kernels",
            name: "on the GPU".to_owned(),
            expected: EXPECTED.to_owned(),
            found: "no GPU here".to_owned(),
            status: Status::Skipped,
            why: Some("there is no NVIDIA driver with a GPU: its kernels were not looked at".to_owned()),
        }];
    }
    let checked = gpu::backend(context, 0).map_err(Failure::from).and_then(|mut backend| {
        let subjects = subjects(&ON_GPU, &backend.device().clone())?;
        let mut tallies = tallies();
        run(&mut backend, &subjects, &mut tallies);
        Ok(tallies)
    });
    rows("on the GPU", checked)
}

const EXPECTED: &str = "as close to float64 as their formats";

fn tallies() -> [(Class, &'static str, Tally); 3] {
    [
        (Class::Gemm, "products", Tally::default()),
        (Class::Attention, "attention", Tally::default()),
        (Class::Elementwise, "element-wise", Tally::default()),
    ]
}

/// Two processors: one whose widest unit is FP32, and one with everything, since which unit a precision takes depends on it.
fn devices() -> Result<[Device; 2], Failure> {
    use roofline_core::Math;
    let device = |units: &[Math]| {
        let rates = units.iter().enumerate().map(|(at, math)| (*math, FlopRate::new((at + 1) as f64 * 1e12)));
        let device = Device::custom("a processor", ByteRate::new(1e11), Peaks::distinct(rates)?, None)?;
        Ok::<Device, Failure>(Device { kind: Kind::Cpu, ..device })
    };
    Ok([device(&[Math::Fp32])?, device(&[Math::Fp32, Math::Int16, Math::Bf16, Math::Int8])?])
}

/// Every kernel of both passes of a tiny model, fused and not, at every precision that the device multiplies.
fn subjects(names: &[&str], device: &Device) -> Result<Vec<Subject>, Failure> {
    let model = Model::from_config(TINY, "tiny")?;
    let mut all: Vec<Subject> = Vec::new();
    for workload in [Workload::decode(2, 37)?, Workload::prefill(1, 37)?] {
        for fused in [true, false] {
            let graph = model.graph(workload, Lowering { fused, ..Lowering::default() })?;
            for name in names {
                let Ok(plan) = name.parse::<Plan>()?.on(device, Some(&model.anatomy)) else { continue };
                plan.kernels(&graph, |Kernel { node, precision }| {
                    let subject = Subject { count: 1, ..Subject::new(&node, name, *precision) };
                    let same = |known: &Subject| known.op == subject.op && known.formats == subject.formats;
                    if !all.iter().any(same) {
                        all.push(subject);
                    }
                });
            }
        }
    }
    Ok(all)
}

/// Runs each that the backend has a kernel for. Precisions that differ in what an operator does not read are one kernel.
fn run(backend: &mut dyn Backend, subjects: &[Subject], tallies: &mut [(Class, &'static str, Tally)]) {
    let mut done = Vec::new();
    for subject in subjects {
        let Ok(kernel) = backend.supports(subject) else { continue };
        let bytes = subject.op.work(&subject.formats, Sizes::Exact).bytes();
        let this = (subject.op, kernel.name, bytes);
        if done.contains(&this) {
            continue;
        }
        done.push(this);
        let class = subject.op.class();
        let Some((.., tally)) = tallies.iter_mut().find(|(known, ..)| *known == class) else { continue };
        match backend.prepare(subject, Residency::Warm).and_then(|mut case| case.check()) {
            Ok(check) => {
                tally.right += 1;
                tally.closest = tally.closest.max(check.error / check.limit);
            }
            Err(error) => tally.wrong.push(format!("{}: {error}", subject.words())),
        }
    }
}

fn rows(place: &str, checked: Result<[(Class, &'static str, Tally); 3], Failure>) -> Vec<Check> {
    let row = |name: String, found: String, right: bool, why: Option<String>| Check {
        part: "kernels",
        name,
        expected: EXPECTED.to_owned(),
        found,
        status: Status::of(right),
        why,
    };
    match checked {
        Ok(tallies) => tallies
            .into_iter()
            .map(|(_, kind, Tally { right, wrong, closest })| {
                let found = match wrong.len() {
                    0 => format!("{right} right, the worst at {:.0} % of its limit", closest * 100.0),
                    wrong => format!("{wrong} of {} wrong", right + wrong),
                };
                row(format!("{kind} {place}"), found, wrong.is_empty() && right > 0, wrong.into_iter().next())
            })
            .collect(),
        Err(failure) => vec![row(place.to_owned(), failure.message(), false, None)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_kernel_fails_its_kind() {
        let mut tallies = tallies();
        tallies[0].2 = Tally { right: 7, wrong: vec!["gemv: off".to_owned()], closest: 0.4 };
        tallies[1].2 = Tally { right: 7, wrong: Vec::new(), closest: 0.4 };
        let told: Vec<(bool, String)> =
            rows("here", Ok(tallies)).into_iter().map(|row| (row.status == Status::Ok, row.found)).collect();
        assert_eq!(told[0], (false, "1 of 8 wrong".to_owned()));
        assert_eq!(told[1], (true, "7 right, the worst at 40 % of its limit".to_owned()));
        assert!(!told[2].0, "a kind of which no kernel ran was not looked at");
    }

    /// Products of one row and of many, in every precision that the processor has kernels for.
    #[test]
    fn every_precision_is_among_the_subjects() {
        let names: Vec<&str> = NAMED.iter().map(|named| named.name).chain(BLOCKS).collect();
        let all = subjects(&names, &devices().unwrap()[1]).unwrap();
        for name in ["fp32", "bf16", "int8", "w8a16", "w4a16", "nf4", "q4_k/bf16", "q8_0/bf16"] {
            let products = all.iter().filter(|one| one.precision == name && one.op.class() == Class::Gemm);
            assert!(products.count() >= 4, "{name}");
        }
    }
}
