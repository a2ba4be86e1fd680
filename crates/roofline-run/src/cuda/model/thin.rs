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
        gemv_packed::{Activation, DECLARED, Division, STEP, Stored, Thin},
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
    /// Whether 8-bit inputs are rounded within, and not by a kernel in front.
    pub(super) narrows: bool,
}

/// Most bytes of inputs that are rounded within, as codes or as 16-bit numbers: two blocks of a Hopper multiprocessor have room in
/// their shared memory for them and for their sums.
pub(crate) const ROUNDED_BYTES: usize = 80 << 10;

/// Who rounds inputs to 8 bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounding {
    /// Nobody.
    None,
    /// A kernel in front.
    InFront,
    /// Every block, in so many bytes of shared memory.
    Within(u32),
}

impl Rounding {
    /// Within, where a block of at most `block` bytes has room for inputs of which rows lie half of the banks apart.
    fn within(thin: &Thin, block: u32) -> Option<Self> {
        let size = if thin.stored.bytes() { 1 } else { 2 };
        let all = thin.m * STEP * thin.steps() * size;
        let bytes = all + thin.m * 64;
        let room = block.saturating_sub(DECLARED) as usize;
        (all <= ROUNDED_BYTES && bytes <= room).then_some(Self::Within(bytes as u32))
    }

    fn shared(self) -> u32 {
        if let Self::Within(bytes) = self { bytes } else { 0 }
    }
}

fn thin(stored: Stored, half: bool, matrix: (usize, usize), shape: Shape) -> Thin {
    let activation = if shape.gated { Activation::Gated } else { Activation::None };
    let (n, k) = matrix;
    Thin { activation, stored, half, m: shape.m, n: if shape.gated { n / 2 } else { n }, k }
}

/// A kernel.
fn recipe(thin: &Thin, division: Division, shape: Shape, chained: bool, rounding: Rounding) -> Recipe {
    let mut recipe = Recipe { shared: rounding.shared(), ..thin.recipe(division) };
    let flag = |on: bool| i64::from(on);
    let rounded = match rounding {
        Rounding::None => 0,
        Rounding::InFront => 1,
        Rounding::Within(_) => 2,
    };
    recipe.defines.extend([
        ("WIDE", flag(shape.wide)),
        ("EXPERTS", flag(shape.visits > 0)),
        ("FACTORED", flag(shape.unnormed)),
        ("ADDS", flag(shape.adds)),
        ("ROUNDED", rounded),
        ("CHAINED", flag(chained)),
    ]);
    recipe
}

