//! What is measured to calibrate a processor.

use roofline_core::{
    Device, Dim, Graph,
    measurement::Subject,
    op::{Attention, Cache, Elementwise, ElementwiseKind},
    precision::PrecisionSpec,
};

use crate::{Context, Result, subjects::at_precisions};

/// Products of the grid: rows, and sides of the weights. None of them is in the tour of `compare` or among its sizes, so
/// that a comparison with a calibration is of shapes that it never saw.
const ROWS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const QUICK_ROWS: [u64; 8] = [1, 2, 4, 8, 16, 64, 256, 1024];
const SIDES: [(u64, u64); 9] = [
    (256, 1024),
    (1024, 1280),
    (1024, 4096),
    (2304, 1792),
    (3072, 8192),
    (4608, 3584),
    (4096, 11008),
    (14336, 4096),
    (8192, 1536),
];
const QUICK_SIDES: [(u64, u64); 5] = [(256, 1024), (1024, 1280), (2304, 1792), (4608, 3584), (4096, 11008)];
/// What weights are stored in.
const PRECISIONS: [&str; 14] = [
    "fp32",
    "bf16",
    "fp16",
    "w8a16",
    "w4a16",
    "int8",
    "q4_k/bf16",
    "nf4",
    "fp8a16",
    "mxfp4a16",
    "nvfp4a16",
    "q8_0/bf16",
    "q6_k/bf16",
    "q4_0/bf16",
];
const QUICK_PRECISIONS: [&str; 6] = ["fp32", "bf16", "w8a16", "w4a16", "int8", "q4_k/bf16"];
/// Precisions of the full grid that are measured at every number of rows; the others at one row and at 64.
const MAIN: [&str; 6] = QUICK_PRECISIONS;
/// Products over rows, sides and precisions; attention; element-wise kernels.
pub(crate) fn grid(context: &Context, device: &Device, quick: bool) -> Result<Vec<Subject>> {
    let (rows, sides): (&[u64], &[(u64, u64)]) = if quick { (&QUICK_ROWS, &QUICK_SIDES) } else { (&ROWS, &SIDES) };
    let names: &[&str] = if quick { &QUICK_PRECISIONS } else { &PRECISIONS };
    let specs: Vec<PrecisionSpec> = names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    let usable: Vec<PrecisionSpec> = specs.into_iter().filter(|spec| spec.on(device).is_ok()).collect();
    let mut all = Vec::new();
    for (at, (n, k)) in sides.iter().enumerate() {
        for (row, m) in rows.iter().enumerate() {
            // Few rows are cheap and matter most; of the others every shape sees a third. Laying out rows of x shows where there
            // are few features, and nowhere else can a short grid tell it from multiplying.
            let shows = quick && at == 0 && *m <= 16;
            if *m > 1 && (at + row) % 3 != 0 && !shows {
                continue;
            }
            let graph = Graph::gemm(*m, *n, *k)?;
            let here: Vec<PrecisionSpec> =
                usable.iter().filter(|spec| MAIN.contains(&spec.name()) || matches!(m, 1 | 64)).cloned().collect();
            all.extend(at_precisions(context, &graph, &here, device)?);
        }
    }
    let wide: Vec<PrecisionSpec> =
        usable.iter().filter(|spec| matches!(spec.name(), "fp32" | "bf16")).cloned().collect();
    for graph in attention(quick)?.iter().chain(&elementwise(quick)?) {
        all.extend(at_precisions(context, graph, &wide, device)?);
    }
    Ok(all)
}

fn attention(quick: bool) -> Result<Vec<Graph>> {
    // From one query per cached head to eight, which is where multiplying shows.
    let decode = [
        (1, 32, 8, 128, 4096),
        (1, 32, 32, 128, 2048),
        (4, 64, 8, 128, 1024),
        (1, 32, 8, 128, 1024),
        (1, 16, 4, 64, 8192),
        (1, 32, 8, 64, 512),
        (1, 64, 8, 128, 8192),
    ];
    let prefill = [(8, 2, 128, 256), (16, 4, 64, 512), (8, 8, 128, 512), (4, 1, 128, 1024), (8, 2, 64, 768)];
    // Of fewer than four shapes of a kind, what is left when some are held out is one or two, which tell no terms apart.
    let (decodes, prefills) = if quick { (4, 4) } else { (7, 5) };
    let new = |batch: u64, heads: u64, kv_heads: u64, width: u64, (queries, context): (u64, u64)| {
        let attention = Attention {
            batch: Dim::new("batch", batch)?,
            heads: Dim::new("heads", heads)?,
            kv_heads: Dim::new("kv-heads", kv_heads)?,
            head_dim: Dim::new("head-dim", width)?,
            value_dim: Dim::new("head-dim", width)?,
            queries: Dim::new("queries", queries)?,
            context: Dim::new("context", context)?,
            causal: true,
            window: None,
            cache: Cache::Separate,
        };
        Ok::<Graph, crate::Error>(Graph::attention(attention.checked()?, true))
    };
    let decode = decode.into_iter().take(decodes);
    let decode = decode.map(|(batch, heads, kv, width, context)| new(batch, heads, kv, width, (1, context)));
    let prefill = prefill.into_iter().take(prefills);
    let prefill = prefill.map(|(heads, kv, width, length)| new(1, heads, kv, width, (length, length)));
    decode.chain(prefill).collect()
}

fn elementwise(quick: bool) -> Result<Vec<Graph>> {
    use ElementwiseKind as K;
    let kinds = [K::Norm, K::Residual, K::GatedActivation, K::Rope];
    let shapes: &[(u64, u64)] = if quick {
        &[(1, 4096), (64, 4096), (1024, 4096)]
    } else {
        &[(1, 4096), (16, 8192), (64, 4096), (512, 2048), (1024, 4096)]
    };
    let mut all = Vec::new();
    for (tokens, width) in shapes {
        for kind in kinds {
            let width = Dim::new("width", if kind == K::Rope { 128 } else { *width })?;
            let vectors = if kind == K::Rope { Dim::new("vectors", 40)? } else { Dim::ONE };
            all.push(Graph::elementwise(Elementwise { kind, tokens: u128::from(*tokens), vectors, width }));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use roofline_core::{Op, Registry};

    use super::*;

    /// A tenth of a second each on a quiet machine: the quick grid has to be done within the half minute of a tour. Integer
    /// weights have kernels of their own for few rows, whose costs grow with the rows, so each number of rows is there.
    #[test]
    fn the_grid_is_as_large_as_its_time() {
        let device = Registry::builtin().find("xeon_8480p").unwrap().into_owned();
        let (all, quick) =
            (grid(&Context::pure(), &device, false).unwrap(), grid(&Context::pure(), &device, true).unwrap());
        assert!((140..=160).contains(&quick.len()), "{}", quick.len());
        assert!((300..=420).contains(&all.len()), "{}", all.len());
        for name in ["w8a16", "w4a16", "q4_k/bf16", "bf16"] {
            let few = |subject: &Subject| match subject.op {
                Op::Linear(linear) if subject.precision == name && linear.m.get() <= 16 => Some(linear.m.get()),
                _ => None,
            };
            let rows: BTreeSet<u64> = quick.iter().filter_map(few).collect();
            assert_eq!(rows, BTreeSet::from([1, 2, 4, 8, 16]), "{name}");
        }
    }
}
