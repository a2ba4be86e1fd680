//! What a matrix is once it was stored: for whoever runs a model with it before anything is written.

use std::sync::{Mutex, PoisonError};

use crate::{
    ErrorStats,
    coding::{Block, Coding, Matrix},
    data::share::share,
    job::part_bytes,
    number,
};

/// Rows that a thread codes at once.
const BAND: usize = 32;

/// The numbers of a matrix as they are after they were coded, or why they cannot be.
pub(crate) fn roundtrip(
    coding: &dyn Coding,
    columns: usize,
    numbers: &[f32],
    importance: Option<&[f32]>,
    threads: usize,
) -> Result<Vec<f32>, String> {
    let matrix = Matrix { rows: numbers.len() / columns.max(1), columns };
    let largest = number::peak(numbers);
    let peak = if coding.needs_peak() { coding.conclude(matrix, &[coding.gather(numbers, largest)]) } else { 0.0 };
    let parts = coding.parts(matrix)?;
    let mut decoded = vec![0.0; numbers.len()];
    let band = (BAND.next_multiple_of(coding.unit().max(1)) * columns).max(1);
    let failed = Mutex::new(false);
    let bands = numbers.chunks(band).zip(decoded.chunks_mut(band)).collect();
    share(threads, bands, |(values, decoded): (&[f32], &mut [f32])| {
        let rows = values.len() / columns;
        let mut bytes: Vec<Vec<u8>> = parts.iter().map(|part| vec![0; part_bytes(part, rows)]).collect();
        let mut out: Vec<&mut [u8]> = bytes.iter_mut().map(Vec::as_mut_slice).collect();
        let clipped = coding.encode(Block { values, columns, peak, importance, chosen: None }, &mut out, decoded);
        if ErrorStats::of(values, decoded, clipped).is_out_of_reach() {
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        }
    });
    if failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(format!("reaches {largest}, which this format cannot hold"));
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Dtype, Method,
        coding::compressed_tensors::{Scheme, coding},
    };

    /// Bands of rows are what all of them are at once, and a weight that a scale of 16 bits cannot reach is told.
    #[test]
    fn as_one_block_or_in_bands() {
        let of = |scheme| coding(scheme, Dtype::F16, Method::Rtn).unwrap();
        let mut numbers: Vec<f32> = (0..70 * 64).map(|at| (at * 7919 % 1009) as f32 / 500.0 - 1.0).collect();
        for scheme in [Scheme::Int { bits: 4, group: Some(32), zero: false }, Scheme::Nvfp4] {
            let coding = of(scheme);
            let matrix = Matrix { rows: 70, columns: 64 };
            let peak = coding.conclude(matrix, &[coding.gather(&numbers, number::peak(&numbers))]);
            let mut bytes: Vec<Vec<u8>> =
                coding.parts(matrix).unwrap().iter().map(|part| vec![0; part_bytes(part, 70)]).collect();
            let mut out: Vec<&mut [u8]> = bytes.iter_mut().map(Vec::as_mut_slice).collect();
            let mut one = vec![0.0; numbers.len()];
            let block = Block { values: &numbers, columns: 64, peak, importance: None, chosen: None };
            coding.encode(block, &mut out, &mut one);
            for threads in [1, 3] {
                assert_eq!(roundtrip(&*coding, 64, &numbers, None, threads).unwrap(), one);
            }
            let error = |(old, new): (&f32, &f32)| (old - new).abs();
            let worst = numbers.iter().zip(&one).map(error).fold(0.0, f32::max);
            assert!((0.01..0.3).contains(&worst), "{worst}");
        }
        numbers[4000] = 1e9;
        let told = roundtrip(&*of(Scheme::Int { bits: 4, group: Some(32), zero: false }), 64, &numbers, None, 2);
        assert!(told.unwrap_err().contains("1000000000"));
    }
}