/// The ways that suit a matrix.
pub(super) fn ways(kernels: &Kernels<'_>, matrix: &Matrix, shape: Shape) -> Result<Vec<Way>> {
    let packed = matrix.packed.as_ref().ok_or_else(|| unsupported("a matrix that is not packed".to_owned()))?;
    let gpu = kernels.gpu;
    let thin = thin(packed.stored, kernels.half, (matrix.n, matrix.k), shape);
    let (units, clusters) = (gpu.multiprocessors, gpu.architecture.major >= 9);
    let chains = super::launch::chains(gpu);
    let plain = if matrix.narrows() { Rounding::InFront } else { Rounding::None };
    let divisions = thin.divisions(units, clusters);
    let mut all: Vec<(Division, Rounding)> = divisions.into_iter().map(|own| (own, plain)).collect();
    let within = Rounding::within(&thin, gpu.block_shared()?).filter(|_| matrix.narrows());
    if let Some(within) = within {
        all.extend(thin.rounding_divisions(units, clusters).into_iter().map(|own| (own, within)));
    }
    let recipes: Vec<Recipe> =
        all.iter().map(|(own, rounding)| recipe(&thin, *own, shape, chains, *rounding)).collect();
    let functions = gpu.functions(&recipes)?;
    let way = |((division, rounding), function): ((Division, Rounding), CudaFunction)| Way {
        function,
        grid: Grid {
            blocks: (thin.blocks(division, units), shape.visits.max(1) as u32),
            threads: 32 * division.warps,
            shared: rounding.shared(),
        },
        narrows: rounding.shared() > 0,
    };
    Ok(all.into_iter().zip(functions).map(way).collect())
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
    const HOPPER_SHARED: u32 = 227 << 10;
    let plain = Shape { m: 1, wide: false, gated: false, visits: 0, unnormed: false, adds: false };
    let wide = Shape { wide: true, unnormed: true, ..plain };
    let experts = Shape { gated: true, visits: 4, ..plain };
    let gated = Shape { gated: true, unnormed: true, ..plain };
    let adds = Shape { m: 16, adds: true, ..plain };
    // Of those that round x every division, which differ in what they declare of shared memory.
    let of = |(stored, shape, narrows): (Stored, Shape, bool)| -> Vec<(String, Recipe)> {
        let thin = thin(stored, false, (4096, 2048), shape);
        let plain = if stored.bytes() { Rounding::InFront } else { Rounding::None };
        let kernels = match Rounding::within(&thin, HOPPER_SHARED).filter(|_| narrows) {
            Some(within) => thin.rounding_divisions(132, false).into_iter().map(|own| (own, within)).collect(),
            None => vec![(thin.divisions(132, false)[0], plain)],
        };
        let Shape { m, visits, unnormed, adds, .. } = shape;
        let name = |rounding: Rounding, words: String| {
            format!(
                "chained thin {stored:?}{words} rows {m} visits {visits} unnormed {unnormed} adds {adds} {rounding:?}"
            )
        };
        let named = |(division, rounding): (Division, Rounding)| {
            (name(rounding, division.words()), recipe(&thin, division, shape, true, rounding))
        };
        kernels.into_iter().map(named).collect()
    };
    let all = [
        (Stored::Int4(128), wide, false),
        (Stored::Int4(128), gated, false),
        (Stored::Nf4, adds, false),
        (Stored::BothInt8, adds, false),
        (Stored::BothInt8, gated, true),
        (Stored::BothInt8, adds, true),
        (Stored::Fp8, wide, true),
        (Stored::Fp8, adds, true),
        (Stored::Sixteen, experts, false),
        (Stored::Mxfp4, experts, false),
        (Stored::Nf4, experts, false),
    ];
    all.into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums and what is rounded have room beside each other, on small GPUs as well, and no kernel declares more than it may.
    #[test]
    fn blocks_that_round_have_room() {
        for (stored, m, k) in [(Stored::BothInt8, 8, 4032), (Stored::BothInt8, 16, 4096), (Stored::Fp8, 16, 2048)] {
            let shape = Shape { m, wide: false, gated: false, visits: 0, unnormed: false, adds: false };
            let thin = thin(stored, false, (4096, k), shape);
            for block in [64, 99, 163, 227].map(|size| size << 10) {
                if let Some(Rounding::Within(bytes)) = Rounding::within(&thin, block) {
                    assert!(bytes as usize >= m * k * if stored.bytes() { 1 } else { 2 } && bytes + DECLARED <= block);
                }
            }
            assert!(Rounding::within(&thin, 227 << 10).is_some(), "{stored:?} {m} {k}");
            let (few, more) = (thin.divisions(132, true), thin.rounding_divisions(132, true));
            assert!(more.len() > few.len() || m > 8, "{stored:?} {m}");
            assert!(more.iter().all(|division| thin.sums(*division) < DECLARED), "{stored:?} {m}: {more:?}");
        }
        // Five rows of 14336 are 70 KiB; six are more than is rounded within.
        let of = |m| {
            let shape = Shape { m, wide: false, gated: false, visits: 0, unnormed: false, adds: false };
            Rounding::within(&thin(Stored::BothInt8, false, (4096, 14336), shape), 227 << 10)
        };
        assert_eq!((of(5), of(6)), (Some(Rounding::Within(5 * 14336 + 5 * 64)), None));
    }
}
