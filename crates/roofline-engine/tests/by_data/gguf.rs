//! GGUF by data: the scales are the type's own, the codes are chosen.

use std::collections::BTreeMap;

use roofline_quant::{
    Imatrix,
    gguf::model::Names,
    imatrix::collect,
    observed::{Observed, Pass, Seen},
    rows::InMemory,
    stored::StoredTensor,
};

use super::*;

fn file(place: &Place, name: &str) -> PathBuf {
    place.0.join(format!("{name}.gguf"))
}

/// The importance matrix of the samples.
fn importance(checkpoint: &Checkpoint) -> Imatrix {
    let mut observed = Layerwise::new(checkpoint, samples(checkpoint), &Settings::with(Format::FP32)).unwrap();
    let names = Names::new(&checkpoint.config, true).unwrap();
    collect(&mut observed, &names, "samples", &mut |_, _| {}).unwrap()
}

/// Models by GPTQ compute more nearly what they computed than with an importance matrix alone, and that more nearly than rounded to
/// nearest, in every type with codes to choose.
#[test]
fn outputs_lose_less_than_with_importance_alone() {
    let place = Place::new("gguf-types");
    let checkpoint = wide(&place, "llama");
    let samples = samples(&checkpoint);
    let original = logits(&checkpoint, &samples);
    let importance = importance(&checkpoint);
    let lost = |method: Method, plan: &str, imatrix: Option<&Imatrix>| {
        let target = file(&place, &format!("{plan}-{method}-{}", imatrix.is_some()));
        let asked = Request { imatrix: imatrix.cloned(), ..order(method, plan, Layout::Gguf, &target) };
        let report = made(&checkpoint, &asked);
        assert!(report.verified && report.method == method.name(), "{plan} {method}");
        distance(&logits(&Checkpoint::open(&target).unwrap(), &samples), &original)
    };
    for plan in
        ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k_s", "q4_k_s", "q5_k_s", "q6_k", "iq4_nl", "iq4_xs"]
    {
        // The ends of a model are the same by every method.
        let plan = &format!("{plan},head=bf16,embedding=bf16");
        let (nearest, weighed) = (lost(Method::Rtn, plan, None), lost(Method::Rtn, plan, Some(&importance)));
        let gptq = lost(Method::Gptq, plan, None);
        println!("{plan}: {nearest:.5}, with importance {weighed:.5}, GPTQ {gptq:.5}");
        assert!(gptq < 0.8 * nearest.min(weighed), "{plan}: {nearest}, with importance {weighed}, GPTQ {gptq}");
        // Factors are found in the same way whatever the type.
        if plan.starts_with("q4_0") || plan.starts_with("q4_k") {
            let awq = lost(Method::Awq, plan, None);
            assert!(awq < nearest, "{plan}: {nearest}, AWQ {awq}");
        }
    }
}

/// Who passes on what is observed, and keeps what stood in the place of weights.
struct Kept<'a> {
    inner: Layerwise<'a>,
    replaced: BTreeMap<String, Arc<InMemory>>,
}

impl Observed for Kept<'_> {
    fn layers(&self) -> usize {
        self.inner.layers()
    }

    fn samples(&self) -> Vec<usize> {
        self.inner.samples()
    }

    fn memory(&self) -> u64 {
        self.inner.memory()
    }

    fn run(
        &mut self,
        pass: Pass<'_>,
        each: &mut dyn FnMut(Seen<'_>) -> roofline_quant::Result<()>,
    ) -> roofline_quant::Result<()> {
        self.replaced.extend(pass.replaced.iter().map(|(name, numbers)| (name.clone(), Arc::clone(numbers))));
        self.inner.run(pass, each)
    }
}

/// What stood in the place of each weight while a model was quantized, and what the file holds of it, in the order of the checkpoint.
pub(super) fn chosen_and_stored(checkpoint: &Checkpoint, order: &Request) -> Vec<(String, Vec<f32>, Vec<f32>)> {
    chosen_by(checkpoint, order, samples(checkpoint))
}

/// The same by other samples.
pub(super) fn chosen_by(
    checkpoint: &Checkpoint,
    order: &Request,
    samples: Vec<Vec<u32>>,
) -> Vec<(String, Vec<f32>, Vec<f32>)> {
    let inner = Layerwise::new(checkpoint, samples, &Settings::with(Format::FP32)).unwrap();
    let mut observed = Kept { inner, replaced: BTreeMap::new() };
    quantize_observed(checkpoint, order, &mut observed, &|_: u64| {}).unwrap();
    let written = Checkpoint::open(&order.target).unwrap();
    let mut both = Vec::new();
    for stored in StoredTensor::all(&written).unwrap() {
        let Some(chosen) = observed.replaced.remove(&stored.name) else { continue };
        let (name, stack) = (stored.name.clone(), stored.shape.len() == 3);
        let found =
            if stack { InMemory::of(&*stored.turned().unwrap()) } else { InMemory::of(&*stored.into_rows().unwrap()) };
        both.push((name, chosen.numbers().to_vec(), found.unwrap().numbers().to_vec()));
    }
    assert!(observed.replaced.is_empty(), "{:?} are not in the file", observed.replaced.keys());
    both
}

