use super::*;
use crate::Dtype;

/// State dicts that PyTorch saved, and what it says is in them: `tools/oracle/heavy/source_fixtures.py` made both.
const STATE: &[u8] = include_bytes!("../../tests/golden/pytorch/state.bin");
const PROTOCOL4: &[u8] = include_bytes!("../../tests/golden/pytorch/protocol4.bin");
const WRAPPED: &[u8] = include_bytes!("../../tests/golden/pytorch/wrapped.pt");
const TRANSPOSED: &[u8] = include_bytes!("../../tests/golden/pytorch/transposed.bin");
const SAID: &str = include_str!("../../tests/golden/pytorch/state.json");

fn read(file: &[u8]) -> Result<Vec<Entry>, String> {
    let read = |bytes: &mut [u8], at: u64| {
        let from = file.get(at as usize..at as usize + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(from);
        Ok(())
    };
    tensors(&Source { read: &read, length: file.len() as u64 })
}

#[test]
fn what_pytorch_saved_is_read() {
    let said: BTreeMap<String, serde_json::Value> = serde_json::from_str(SAID).unwrap();
    for file in [STATE, PROTOCOL4] {
        let found = read(file).unwrap();
        assert_eq!(found.len(), said.len());
        for entry in found {
            let said = &said[&entry.name];
            let shape: Vec<usize> = serde_json::from_value(said["shape"].clone()).unwrap();
            assert_eq!(entry.shape, shape, "{}", entry.name);
            let bytes = &file[entry.begin as usize..entry.end as usize];
            let digit = |at: u8| char::from_digit(u32::from(at), 16).unwrap();
            let hex: String = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
            assert_eq!(said["bytes"], hex, "{}", entry.name);
            let dtype = match said["dtype"].as_str().unwrap() {
                "torch.bfloat16" => Dtype::Bf16,
                "torch.float16" => Dtype::F16,
                "torch.float32" => Dtype::F32,
                "torch.float64" => Dtype::F64,
                "torch.float8_e4m3fn" => Dtype::F8E4M3,
                "torch.int64" => Dtype::I64,
                "torch.uint8" => Dtype::U8,
                "torch.bool" => Dtype::Bool,
                other => panic!("{other}"),
            };
            assert_eq!(entry.dtype, dtype, "{}", entry.name);
        }
    }
    assert_eq!(read(WRAPPED).unwrap()[0].name, "bf16");
}

#[test]
fn a_view_in_another_order_is_refused_by_name() {
    let said = read(TRANSPOSED).unwrap_err();
    assert!(said.starts_with("tensor `turned` has the shape [4, 3] and the strides [1, 4]: it is a view"), "{said}");
}

/// Neither a cut nor a changed byte leads out of the file, or to a panic.
#[test]
fn damage_is_found_or_harmless() {
    for end in 0..STATE.len() {
        assert!(read(&STATE[..end]).is_err(), "{end}");
    }
    for at in 0..STATE.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, STATE[at] ^ 1, STATE[at].wrapping_add(1)] {
            let mut file = STATE.to_vec();
            file[at] = value;
            for entry in read(&file).unwrap_or_default() {
                assert!(entry.begin <= entry.end && entry.end <= file.len() as u64);
                assert_eq!(entry.shape.iter().product::<usize>() as u64, entry.elements());
            }
        }
    }
}

/// A member of an archive: its name, its data, and how it is said to be compressed.
type Content<'a> = (&'a str, &'a [u8], u16);

/// An archive of these members.
fn archive(members: &[Content<'_>]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data, method) in members {
        let at = file.len() as u32;
        let size = (data.len() as u32).to_le_bytes();
        let mut middle = vec![0, 0];
        middle.extend(method.to_le_bytes());
        middle.extend([0; 8]);
        middle.extend([size, size].concat());
        middle.extend((name.len() as u16).to_le_bytes());
        middle.extend([0, 0]);
        file.extend([b"PK\x03\x04\0\0", &middle[..], name.as_bytes(), data].concat());
        directory.extend([b"PK\x01\x02\0\0\0\0", &middle[..], &[0; 10], &at.to_le_bytes(), name.as_bytes()].concat());
    }
    let (at, count) = (file.len() as u32, (members.len() as u16).to_le_bytes());
    file.extend(&directory);
    file.extend([b"PK\x05\x06\0\0\0\0", &count[..], &count].concat());
    file.extend([(directory.len() as u32).to_le_bytes(), at.to_le_bytes()].concat());
    file.extend([0, 0]);
    file
}

