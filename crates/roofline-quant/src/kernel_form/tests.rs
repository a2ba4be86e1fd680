mod codings;

use super::*;
use crate::{
    Checkpoint,
    checkpoint::{SINGLE, tests::write},
    rows::{Band, Heads, Ordered, Pairs, Spare, Stacked, Transposed},
    scratch::Scratch,
};

/// Two roundings of FP32.
const LAST_PLACE: f32 = 1.2e-7;

/// Rows that are read together: one, some, and more than there are.
const HEIGHTS: [usize; 4] = [1, 3, 50, usize::MAX];

/// What the parts of a matrix stand for, by the codec of the core.
fn decoded(form: &KernelForm, room: &Room, tensor: &[u8]) -> Vec<f32> {
    let Matrix { rows, columns } = form.matrix;
    let zeros = vec![0.0; rows * columns];
    let mut encoded = form.format.encode(&zeros, Dim::new("columns", columns as u64).unwrap()).unwrap();
    // As long as the codec's own parts are.
    let lengths = [&room.codes, &room.scales, &room.zeros].map(Vec::len);
    assert_eq!(lengths, [&encoded.codes, &encoded.scales, &encoded.zeros].map(Vec::len), "{}", form.format);
    assert_eq!((tensor.len(), form.tensor), (encoded.tensor.len(), encoded.tensor.len()));
    (encoded.codes, encoded.scales, encoded.zeros) = (room.codes.clone(), room.scales.clone(), room.zeros.clone());
    encoded.tensor = tensor.to_vec();
    let mut values = encoded.decode();
    for (row, factor) in values.chunks_exact_mut(columns).zip(&room.factors) {
        for value in row {
            *value *= factor;
        }
    }
    values
}

/// That a matrix has that form, and that it decodes to what is read row by row. Where two scales are multiplied, or a
/// product and a sum are rounded, their order may show in the last place.
pub(crate) fn same(rows: &dyn Rows, format: &str, row_factors: bool) {
    let close = if format == "nvfp4" || format.ends_with("zp16") { LAST_PLACE } else { 0.0 };
    near(rows, format, row_factors, close);
}

/// The same, but for so much of each number.
fn near(rows: &dyn Rows, format: &str, row_factors: bool, close: f32) {
    let form = rows.kernel_form().unwrap_or_else(|| panic!("no form, not {format}"));
    assert_eq!((form.format, form.row_factors), (format.parse().unwrap(), row_factors));
    assert_eq!(form.matrix, rows.matrix());
    let Matrix { rows: count, columns } = form.matrix;
    let mut expected = vec![f32::NAN; count * columns];
    rows.read(0..count, &mut Spare::default(), &mut expected).unwrap();
    assert!(expected.iter().any(|value| *value != 0.0), "nothing to compare");
    let tensor = rows.tensor_part().unwrap();
    let mut first = None;
    for height in HEIGHTS {
        let mut room = form.room(count);
        for (rows_of, into) in room.all().bands(height) {
            check(Some(form), &rows_of, &into).unwrap();
            rows.read_codes(rows_of, into).unwrap();
        }
        assert_eq!(first.get_or_insert_with(|| room.clone()), &room, "{format} in steps of {height}");
    }
    for (at, (found, expected)) in decoded(&form, &first.unwrap(), &tensor).iter().zip(&expected).enumerate() {
        let near = found.to_bits() == expected.to_bits() || (found - expected).abs() <= close * expected.abs();
        assert!(near, "{format}, number {at}: {found:e}, not {expected:e}");
    }
}

/// That the second has the rows of the first as columns, in each of `parts` matrices.
pub(crate) fn transposed(lying: &dyn Rows, turned: &dyn Rows, parts: usize) {
    let all = |rows: &dyn Rows| {
        let Matrix { rows: count, columns } = rows.matrix();
        let mut out = vec![f32::NAN; count * columns];
        rows.read(0..count, &mut Spare::default(), &mut out).unwrap();
        (out, count / parts, columns)
    };
    let ((lying, inputs, outputs), (turned, high, wide)) = (all(lying), all(turned));
    assert_eq!((high, wide), (outputs, inputs));
    for (at, number) in lying.iter().enumerate() {
        let (part, input, output) = (at / outputs / inputs, at / outputs % inputs, at % outputs);
        assert_eq!(turned[(part * outputs + output) * inputs + input], *number, "part {part}, {output} of {input}");
    }
}

/// Numbers that tell their places apart, in BF16, FP16 or FP32.
fn numbers(dtype: Dtype, count: usize) -> Vec<u8> {
    let number = |at: usize| (at as f32 - 50.0) * 0.125;
    let bytes = (0..count).map(|at| match dtype {
        Dtype::Bf16 => roofline_core::format::number::to_bf16(number(at)).to_le_bytes().to_vec(),
        Dtype::F16 => roofline_core::format::number::to_fp16(number(at)).to_le_bytes().to_vec(),
        _ => number(at).to_le_bytes().to_vec(),
    });
    bytes.flatten().collect()
}