/// llama.cpp has the rows of queries and keys in another order than transformers: what ran in the place of weights while the
/// next layer was observed is, to the last bit, what a reader makes of the file, chosen or searched for.
#[test]
fn the_file_holds_what_was_chosen() {
    let place = Place::new("gguf-chosen");
    let checkpoint = wide(&place, "llama");
    let originals: BTreeMap<String, Vec<f32>> = StoredTensor::all(&checkpoint)
        .unwrap()
        .into_iter()
        .map(|stored| (stored.name.clone(), InMemory::of(&*stored.into_rows().unwrap()).unwrap().numbers().to_vec()))
        .collect();
    for (plan, acting) in
        [("q4_0", true), ("q4_k_m", false), ("q3_k_m", true), ("q4_k_s,ffn=iq3_s,head=bf16,embedding=bf16", true)]
    {
        let tuning = Tuning { act_order: acting, ..Tuning::default() };
        let asked = Request { tuning, ..order(Method::Gptq, plan, Layout::Gguf, &file(&place, plan)) };
        let both = chosen_and_stored(&checkpoint, &asked);
        let names: Vec<&str> = both.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names.len(), 7, "{plan}: {names:?}");
        for (name, chosen, stored) in &both {
            assert!(chosen == stored, "{plan}: {name}");
            let lost = distance(stored, &originals[name]);
            assert!(lost > 0.0 && lost < 0.4, "{plan}: {name} is {lost} off");
        }
    }
}

/// A recipe with types that have no codes to choose says which those are, and weighs their search by the same inputs.
#[test]
fn types_without_codes_are_searched() {
    let place = Place::new("gguf-mixed");
    let checkpoint = wide(&place, "llama");
    let samples = samples(&checkpoint);
    let original = logits(&checkpoint, &samples);
    let plan = "q4_k_s,ffn=iq3_s,head=bf16,embedding=bf16";
    let lost = [Method::Rtn, Method::Gptq, Method::Awq].map(|method| {
        let target = file(&place, method.name());
        let report = made(&checkpoint, &order(method, plan, Layout::Gguf, &target));
        let told = report.notes.iter().any(|note| note.contains("chooses the codes of 8") && note.contains("iq3_s"));
        assert_eq!(told, method.needs_data(), "{:?}", report.notes);
        distance(&logits(&Checkpoint::open(&target).unwrap(), &samples), &original)
    });
    assert!(lost[1] < lost[0] && lost[2] < 1.02 * lost[0], "{lost:?}");
}

#[test]
fn interrupted_runs_and_threads_make_the_same_file() {
    let place = Place::new("gguf-source");
    let checkpoint = wide(&place, "llama");
    for method in [Method::Gptq, Method::Awq] {
        resumed(&checkpoint, method, "q4_k_m", Layout::Gguf);
    }
}

/// Of another GGUF file, whose tensors are called otherwise: it holds what was chosen, in models of experts and in those whose stacks
/// are two tensors in the place of one, and is the file that the checkpoint becomes.
#[test]
fn a_file_as_source_is_as_good_as_its_checkpoint() {
    for family in ["llama", "mixtral", "gpt-oss"] {
        let place = Place::new(&format!("gguf-again-{family}"));
        let checkpoint = wide(&place, family);
        made(&checkpoint, &order(Method::Rtn, "bf16", Layout::Gguf, &file(&place, "bf16")));
        let source = Checkpoint::open(&file(&place, "bf16")).unwrap();
        let asked =
            |name: &str| order(Method::Gptq, "q4_0,head=bf16,embedding=bf16", Layout::Gguf, &file(&place, name));
        let [first, second] = [(&checkpoint, "first"), (&source, "second")]
            .map(|(checkpoint, name)| chosen_and_stored(checkpoint, &asked(name)));
        assert!(second.iter().all(|(_, chosen, stored)| chosen == stored), "{family}");
        assert_eq!(first.len(), second.len(), "{family}");
        for ((name, _, from_checkpoint), (_, _, from_file)) in first.iter().zip(&second) {
            assert!(from_file == from_checkpoint, "{family} {name}");
        }
        let mut observed = Layerwise::new(&source, samples(&checkpoint), &Settings::with(Format::FP32)).unwrap();
        let awq = order(Method::Awq, "q4_0", Layout::Gguf, &file(&place, "none"));
        let error = quantize_observed(&source, &awq, &mut observed, &|_: u64| {}).unwrap_err().to_string();
        assert!(error.contains("`awq` makes no GGUF file of another"), "{error}");
    }
}
