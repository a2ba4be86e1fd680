//! FP4 times FP4 as it is stored: who can, and scales in the order that units for FP4 read them.
//!
//! A tile has the scales of 128 rows and of four blocks of 16 columns, 512 bytes; tiles lie row after row. Within a tile, row
//! `r` and block `b` are at `16 (r mod 32) + 4 (r / 32) + b` (cuBLAS 13.0, "1D block scaling factors layout"). What there is
//! once per tensor multiplies the whole product. This never ran on hardware that has such units: a test multiplies by these
//! bytes on the processor, and the check before a measurement compares with the same reference.

use roofline_core::{Format, Precision};

use super::super::{compiler::Architecture, operand::Operand};

/// Major compute capability of the first GPUs with units for FP4.
const FP4_UNITS: u32 = 10;

/// Columns of a block, rows and blocks of a tile.
const BLOCK: usize = 16;
const ROWS: usize = 128;
const BLOCKS: usize = 4;

/// Why FP4 times FP4 cannot be multiplied as it is stored; none where it can, or where something else is asked for.
///
/// Units for it came with compute capability 10.0. The library multiplies NVFP4 only, and no kernel here takes MXFP4 to them.
pub(super) fn refusal(formats: &Precision, Architecture { major, minor }: Architecture) -> Option<String> {
    let Precision { weights, activations, .. } = *formats;
    if weights != activations || !matches!(weights, Format::NVFP4 | Format::MXFP4) {
        return None;
    }
    if major < FP4_UNITS {
        return Some(format!(
            "{weights} times {activations} needs FP4 units, which came with compute capability {FP4_UNITS}.0, and this GPU is \
             sm_{major}{minor}: {weights} weights with 16-bit activations run here"
        ));
    }
    (weights == Format::MXFP4).then(|| {
        format!(
            "cuBLASLt has no product of mxfp4 on sm_{major}{minor}, and there is no kernel of our own: nvfp4 has one"
        )
    })
}

/// The scales of `rows` rows of `columns` columns, tile after tile; zeros where there is nothing.
pub(super) fn tiled(operand: &Operand, rows: usize, columns: usize) -> Vec<u8> {
    let (own, across) = (operand.columns.div_ceil(BLOCK), columns.div_ceil(BLOCK).div_ceil(BLOCKS));
    let mut tiles = vec![0; rows.div_ceil(ROWS) * across * ROWS * BLOCKS];
    for row in 0..operand.rows.min(rows) {
        let scales = &operand.encoded.scales[row % operand.distinct() * own..][..own];
        for (block, scale) in scales.iter().enumerate() {
            tiles[place(row, block, across)] = *scale;
        }
    }
    tiles
}

/// Where the scale of a block is, with `across` tiles side by side.
fn place(row: usize, block: usize, across: usize) -> usize {
    let tile = row / ROWS * across + block / BLOCKS;
    let (row, block) = (row % ROWS, block % BLOCKS);
    tile * ROWS * BLOCKS + row % 32 * 16 + row / 32 * 4 + block
}

/// The scale of the whole tensor.
pub(super) fn factor(operand: &Operand) -> f32 {
    operand.encoded.tensor.first_chunk::<4>().map_or(1.0, |bytes| f32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use roofline_core::{Graph, Math, Op, Registry, format::Element, measurement::Subject, precision::PrecisionSpec};

    use super::{super::linear::Plan, *};
    use crate::reference::linear::linear;

    /// What a unit would read: a code of four bits, the scale of its block, the scale of its tensor.
    fn read(operand: &Operand, codes: &[u8], scales: &[u8], row: usize, column: usize, width: usize) -> f64 {
        let byte = codes[row % operand.distinct() * width / 2 + column / 2];
        let code = if column.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
        let across = width.div_ceil(BLOCK).div_ceil(BLOCKS);
        let scale = scales[place(row, column / BLOCK, across)];
        f64::from(Element::Fp4E2M1.decode(u64::from(code))) * f64::from(Element::Fp8E4M3.decode(u64::from(scale)))
    }

    #[test]
    fn a_product_of_what_the_units_read_is_the_reference() {
        // Rows of two tiles, blocks of three, and columns that fill no whole tile.
        let (m, n, k, width) = (5, 150, 144, 160);
        let weights = Operand::new(Format::NVFP4, n, k, 0.1, 1).unwrap();
        let inputs = Operand::new(Format::NVFP4, m, k, 1.0, 2).unwrap();
        let bytes = |operand: &Operand, rows| (operand.plain(width), tiled(operand, rows, width));
        let ((w, w_scales), (x, x_scales)) = (bytes(&weights, n), bytes(&inputs, m));
        assert_eq!(w_scales.len(), 2 * 3 * 512);
        let columns: Vec<usize> = (0..weights.distinct()).collect();
        let exact = linear(&inputs.values, &weights.values, k, &[0, 1, 2, 3, 4], &columns);
        let factor = f64::from(factor(&weights)) * f64::from(factor(&inputs));
        for row in 0..m {
            for column in 0..n {
                let pair = |at: usize| {
                    read(&inputs, &x, &x_scales, row, at, width) * read(&weights, &w, &w_scales, column, at, width)
                };
                let sum = factor * (0..width).map(pair).sum::<f64>();
                let exact = exact[row * columns.len() + column % columns.len()];
                assert!((sum - exact).abs() < 1e-5 * (1.0 + exact.abs()), "{row} {column}: {sum} {exact}");
            }
        }
    }

    /// What would run a product of `name` on a GPU, or why nothing does.
    fn plan(name: &str, device: &str, (major, minor): (u32, u32)) -> Result<(String, Math), String> {
        let device = Registry::builtin().find(device).unwrap().into_owned();
        let formats = name.parse::<PrecisionSpec>().unwrap().on(&device).unwrap();
        let node = &Graph::gemm(64, 4096, 4096).unwrap().nodes[0];
        let Op::Linear(shape) = node.op else { panic!("a product is one") };
        let plan = Plan::of(shape, &Subject::new(node, name, formats), Architecture { major, minor });
        plan.map(|plan| (plan.kernel().name, plan.kernel().math)).map_err(|error| error.to_string())
    }

    #[test]
    fn what_has_no_units_is_refused_by_name() {
        for (architecture, name) in [((9, 0), "sm_90"), ((8, 9), "sm_89")] {
            let reason = plan("nvfp4", "b200", architecture).unwrap_err();
            assert!(reason.contains(name) && reason.contains("10.0"), "{reason}");
        }
        for architecture in [(10, 0), (12, 0)] {
            assert_eq!(plan("nvfp4", "b200", architecture), Ok(("cublaslt fp4".to_owned(), Math::Fp4)));
            assert!(plan("mxfp4", "b200", architecture).unwrap_err().contains("mxfp4"));
        }
    }

    #[test]
    fn double_precision_is_left_to_the_library_everywhere() {
        for architecture in [(8, 0), (9, 0)] {
            let (name, math) = plan("fp64", "h200", architecture).unwrap();
            assert_eq!(name, "cublaslt fp64");
            assert!(matches!(math, Math::Fp64 | Math::Fp64Tensor), "{math}");
        }
    }

    #[test]
    fn a_tile_has_its_rows_in_four_columns() {
        assert_eq!(
            [(0, 0), (0, 3), (1, 0), (32, 0), (127, 3)].map(|(row, block)| place(row, block, 2)),
            [0, 3, 16, 4, 511]
        );
        assert_eq!((place(0, 4, 2), place(128, 0, 2)), (512, 1024));
    }
}