#[test]
fn plain_numbers_are_as_they_lie() {
    let scratch = Scratch::new("plain-form");
    let folder = scratch.path();
    for (dtype, format) in [(Dtype::Bf16, "bf16"), (Dtype::F16, "fp16"), (Dtype::F32, "fp32")] {
        write(
            &folder.join(SINGLE),
            &[("a", dtype, &[2, 6, 4], numbers(dtype, 48)), ("b", dtype, &[5], numbers(dtype, 5))],
        );
        let checkpoint = Checkpoint::open(folder).unwrap();
        let all = StoredTensor::all(&checkpoint).unwrap();
        let form = all[1].kernel_form().unwrap();
        assert_eq!((form.matrix, form.format.to_string().as_str()), (Matrix { rows: 1, columns: 5 }, format));
        let (shard, entry) = all[0].first();
        let plain = || Plain::new(shard, entry).unwrap();
        same(&plain(), format, false);
        // Rows in another order, some of them, several of them, and with gaps between them or between their numbers.
        same(&Heads::new(plain(), 6, Pairs::Parted), format, false);
        same(&Ordered::new(plain(), 3, vec![2, 0, 1]), format, false);
        same(&Band::new(plain(), 6, 6), format, false);
        same(&*Stacked::of(vec![Box::new(plain()), Box::new(Band::new(plain(), 2, 1))]), format, false);
        let within = |rows, columns, first, down, across| {
            Plain::within(shard, entry, Matrix { rows, columns }, first, down, across).unwrap()
        };
        same(&within(6, 2, 2, 8, 1), format, false);
        same(&within(6, 2, 1, 8, 2), format, false);
        // The second expert transposed, all of it and every second output.
        same(&within(4, 6, 24, 1, 4), format, false);
        same(&within(2, 6, 25, 2, 4), format, false);
        assert_eq!(Transposed(plain()).kernel_form(), None);
        // Matrices that are not alike are not one.
        let mixed = Stacked::of(vec![Box::new(plain()), Box::new(Transposed(within(4, 6, 24, 1, 4)))]);
        assert_eq!(mixed.kernel_form(), None);
    }
    write(&folder.join(SINGLE), &[("a", Dtype::F64, &[2, 2], vec![0; 32]), ("e", Dtype::Bf16, &[0, 2], vec![])]);
    let checkpoint = Checkpoint::open(folder).unwrap();
    for stored in StoredTensor::all(&checkpoint).unwrap() {
        assert_eq!(stored.kernel_form(), None, "{}", stored.name);
        assert!(
            stored
                .read_codes(
                    0..0,
                    CodesMut { rows: 0, codes: &mut [], scales: &mut [], zeros: &mut [], factors: &mut [] }
                )
                .is_err()
        );
    }
}

/// A matrix that counts how often it is read.
struct Counted<'a>(Plain<'a>, std::sync::atomic::AtomicUsize);

impl Rows for Counted<'_> {
    fn matrix(&self) -> Matrix {
        self.0.matrix()
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        self.0.read(rows, spare, out)
    }

    fn stored(&self) -> u64 {
        self.0.stored()
    }

    fn kernel_form(&self) -> Option<KernelForm> {
        self.0.kernel_form()
    }

    fn read_codes(&self, rows: Range<usize>, into: CodesMut<'_>) -> Result<()> {
        self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.0.read_codes(rows, into)
    }
}

/// Two halves whose rows take turns are two reads, a head whose rows are mixed is one, and a row may be there twice.
#[test]
fn neighbours_are_read_together() {
    let scratch = Scratch::new("together");
    write(&scratch.path().join(SINGLE), &[("a", Dtype::Bf16, &[24, 2], numbers(Dtype::Bf16, 48))]);
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let (shard, entry) = StoredTensor::all(&checkpoint).unwrap()[0].first();
    let counted = || Counted(Plain::new(shard, entry).unwrap(), 0.into());
    let form = counted().kernel_form().unwrap();
    let reads = |rows: &dyn Rows, of: &Counted<'_>, count: usize| {
        rows.read_codes(0..count, form.room(count).all()).unwrap();
        of.1.swap(0, std::sync::atomic::Ordering::Relaxed)
    };
    let source = counted();
    let turns = (0..16).map(|at| at % 2 * 12 + at / 2).collect();
    assert_eq!(reads(&Ordered::new(&source, 1, turns), &source, 16), 2);
    assert_eq!(reads(&Heads::new(&source, 12, Pairs::Parted), &source, 24), 1);
    assert_eq!(reads(&Ordered::new(&source, 12, vec![1]), &source, 12), 1);
    same(&Ordered::new(&source, 1, vec![3, 3, 4, 0]), "bf16", false);
}

#[test]
fn room_of_another_size_is_refused() {
    let scratch = Scratch::new("room");
    write(&scratch.path().join(SINGLE), &[("a", Dtype::Bf16, &[3, 4], numbers(Dtype::Bf16, 12))]);
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let stored = &StoredTensor::all(&checkpoint).unwrap()[0];
    let form = stored.kernel_form().unwrap();
    assert_eq!((form.codes, form.scales, form.zeros, form.tensor), (8, 0, 0, 0));
    assert!(stored.read_codes(0..3, form.room(3).all()).is_ok());
    assert!(stored.read_codes(1..3, form.room(2).all()).is_ok());
    let why = |rows: Range<usize>, room: usize| stored.read_codes(rows, form.room(room).all()).unwrap_err().to_string();
    assert_eq!(why(0..3, 2), "there is no room of the right size for rows 0 to 3 of 3");
    assert_eq!(why(2..4, 2), "there is no room of the right size for rows 2 to 4 of 3");
}
