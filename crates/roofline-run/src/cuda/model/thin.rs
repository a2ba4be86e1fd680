//! Products of few rows as kernels of a chain.

use cudarc::driver::CudaFunction;

use super::{
    Choice, Kernels, Linear, Matrix, Memory,
    launch::{Grid, chained},
    matrix::unsupported,
};
use crate::{
    Result,
    cuda::{
        backend::Argument,
        gemv_packed::{Activation, Division, Stored, Thin},
        gpu::Recipe,
    },
};

/// What is asked of a product of few rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is a macro of the kernel")]
pub(super) struct Shape {
    pub(super) m: usize,
    /// Whether outputs are FP32.
    pub(super) wide: bool,
    /// Whether a gate is applied: outputs are half of the rows.
    pub(super) gated: bool,
    /// Rows of outputs that are of chosen experts; 0 where there are none.
    pub(super) visits: usize,
    /// Whether inputs are not normed yet.
    pub(super) unnormed: bool,
    /// Whether outputs are added to the stream.
    pub(super) adds: bool,
}

impl Shape {
    pub(super) fn of(linear: &Linear, visits: usize) -> Self {
        let Linear { m, wide, gated, .. } = *linear;
        Self { m, wide, gated, visits, unnormed: linear.unnormed.is_some(), adds: linear.sum.is_some() }
    }
}

/// One way to run it.
#[derive(Clone)]
pub(super) struct Way {
    function: CudaFunction,
    grid: Grid,
}

fn thin(stored: Stored, half: bool, matrix: (usize, usize), shape: Shape) -> Thin {
    let activation = if shape.gated { Activation::Gated } else { Activation::None };
    let (n, k) = matrix;
    Thin { activation, stored, half, m: shape.m, n: if shape.gated { n / 2 } else { n }, k }
}

fn recipe(thin: &Thin, division: Division, shape: Shape, chained: bool) -> Recipe {
    let mut recipe = thin.recipe(division);
    let flag = |on: bool| i64::from(on);
    recipe.defines.extend([
        ("WIDE", flag(shape.wide)),
        ("EXPERTS", flag(shape.visits > 0)),
        ("FACTORED", flag(shape.unnormed)),
        ("ADDS", flag(shape.adds)),
        ("CHAINED", flag(chained)),
    ]);
    recipe
}

/// The ways that suit a matrix.
pub(super) fn ways(kernels: &Kernels<'_>, matrix: &Matrix, shape: Shape) -> Result<Vec<Way>> {
    let packed = matrix.packed.as_ref().ok_or_else(|| unsupported("a matrix that is not packed".to_owned()))?;
    let gpu = kernels.gpu;
    let thin = thin(packed.stored, kernels.half, (matrix.n, matrix.k), shape);
    let divisions = thin.divisions(gpu.multiprocessors, gpu.architecture.major >= 9);
    let recipes: Vec<Recipe> =
        divisions.iter().map(|division| recipe(&thin, *division, shape, super::launch::chains(gpu))).collect();
    let functions = gpu.functions(&recipes)?;
    let way = |(division, function): (&Division, CudaFunction)| Way {
        function,
        grid: Grid {
            blocks: (thin.blocks(*division, gpu.multiprocessors), shape.visits.max(1) as u32),
            threads: 32 * division.warps,
            shared: 0,
        },
    };
    Ok(divisions.iter().zip(functions).map(way).collect())
}

/// Asks for a product.
pub(super) fn enqueue(
    kernels: &Kernels<'_>,
    way: &Way,
    matrix: &Matrix,
    linear: &Linear,
    x_scales: u64,
    choice: Option<Choice>,
) -> Result<()> {
    let packed = matrix.packed.as_ref().ok_or_else(|| unsupported("a matrix that is not packed".to_owned()))?;
    let address = |memory: &Memory| Argument::Address(memory.address());
    let integer = |value: usize| Argument::Integer(value as i32);
    let rows = if linear.gated { matrix.n / 2 } else { matrix.n };
    let mut arguments = vec![
        address(&packed.weights),
        address(&packed.scales),
        address(&packed.zeros),
        Argument::Address(linear.x),
        Argument::Address(x_scales),
        Argument::Address(linear.y),
        integer(rows),
        integer(matrix.k.div_ceil(64)),
        integer(linear.m),
        Argument::Real(packed.tensor),
    ];
    if let Some(norm) = linear.unnormed {
        arguments.extend([Argument::Address(norm.squares), Argument::Real(norm.epsilon)]);
    }
    if let Some(sum) = linear.sum {
        arguments.extend([sum.from, sum.to, sum.norm, sum.squares].map(Argument::Address));
    }
    if let Some(choice) = choice {
        arguments.push(Argument::Address(choice.address));
        arguments.extend(packed.strides.map(|stride| Argument::Count(stride as u64)));
        arguments.push(integer(choice.active));
    }
    chained(kernels.gpu, &way.function, way.grid, &arguments)
}

pub(super) fn sources() -> Vec<(String, Recipe)> {
    let plain = Shape { m: 1, wide: false, gated: false, visits: 0, unnormed: false, adds: false };
    let wide = Shape { wide: true, unnormed: true, ..plain };
    let experts = Shape { gated: true, visits: 4, ..plain };
    let gated = Shape { gated: true, unnormed: true, ..plain };
    let adds = Shape { m: 16, adds: true, ..plain };
    let of = |(stored, shape): (Stored, Shape)| {
        let thin = thin(stored, false, (4096, 4096), shape);
        let divisions = thin.divisions(132, false);
        let Shape { visits, unnormed, adds, .. } = shape;
        let name = format!("chained thin {stored:?} visits {visits} unnormed {unnormed} adds {adds}");
        divisions.first().map(|division| (name, recipe(&thin, *division, shape, true)))
    };
    let all = [
        (Stored::Int4(128), wide),
        (Stored::Int4(128), gated),
        (Stored::Nf4, adds),
        (Stored::BothFp8, adds),
        (Stored::Sixteen, experts),
        (Stored::Mxfp4, experts),
        (Stored::Nf4, experts),
    ];
    all.into_iter().filter_map(of).collect()
}
