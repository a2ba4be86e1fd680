//! What is measured where nobody named a subject of their own: the newcomer's tour, and squares from small to large.

use roofline_core::{
    Device, Dim, Graph, Plan,
    device::Kind,
    measurement::Subject as Measurable,
    op::{Attention, Cache},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::Squares;
use crate::{
    Context, Result,
    machine::{Varies, is_native, plans},
    subjects::{Subjects, at_plans, refuse_theory},
};

/// A question that leads on.
#[derive(Serialize, JsonSchema)]
pub struct Next {
    pub command: &'static str,
    pub shows: &'static str,
}

/// After kernels come models.
pub(super) const AFTER_THE_TOUR: [Next; 2] = [
    Next { command: "roofline compare --demo", shows: "a whole model beside theory, in 16, 8 and 4 bit" },
    Next { command: "roofline pipeline --demo", shows: "what a narrower format gains and what it costs, measured" },
];

/// Square matrix-vector products from small to large.
pub(super) fn squares(context: &Context, asked: &Squares, device: &Device) -> Result<Subjects> {
    refuse_theory(&asked.setting)?;
    let names =
        if asked.setting.precision.is_empty() { vec!["fp32".to_owned()] } else { asked.setting.precision.clone() };
    let plans = plans(&names, Varies::Product(None), device)?;
    let mut all = Vec::new();
    for side in asked.n.0.iter().copied() {
        all.extend(at_plans(context, &Graph::gemv(side, side)?, &plans, device)?);
    }
    Ok(Subjects { words: "square matrix-vector products".to_owned(), all })
}

/// What a newcomer sees: products from decode to prefill, attention, and what not to do.
pub(super) fn tour(context: &Context, names: &[String], device: &Device, quick: bool, cast: bool) -> Result<Subjects> {
    let plans = plans(names, Varies::Product(None), device)?;
    let native: Vec<Plan> = plans.iter().filter(|plan| is_native(plan, device)).cloned().collect();
    let gpu = matches!(device.kind, Kind::Gpu | Kind::Soc);
    // A processor fills at a size where a GPU has hardly started; above 16 rows what is stored narrow is not calibrated there.
    let shapes: &[(u64, u64)] = match (gpu, quick) {
        (false, true) => &[(1, 4096), (128, 4096)],
        (false, false) => &[(1, 4096), (8, 4096), (128, 4096), (1024, 4096)],
        (true, true) => &[(1, 4096), (1, 28_672), (2048, 4096)],
        (true, false) => &[(1, 4096), (1, 28_672), (16, 4096), (128, 4096), (4096, 4096)],
    };
    let mut all = Vec::new();
    for (m, n) in shapes {
        let plans = if gpu && *m > 16 { &native } else { &plans };
        all.extend(at_plans(context, &Graph::gemm(*m, *n, 4096)?, plans, device)?);
    }
    let narrow = all.iter().find(|subject| subject.precision == "w8a16").cloned();
    all.extend(narrow.filter(|_| cast).map(|subject| Measurable { cast: true, ..subject }));
    let dim = |value| Dim::new("attention", value);
    let attention = Attention {
        batch: Dim::ONE,
        heads: dim(32)?,
        kv_heads: dim(8)?,
        head_dim: dim(128)?,
        value_dim: dim(128)?,
        queries: Dim::ONE,
        context: dim(8192)?,
        causal: true,
        window: None,
        cache: Cache::Separate,
    };
    let wide: Vec<_> = plans.iter().filter(|plan| matches!(plan.base(), "fp32" | "bf16" | "fp16")).cloned().collect();
    if !wide.is_empty() {
        all.extend(at_plans(context, &Graph::attention(attention, true), &wide, device)?);
    }
    Ok(Subjects { words: "A tour".to_owned(), all })
}