/// The same for archives of more than 4 GB: numbers of eight bytes, in fields of their own.
fn large(members: &[Content<'_>]) -> Vec<u8> {
    const HERE: [u8; 4] = [0xff; 4];
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data, _) in members {
        let (at, size) = ((file.len() as u64).to_le_bytes(), (data.len() as u64).to_le_bytes());
        let length = (name.len() as u16).to_le_bytes();
        let start = [&[0; 12][..], &HERE, &HERE, &length].concat();
        // PyTorch pads with a field of another kind.
        file.extend([b"PK\x03\x04\0\0", &start[..], &[5, 0], name.as_bytes(), b"FB\x01\0Z", data].concat());
        let fields = [b"FB\x01\0Z\x01\0\x18\0", &size[..], &size, &at].concat();
        let end = [&[fields.len() as u8, 0][..], &[0; 10], &HERE, name.as_bytes(), &fields].concat();
        directory.extend([b"PK\x01\x02\0\0\0\0", &start[..], &end].concat());
    }
    let (at, count) = (file.len() as u64, (members.len() as u64).to_le_bytes());
    file.extend(&directory);
    let record = file.len() as u64;
    file.extend([b"PK\x06\x06", &44u64.to_le_bytes()[..], &[0; 12], &count, &count].concat());
    file.extend([(directory.len() as u64).to_le_bytes(), at.to_le_bytes()].concat());
    file.extend([b"PK\x06\x07\0\0\0\0", &record.to_le_bytes()[..], &[1, 0, 0, 0]].concat());
    file.extend([b"PK\x05\x06\0\0\0\0", &[0xff; 12][..], &[0, 0]].concat());
    file
}

#[test]
fn large_archives_are_read() {
    let good = pickle(0);
    let file = large(&[("x/data.pkl", &good, 0), ("x/data/0", b"abcdefgh", 0)]);
    let entry = &read(&file).unwrap()[0];
    assert_eq!(&file[entry.begin as usize..entry.end as usize], b"abcdefgh");
    for at in 0..file.len() {
        let mut file = file.clone();
        file[at] ^= 0x81;
        assert!(read(&file).unwrap_or_default().iter().all(|entry| entry.end <= file.len() as u64));
    }
}

/// The pickle of one FP32 tensor of that offset, of two numbers.
fn pickle(offset: u8) -> Vec<u8> {
    let start = b"\x80\x02}X\x01\0\0\0actorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n\
                  X\x01\0\0\x000X\x03\0\0\0cpuK\x02tQK";
    [start, &[offset][..], b"K\x02\x85K\x01\x85\x89}tRs."].concat()
}

