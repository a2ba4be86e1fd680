use super::*;
use crate::Model;

#[test]
fn names_are_those_of_llama_cpp() {
    for mix in Mix::ALL {
        assert_eq!(Mix::named(&mix.name().to_uppercase()), Some(mix));
    }
    assert_eq!((Mix::named("Q4-K"), Mix::named("q3_k")), (Some(Mix::Q4KMedium), Some(Mix::Q3KMedium)));
    assert_eq!(Mix::named("q4_k_l"), None);
}

/// Llama-3-8B in Q4_K_M: 16 of 32 layers have their values and ways down in Q6_K, and so is the output; the embedding
/// is in Q4_K. `gguf-dump` of the published file says the same.
#[test]
fn llama_3_8b_in_q4_k_m() {
    let model = Model::find("llama-3-8b").unwrap().anatomy;
    let of = |role, layer| Mix::Q4KMedium.type_of(role, Some(layer), 4096, &model);
    let better = (0..32).filter(|layer| of(Role::Value, *layer) == Format::Q6_K).count();
    assert_eq!(better, 16);
    assert_eq!(of(Role::Query, 0), Format::Q4_K);
    assert_eq!(Mix::Q4KMedium.type_of(Role::Head, None, 4096, &model), Format::Q6_K);
    assert_eq!(Mix::Q4KMedium.type_of(Role::Embedding, None, 4096, &model), Format::Q4_K);
}

#[test]
fn rows_that_blocks_do_not_divide_fall_back() {
    // Qwen2.5-0.5B has 896 columns, which are no whole blocks of 256; its embedding is its output.
    let model = Model::find("qwen2.5-0.5b").unwrap().anatomy;
    let of = |mix: Mix, role| mix.type_of(role, Some(10), 896, &model);
    assert_eq!(of(Mix::Q4KSmall, Role::Query), Format::Q5_0);
    assert_eq!(of(Mix::Q5KSmall, Role::Query), Format::Q5_1);
    assert_eq!((of(Mix::Q3KSmall, Role::Query), of(Mix::Q2K, Role::Up)), (Format::Q4_0, Format::Q4_0));
    assert_eq!(of(Mix::Q4KMedium, Role::Embedding), Format::Q8_0);
    assert_eq!(of(Mix::Q4_0, Role::Up), Format::Q4_0);
}
/// How many tensors of Llama-3-8B have each type, counted by hand. `Q3_K_M`: values and ways down in `Q5_K` in the first two
/// layers (4) and in `Q4_K` in the other thirty, as what joins the heads is in all 32 (92); the embedding and the four
/// others in `Q3_K` (129). `Q2_K`: four queries share a value, so values are in `Q4_K` (32); ways down and what joins the
/// heads in `Q3_K` (64). The output is in `Q6_K` always.
#[test]
fn llama_3_8b_below_four_bits() {
    let model = Model::find("llama-3-8b").unwrap().anatomy;
    let count = |mix: Mix, format: Format| {
        let inside = [Role::Query, Role::Key, Role::Value, Role::Output, Role::Gate, Role::Up, Role::Down];
        let layers = (0..32).flat_map(|layer| inside.map(|role| (role, Some(layer))));
        let all = layers.chain([(Role::Head, None), (Role::Embedding, None)]);
        all.filter(|(role, layer)| mix.type_of(*role, *layer, 4096, &model) == format).count()
    };
    let counts =
        |mix| [Format::Q2_K, Format::Q3_K, Format::Q4_K, Format::Q5_K, Format::Q6_K].map(|one| count(mix, one));
    assert_eq!(counts(Mix::Q3KMedium), [0, 129, 92, 4, 1]);
    assert_eq!(counts(Mix::Q2K), [129, 64, 32, 0, 1]);
    assert_eq!(counts(Mix::Q3KLarge), [0, 129, 0, 96, 1]);
    assert_eq!(counts(Mix::Q3KSmall), [0, 225, 0, 0, 1]);
}

/// Mixtral has eight experts: keys and values in `Q8_0`, what joins the heads in `Q5_K`, and no more than its layers say of
/// the ways down. The 70B model has its values in `Q5_K` where they would be narrower.
#[test]
fn models_that_llama_cpp_knows_by_their_size() {
    let mixtral = Model::find("mixtral-8x7b").unwrap().anatomy;
    let of = |mix: Mix, role| mix.type_of(role, Some(10), 4096, &mixtral);
    assert_eq!((of(Mix::Q3KMedium, Role::Key), of(Mix::Q2K, Role::Value)), (Format::Q8_0, Format::Q8_0));
    assert_eq!((of(Mix::Q2K, Role::Output), of(Mix::Q3KLarge, Role::Output)), (Format::Q5_K, Format::Q3_K));
    assert_eq!((of(Mix::Q2K, Role::ExpertDown), of(Mix::Q2K, Role::Router)), (Format::Q3_K, Format::FP32));
    let large = Model::find("llama-3-70b").unwrap().anatomy;
    let value = |mix: Mix| mix.type_of(Role::Value, Some(10), 8192, &large);
    assert_eq!([Mix::Q2K, Mix::Q3KSmall, Mix::Q4KSmall, Mix::Q5KSmall].map(value), [Format::Q5_K; 4]);
}

/// What cannot be made without an importance matrix is forecast as it is with one. Llama-3-8B in `IQ3_XXS`: ways down are no wider, values
/// are in `Q4_K` because four queries share them, queries and keys have two bits. In `IQ2_XXS`: the first four ways down in `Q2_K`, and
/// so is the embedding.
#[test]
fn llama_3_8b_below_three_bits() {
    let model = Model::find("llama-3-8b").unwrap().anatomy;
    let of = |mix: Mix, role, layer| mix.usual_type(role, Some(layer), 4096, &model);
    let three = Mix::Iq3ExtraExtraSmall;
    assert_eq!(
        (of(three, Role::Down, 9), three.type_of(Role::Down, Some(9), 4096, &model)),
        (Format::IQ3_XXS, Format::Q3_K)
    );
    assert_eq!((of(three, Role::Value, 9), of(three, Role::Key, 9)), (Format::Q4_K, Format::IQ2_S));
    let two = Mix::Iq2ExtraExtraSmall;
    assert_eq!((0..32).filter(|layer| of(two, Role::Down, *layer) == Format::Q2_K).count(), 4);
    assert_eq!((of(two, Role::Embedding, 0), of(two, Role::Head, 0)), (Format::Q2_K, Format::Q5_K));
    assert_eq!((of(Mix::Iq1Small, Role::Output, 9), of(Mix::Iq2Small, Role::Up, 9)), (Format::IQ2_XXS, Format::IQ2_XS));
}
