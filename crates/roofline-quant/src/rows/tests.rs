use super::*;
use crate::{
    Dtype,
    checkpoint::{Shard, tests::write},
    scratch::Scratch,
};

/// A matrix whose numbers say where they are.
struct Numbered(Matrix);

impl Rows for Numbered {
    fn matrix(&self) -> Matrix {
        self.0
    }

    fn read(&self, rows: Range<usize>, _: &mut Spare, out: &mut [f32]) -> Result<()> {
        let from = rows.start * self.0.columns;
        out.iter_mut().enumerate().for_each(|(at, out)| *out = (from + at) as f32);
        Ok(())
    }

    fn stored(&self) -> u64 {
        0
    }
}

fn all(rows: &dyn Rows) -> Vec<f32> {
    let Matrix { rows: count, columns } = rows.matrix();
    let mut out = vec![f32::NAN; count * columns];
    rows.read(0..count, &mut Spare::default(), &mut out).unwrap();
    // In pieces it is the same.
    let mut pieces = vec![f32::NAN; count * columns];
    for (row, out) in pieces.chunks_exact_mut(columns).enumerate() {
        rows.read(row..row + 1, &mut Spare::default(), out).unwrap();
    }
    assert_eq!(out, pieces);
    out
}

#[test]
fn halves_of_heads_become_neighbours_and_halves_again() {
    let rows = |pairs| Heads::new(Numbered(Matrix { rows: 8, columns: 1 }), 4, pairs);
    assert_eq!(all(&rows(Pairs::Joined)), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    let six = |pairs| Heads::new(Numbered(Matrix { rows: 6, columns: 1 }), 6, pairs);
    assert_eq!(all(&six(Pairs::Joined)), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(all(&six(Pairs::Parted)), [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    // One undoes the other.
    let there = Heads::new(six(Pairs::Joined), 6, Pairs::Parted);
    assert_eq!(all(&there), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn stacks_are_read_across_their_seams() {
    let one = || -> Box<dyn Rows> { Box::new(Numbered(Matrix { rows: 2, columns: 2 })) };
    let stack = Stacked::of(vec![one(), one()]);
    assert_eq!(stack.matrix(), Matrix { rows: 4, columns: 2 });
    let mut out = [0.0; 4];
    stack.read(1..3, &mut Spare::default(), &mut out).unwrap();
    assert_eq!(out, [2.0, 3.0, 0.0, 1.0]);
}

/// Columns of what lies one below the other are rows side by side, and more than is held at once is read in parts.
#[test]
fn transposed_in_parts() {
    let one = || -> Box<dyn Rows> { Box::new(Numbered(Matrix { rows: 2, columns: 3 })) };
    assert_eq!(all(&Transposed(one())), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    let both = Transposed(Stacked::of(vec![one(), one()]));
    assert_eq!(all(&both), [0.0, 3.0, 0.0, 3.0, 1.0, 4.0, 1.0, 4.0, 2.0, 5.0, 2.0, 5.0]);
    let large = Transposed(Numbered(Matrix { rows: 2100, columns: 600 }));
    let mut out = vec![0.0; 2100];
    large.read(599..600, &mut Spare::default(), &mut out).unwrap();
    assert_eq!((out[0], out[2099]), (599.0, 2099.0 * 600.0 + 599.0));
}

/// Two experts of three inputs and four outputs, of which every second is the gate's: each number says where it is.
#[test]
fn a_matrix_within_a_tensor() {
    let scratch = Scratch::new("rows");
    let numbers: Vec<u8> = (0..24).flat_map(|at| (at as f32).to_le_bytes()).collect();
    let path = scratch.path().join("a.safetensors");
    write(&path, &[("a", Dtype::F32, &[2, 3, 4], numbers)]);
    let shard = Shard::open(&path).unwrap();
    let entry = &shard.header.tensors[0];
    let gate = Plain::within(&shard, entry, Matrix { rows: 2, columns: 3 }, 12, 2, 4).unwrap();
    assert_eq!(all(&gate), [12.0, 16.0, 20.0, 14.0, 18.0, 22.0]);
    let second = Plain::within(&shard, entry, Matrix { rows: 3, columns: 2 }, 14, 4, 1).unwrap();
    assert_eq!(all(&second), [14.0, 15.0, 18.0, 19.0, 22.0, 23.0]);
    assert_eq!(all(&Plain::new(&shard, entry).unwrap().upright()).len(), 24);
    assert!(Plain::within(&shard, entry, Matrix { rows: 3, columns: 3 }, 14, 4, 1).is_err());
    assert!(Plain::within(&shard, entry, Matrix { rows: 2, columns: 2 }, 0, usize::MAX, 2).is_err());
}
