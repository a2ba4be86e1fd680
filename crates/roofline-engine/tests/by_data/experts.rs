//! Experts that are written as one tensor: each is chosen for by the tokens that it saw.

use super::{
    gguf::{chosen_and_stored, chosen_by},
    *,
};

/// The layouts that have all experts of a layer in one tensor, and from which checkpoints: with experts apart, or in stacks that
/// lie the other way round with gates and ways up in turns.
const STACKS: [(&str, Layout, &str); 4] = [
    ("mixtral", Layout::Gguf, "q4_0,head=bf16,embedding=bf16"),
    ("mixtral", Layout::Gguf, "q4_k_s,head=bf16,embedding=bf16"),
    ("mixtral", Layout::Mlx, "int4-g32-zp16"),
    ("gpt-oss", Layout::Gguf, "q4_0,head=bf16,embedding=bf16"),
];

fn target(place: &Place, layout: Layout, name: &str) -> PathBuf {
    place.0.join(if layout == Layout::Gguf { format!("{name}.gguf") } else { name.to_owned() })
}

#[test]
fn stacked_experts_lose_less_than_by_rounding_to_nearest() {
    for (family, layout, plan) in STACKS {
        let place = Place::new(&format!("stack-{family}-{layout}-{}", &plan[..4]));
        let checkpoint = wide(&place, family);
        let samples = samples(&checkpoint);
        let original = logits(&checkpoint, &samples);
        let lost = [Method::Rtn, Method::Gptq, Method::Awq].map(|method| {
            let target = target(&place, layout, method.name());
            let report = made(&checkpoint, &order(method, plan, layout, &target));
            assert!(report.verified, "{family} {layout} {method}");
            assert!(report.notes.iter().all(|note| !note.contains("too few tokens")), "{:?}", report.notes);
            distance(&logits(&Checkpoint::open(&target).unwrap(), &samples), &original)
        });
        let [nearest, gptq, awq] = lost;
        println!("{family} {layout} {plan}: {nearest:.4}, GPTQ {gptq:.4}, AWQ {awq:.4}");
        assert!(gptq < 0.95 * nearest && awq < 1.02 * nearest, "{family} {layout} {plan}: {lost:?}");
    }
}

/// What ran in the place of each expert is what the file holds of it, whatever tensor it is a part of.
#[test]
fn stacks_hold_what_was_chosen() {
    for (family, layout, plan) in STACKS {
        let place = Place::new(&format!("stack-chosen-{family}-{layout}-{}", &plan[..4]));
        let checkpoint = wide(&place, family);
        let both = chosen_and_stored(&checkpoint, &order(Method::Gptq, plan, layout, &target(&place, layout, "made")));
        // Attention, and twelve matrices of four experts or two stacks of them.
        let (experts, rest): (Vec<_>, Vec<_>) = both.iter().partition(|(name, ..)| name.contains(".experts."));
        assert_eq!((experts.len(), rest.len()), (if family == "mixtral" { 12 } else { 2 }, 4), "{family} {layout}");
        for (name, chosen, stored) in &both {
            assert!(chosen == stored, "{family} {layout} {plan}: {name}");
        }
    }
}

/// An expert that saw too few tokens is named, and its rows are those of rounding to nearest; the others' are not.
#[test]
fn rare_experts_are_rounded_to_nearest() {
    let place = Place::new("stack-rare");
    let checkpoint = wide(&place, "mixtral");
    let plan = "q4_0,head=bf16,embedding=bf16";
    // Two tokens again and again go to the same few experts.
    let few: Vec<Vec<u32>> = (0..8).map(|_| vec![5; 24]).collect();
    let chosen = place.0.join("chosen.gguf");
    let mut observed = Layerwise::new(&checkpoint, few, &Settings::with(Format::FP32)).unwrap();
    let asked = order(Method::Gptq, plan, Layout::Gguf, &chosen);
    let report = quantize_observed(&checkpoint, &asked, &mut observed, &|_: u64| {}).unwrap();
    let told = report.notes.iter().find(|note| note.starts_with("layer 0: too few tokens reach"));
    let told = told.unwrap_or_else(|| panic!("{:?}", report.notes));
    assert!(told.contains(".experts."), "{told}");
    // The next layer sees what these became, too.
    let again = order(Method::Gptq, plan, Layout::Gguf, &place.0.join("again.gguf"));
    let both = chosen_by(&checkpoint, &again, vec![vec![5; 24]; 8]);
    assert_eq!(both.iter().filter(|(name, ..)| name.contains(".experts.")).count(), 12);
    assert!(both.iter().all(|(_, ran, stored)| ran == stored));
    let nearest = place.0.join("nearest.gguf");
    made(&checkpoint, &order(Method::Rtn, plan, Layout::Gguf, &nearest));
    let experts = |path: &Path| {
        let checkpoint = Checkpoint::open(path).unwrap();
        let all = roofline_quant::stored::StoredTensor::all(&checkpoint).unwrap();
        let own = all.into_iter().filter(|stored| stored.name.contains("layers.0.block_sparse_moe.experts"));
        own.map(|stored| {
            let rows = stored.into_rows().unwrap();
            roofline_quant::rows::InMemory::of(&*rows).unwrap().numbers().to_vec()
        })
        .collect::<Vec<_>>()
    };
    let same = experts(&chosen).iter().zip(&experts(&nearest)).map(|(a, b)| a == b).collect::<Vec<_>>();
    // Two of four experts saw every token.
    assert_eq!(same.iter().filter(|same| **same).count(), 6, "{same:?}");
}

#[test]
fn interrupted_runs_and_threads_make_the_same_stacks() {
    // Each layout and each kind of source by one of the methods.
    let methods = [Method::Gptq, Method::Awq, Method::Awq, Method::Gptq];
    for ((family, layout, plan), method) in STACKS.into_iter().zip(methods) {
        let place = Place::new(&format!("stack-source-{family}-{layout}-{}", &plan[..4]));
        resumed(&wide(&place, family), method, plan, layout);
    }
}