#[test]
fn what_is_not_as_pytorch_writes_it_is_refused() {
    let data: &[u8] = &[0; 8];
    let good = pickle(0);
    let sound = [("x/data.pkl", &good[..], 0), ("x/data/0", data, 0)];
    assert_eq!(read(&archive(&sound)).unwrap()[0].shape, [2]);
    let said = |members: &[Content<'_>]| read(&archive(members)).unwrap_err();
    let beyond = pickle(1);
    assert_eq!(said(&[("x/data.pkl", &beyond, 0), sound[1]]), "tensor `a` of F32 [2] ends beyond `data/0`");
    assert_eq!(said(&sound[..1]), "tensor `a` lies in `data/0`, which is not in the archive");
    assert!(said(&[sound[0], ("x/data/0", data, 8)]).starts_with("its member `x/data/0` is compressed"));
    assert_eq!(said(&[sound[0], sound[1], sound[1]]), "two members are named `x/data/0`");
    assert_eq!(said(&[sound[0], sound[1], ("x/byteorder", b"big", 0)]), "its numbers are not little-endian");
    for other in [&[sound[1]][..], &[("a/b/data.pkl", &good, 0)], &[sound[0], ("y/data.pkl", &good, 0)]] {
        assert_eq!(said(other), "it is a zip archive, but not one that `torch.save` wrote");
    }
    // Two entries of the directory that lead to the same bytes.
    let mut file = archive(&[sound[0], sound[1], ("x/data/1", data, 0)]);
    let second = file.windows(8).rposition(|bytes| bytes == b"x/data/0").unwrap();
    let third = file.windows(8).rposition(|bytes| bytes == b"x/data/1").unwrap();
    let at: [u8; 4] = file[second - 4..second].try_into().unwrap();
    file[third - 4..third].copy_from_slice(&at);
    assert_eq!(read(&file).unwrap_err(), "its member `x/data/1` has another name in its own header");
    // A member so long that it reaches into the next.
    let mut file = archive(&[sound[0], sound[1], ("x/data/1", data, 0)]);
    let second = file.windows(8).rposition(|bytes| bytes == b"x/data/0").unwrap();
    file[second - 26] += 1;
    file[second - 22] += 1;
    assert_eq!(read(&file).unwrap_err(), "its members overlap");
}

#[test]
fn nothing_is_run() {
    let said = |pickle: &[u8]| read(&archive(&[("x/data.pkl", pickle, 0)])).unwrap_err();
    let refused = "its pickle asks Python for `posix.system`, which no state dict needs: it was not run";
    assert_eq!(said(b"\x80\x02cposix\nsystem\nX\x02\0\0\0id\x85R."), refused);
    assert_eq!(said(b"\x80\x04\x8c\x05posix\x8c\x06system\x93."), refused);
    assert!(said(b"\x80\x02cbuiltins\neval\n.").contains("`builtins.eval`"));
    assert!(said(b"\x80\x02ctorch\nload\n.").contains("`torch.load`"));
    for other in [&b"(iposix\nsystem\n."[..], b"}\x81.", b"\x82\x01.", b"P0\n."] {
        assert!(said(other).contains("which no state dict needs"), "{other:?}");
    }
    // Known words in the wrong places.
    assert_eq!(said(b"ccollections\nOrderedDict\n)R)R."), "its pickle calls what is no function");
    assert_eq!(said(b"ctorch._utils\n_rebuild_tensor_v2\n)R."), "its pickle has a tensor of an unknown kind");
    assert_eq!(said(b"N}b."), "its pickle sets attributes of what is no dict");
    assert_eq!(said(b"K\x01Q."), "its pickle has a storage of an unknown kind");
    for other in [&b""[..], b".", b"t.", b"}u.", b"(}N.", b"h\x00.", b"X\xff\xff\xff\xffa.", b"K\x01\x86.", b"(0."] {
        assert!(read(&archive(&[("x/data.pkl", other, 0)])).is_err(), "{other:?}");
    }
}

/// Pickles that are small and mean much: nesting, repetition, a dict in itself.
#[test]
fn memory_is_bounded_by_the_length_of_a_pickle() {
    let said = |pickle: &[u8]| read(&archive(&[("x/data.pkl", pickle, 0)])).unwrap_err();
    let nested = [&b")"[..], &vec![0x85; 1 << 20], b"."].concat();
    assert!(said(&nested).starts_with("it holds no state dict"));
    let doubling = [&b")"[..], &b"q\x00h\x00h\x00\x87".repeat(1000), b"."].concat();
    assert!(said(&doubling).starts_with("it holds no state dict"));
    assert!(said(b"}q\x00X\x05\0\0\0modelh\x00s.").starts_with("it holds no state dict"));
    assert_eq!(said(&vec![b'N'; 5 << 20]), "its pickle has more than 4194304 instructions");
}
