//! One product, and chips of one's own.

use super::*;
use crate::{
    Device,
    device::Peaks,
    units::{ByteRate, FlopRate},
};

fn chip(peaks: &[(crate::Math, f64)]) -> Machine {
    let peaks = peaks.iter().map(|(math, tera)| (*math, FlopRate::new(tera * 1e12)));
    let peaks = Peaks::distinct(peaks).unwrap();
    Machine::new(Device::custom("mine", ByteRate::new(3e12), peaks, None).unwrap(), Stack::Roofline)
}

#[test]
fn a_chip_of_ones_own_is_advised_what_predict_says() {
    use crate::Math::{Fp4, Fp8, Fp16};
    let machine = chip(&[(Fp16, 100.0), (Fp8, 2000.0), (Fp4, 8000.0)]);
    let need = |any_quality| OperatorNeed { machine: &machine, tier: Tier::Ideal, memory: None, any_quality };
    // 2048 rows of 8192 x 8192 wait for multipliers in 16 bit and in FP8, so that the speed-up is that of the peaks; FP4 has
    // 80 times the peak and more than memory gives it.
    let advice = recommend_operator((2048, 8192, 8192), &need(false)).unwrap();
    assert_eq!(advice.plan.to_string(), "fp8");
    assert!((advice.recommendation.predicted_speedup - 20.0).abs() < 0.2, "{:?}", advice.recommendation);
    assert!(advice.warnings.iter().any(|warning| warning.starts_with("nvfp4 would be")), "{:?}", advice.warnings);
    let any = recommend_operator((2048, 8192, 8192), &need(true)).unwrap();
    let fastest = any.ranked.iter().filter_map(|row| row.ratios.speedup).fold(0.0, f64::max);
    assert_eq!(any.ranked[0].ratios.speedup, Some(fastest));
    assert!(["nvfp4", "mxfp4"].contains(&any.recommendation.precision.as_str()) && fastest > 50.0, "{fastest}");
    // And of a model.
    let ask = Ask { tier: Tier::Ideal, demand: Demand::Prefill { prompt: 2048 }, ..Ask::default() };
    let model = ask.of("llama-3-8b", &machine).unwrap();
    assert_eq!(plan(&model), "fp8", "{}", model.reason);
    assert!(model.warnings.iter().any(|warning| warning.starts_with("no runtime that we know runs on mine")));
    // Without 16 bit there is nothing to compare with, and an answer all the same.
    let odd = chip(&[(Fp8, 2000.0), (crate::Math::Fp32, 10.0)]);
    let odd = recommend_operator((2048, 8192, 8192), &OperatorNeed { machine: &odd, ..need(false) }).unwrap();
    assert_eq!((odd.plan.to_string().as_str(), odd.ranked[0].ratios.speedup), ("fp8", None));
}

#[test]
fn a_product_is_advised_with_the_fields_of_the_interface() {
    let ask = |shape, device: &str, memory| {
        let machine = machine(device);
        recommend_operator(shape, &OperatorNeed { machine: &machine, tier: Tier::Ideal, memory, any_quality: false })
    };
    let advice = ask((1, 4096, 4096), "jetson_orin_nano", None).unwrap();
    let short = &advice.recommendation;
    assert_eq!((short.method, short.memory_bound), ("PTQ", true));
    assert!((3.5..3.9).contains(&short.predicted_speedup), "{}", short.predicted_speedup);
    assert!((70.0..75.0).contains(&short.memory_savings_pct), "{}", short.memory_savings_pct);
    assert!(short.reason.starts_with("memory-bound (AI 1.0, critical"), "{}", short.reason);
    let prompt = ask((4096, 4096, 4096), "h100_sxm", None).unwrap();
    assert_eq!((prompt.recommendation.precision.as_str(), prompt.recommendation.method), ("fp8", "native_fp8"));
    assert!(prompt.warnings[0].contains("no time"));
    assert!(ask((1, 4096, 4096), "jetson_orin_nano", Some(Bytes::ZERO)).is_err());
    let tight = ask((1, 4096, 4096), "jetson_orin_nano", Some(Bytes::new(1e6))).unwrap_err();
    assert!(tight.to_string().starts_with("no precision fits"), "{tight}");
    // What no runtime loads is multiplied all the same.
    for (device, precision) in [("v100_sxm2_16gb", "w4a16"), ("gb10", "int8"), ("tpu_v5e", "w8a16"), ("gaudi3", "fp8")]
    {
        let advice = ask((1, 4096, 4096), device, None).unwrap();
        let row = advice.ranked.iter().find(|row| row.precision == precision).unwrap();
        assert!(!row.runtimes.contains(&"vLLM") && row.ratios.speedup.unwrap() > 1.5, "{device}");
    }
}
