//! `Int8Tensor`: `s = R(amax / 127.5)`, at least FP32's epsilon, and `q = clamp(rint(w * (1 / s)))` in FP32.

use std::marker::PhantomData;

use roofline_core::Format;

use super::super::{
    Block, Coding, Matrix, Part, Unsuited,
    grid::{Elements, Grid, Symmetric},
    row::{code, expand, peaks},
    scales::{Span, read_scales, write_scales},
};
use super::byte_parts;
use crate::{
    Dtype, Method,
    kernel_form::{CodesMut, KernelForm},
    method::search::{importance_of, least_error},
    rounding::{F32, Reciprocal, Rounding},
};

/// Bytes with an FP32 scale per row or group, and zero points that are zero.
pub(super) struct Int8<R> {
    span: Span,
    method: Method,
    rounding: PhantomData<R>,
}

impl<R: Rounding> Int8<R> {
    pub(super) fn new(group: Option<u32>, method: Method) -> Self {
        Self { span: Span::new(group), method, rounding: PhantomData }
    }

    fn search(row: &[f32], importance: Option<&[f32]>, group: usize, scales: &mut [f32]) {
        for (at, (row, scale)) in row.chunks_exact(group).zip(scales).enumerate() {
            let candidates: [f32; 24] =
                std::array::from_fn(|step| (*scale * (1.0 - 0.02 * step as f32)).max(f32::EPSILON));
            let importance = importance_of(importance, at, group);
            *scale = candidates[least_error(element(), row, importance, &candidates, &[0.0; 24])];
        }
    }
}

/// The scale of weights up to `peak` in magnitude.
fn scale<R: Rounding>(peak: f32) -> f32 {
    R::round(peak / 127.5).max(f32::EPSILON)
}

fn element() -> Symmetric<Reciprocal> {
    Symmetric::new(8)
}

impl<R: Rounding> Coding for Int8<R> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        byte_parts::<F32>(self.span, matrix)
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let [codes, stored, zero_points] = out else { unreachable!("a buffer for each part") };
        zero_points.fill(0);
        let columns = block.columns;
        let group = self.span.length(columns);
        let groups = columns / group;
        let (mut scales, zeros) = (vec![0.0; groups], vec![0.0; groups]);
        let rows = block.values.chunks_exact(columns).zip(decoded.chunks_exact_mut(columns));
        let stored = codes.chunks_exact_mut(columns).zip(stored.chunks_exact_mut(4 * groups));
        let mut outside = 0;
        for (at, ((row, decoded), (codes, stored))) in rows.zip(stored).enumerate() {
            let taken = block.chosen.map(|rows| rows.row(at, columns, groups));
            if let Some(taken) = taken {
                scales.copy_from_slice(taken.scales);
            } else {
                peaks(row, group, &mut scales);
                for own in &mut scales {
                    *own = scale::<R>(*own);
                }
                if self.method == Method::Mse {
                    Self::search(row, block.importance, group, &mut scales);
                }
            }
            write_scales::<F32>(&scales, stored);
            outside += code(element(), row, group, &scales, &zeros, codes);
            if let Some(taken) = taken {
                codes.copy_from_slice(taken.codes);
            }
            expand(element(), codes, group, &scales, &zeros, decoded);
        }
        outside
    }

    fn grid(&self) -> Option<Box<dyn Grid>> {
        let reach = |low: f32, high: f32| (scale::<R>(high.max(-low)), 0.0);
        Some(Box::new(Elements { element: element(), span: self.span, reach }))
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let group = self.span.length(columns);
        let groups = columns / group;
        let (mut scales, zeros) = (vec![0.0; groups], vec![0.0; groups]);
        let stored = parts[0].chunks_exact(columns).zip(parts[1].chunks_exact(4 * groups));
        for (decoded, (codes, stored)) in decoded.chunks_exact_mut(columns).zip(stored) {
            read_scales::<F32>(stored, &mut scales);
            expand(element(), codes, group, &scales, &zeros, decoded);
        }
    }

    fn kernel_form(&self, matrix: Matrix) -> Option<KernelForm> {
        if self.span == Span::Row { KernelForm::new(Format::INT8, matrix, true) } else { None }
    }

    fn arrange(&self, _columns: usize, parts: &[&[u8]], mut into: CodesMut<'_>) -> Result<(), Unsuited> {
        into.codes.copy_from_slice(parts[0]);
        into.scale(Dtype::F32, parts[1]);
        Ok(())
    }
}
