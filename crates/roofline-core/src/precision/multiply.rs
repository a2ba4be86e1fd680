//! Which units can multiply which pair of operands.

use crate::{Device, Format, Math, device::Kind, format::Element};

/// The units that can multiply a pair of formats, or none. Of ggml's block types only `q8_0` holds activations: the
/// others are weights and caches, widened on the way to the multiplier.
pub(super) fn units_for(weights: Format, activations: Format) -> Option<&'static [Math]> {
    let stored = activations.gguf().is_some() && activations != Format::Q8_0;
    if stored { None } else { multiplying_units(weights.element(), activations.element()) }
}

/// The units that can multiply a pair of elements, or none: a narrower operand is converted to the wider type on the fly.
fn multiplying_units(weights: Element, activations: Element) -> Option<&'static [Math]> {
    use Element as E;
    let either = |element: E| weights == element || activations == element;
    let sixteen = |element: E| matches!(element, E::Fp16 | E::Bf16);
    let float = |element: E| matches!(element, E::Fp8E4M3 | E::Fp8E5M2 | E::Fp6E3M2 | E::Fp6E2M3 | E::Fp4E2M1);
    let widest = weights.bits().max(activations.bits());
    if either(E::Fp64) {
        Some(FP64)
    } else if either(E::Fp32) {
        Some(FP32)
    } else if either(E::Tf32) {
        Some(TF32)
    } else if sixteen(activations) || sixteen(weights) {
        let wide = if sixteen(activations) { activations } else { weights };
        Some(if wide == E::Fp16 { FP16 } else { BF16 })
    } else if matches!(activations, E::Int8 | E::Int4) && weights.is_integer() {
        Some(if widest > 4 { INT8 } else { INT4 })
    } else if float(activations) && float(weights) {
        Some(match widest {
            8 => FP8,
            6 => FP6,
            _ => FP4,
        })
    } else if matches!(activations, E::Fp8E4M3 | E::Fp8E5M2) && weights.is_integer() && weights.bits() <= 4 {
        Some(FP8) // every INT4 level is an E4M3 and an E5M2 number
    } else {
        None
    }
}

/// The fastest unit of `device` for a pair of formats that `units` multiply.
///
/// The kernels of a processor choose their unit by what it is fast at, not by what an operand is stored in, so the least time
/// is that of the fastest that can do it: FP32 vectors take every 16-bit number, and where 16-bit activations meet weights
/// of few levels, both may be integers (see [`Math::Int16`]). So do llama.cpp's (`ggml`): its products of blocks round the
/// activations to INT8 on the way (`mmq.cu`), or widen the blocks to FP16 and add up in FP16 (`ggml-cuda.cu`). Other
/// machines multiply what they have units for. Where they have a 16-bit unit for the sake of completeness alone, as most
/// Pascal cards do (1/64 of the FP32 rate), libraries widen to FP32.
pub(super) fn fastest(
    device: &Device,
    weights: Format,
    activations: Format,
    units: &[Math],
    ggml: bool,
) -> Option<Math> {
    let sixteen = |format: Format| matches!(format.element(), Element::Fp16 | Element::Bf16);
    let widened = units.iter().any(|unit| matches!(unit, Math::Bf16 | Math::Fp16));
    let also = match device.kind {
        Kind::Cpu if widened && sixteen(activations) && in_integers(weights.element()) => INT16_OR_FP32,
        Kind::Cpu if widened => FP32,
        _ if ggml && widened => GGML,
        _ if widened && is_token(device, units) => FP32,
        _ => return device.fastest(units),
    };
    match (device.fastest(units), device.fastest(also)) {
        (Some(own), Some(other)) if device.peaks.of(other) > device.peaks.of(own) => Some(other),
        (own, other) => own.or(other),
    }
}

/// Whether the 16-bit units of a device are there, but so slow that no library uses them: below a quarter of the FP32 rate.
fn is_token(device: &Device, units: &[Math]) -> bool {
    let rate = |units: &[Math]| device.fastest(units).and_then(|math| device.peaks.of(math));
    rate(units).zip(rate(FP32)).is_some_and(|(own, wide)| own * 4.0 < wide)
}

/// Whether a unit that was named may multiply weights that `units` do: 16-bit sums are a choice of the user's, and llama.cpp's
/// blocks may be multiplied as integers.
pub(super) fn may_run_on(unit: Math, weights: Format, units: &[Math]) -> bool {
    units.contains(&unit)
        || match unit {
            Math::Fp16Acc16 => units.iter().any(|unit| matches!(unit, Math::Fp16 | Math::Bf16)),
            Math::Fp16 => units.contains(&Math::Bf16),
            Math::Fp8Acc16 => units.contains(&Math::Fp8),
            Math::Int8 | Math::Int8Dp4a => weights.gguf().is_some(),
            Math::Fp32 | Math::Int16 => units.iter().any(|unit| matches!(unit, Math::Fp16 | Math::Bf16)),
            _ => false,
        }
}

/// Whether each level of an element is an integer of 8 bits, times a scale: integers themselves, FP4 in halves, and the
/// table of NF4 to within what its sixteen levels are told apart by. FP6 and FP8 span more powers of two than that.
fn in_integers(element: Element) -> bool {
    element.is_integer() || matches!(element, Element::FixedInt8 | Element::Fp4E2M1 | Element::Nf4 | Element::BnbFp4)
}

const FP64: &[Math] = &[Math::Fp64Tensor, Math::Fp64];
const FP32: &[Math] = &[Math::Fp32, Math::Fp32Matrix];
const INT16_OR_FP32: &[Math] = &[Math::Int16, Math::Fp32, Math::Fp32Matrix];
const GGML: &[Math] = &[Math::Int8, Math::Int8Dp4a, Math::Fp16Acc16, Math::Fp16];
const TF32: &[Math] = &[Math::Tf32];
const FP16: &[Math] = &[Math::Fp16];
const BF16: &[Math] = &[Math::Bf16];
const FP8: &[Math] = &[Math::Fp8];
/// FP6 runs at the FP8 rate on Blackwell and at one of its own on CDNA4; nothing older takes it.
const FP6: &[Math] = &[Math::Fp8, Math::Fp6];
const FP4: &[Math] = &[Math::Fp4];
const INT8: &[Math] = &[Math::Int8, Math::Int8Dp4a];
const INT4: &[Math] = &[Math::Int4];

impl Format {
    /// The units that multiply two operands of this format as they are; none for a storage format.
    pub fn native_units(self) -> Option<&'static [Math]> {
        units_for(self, self)
    }
}
