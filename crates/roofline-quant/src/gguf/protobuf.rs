//! The few fields of SentencePiece's protobuf that a vocabulary needs: `repeated message 1 { 1: piece, 2: score,
//! 3: type }`. Everything else is stepped over.

/// One entry of the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    /// SentencePiece's number: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub(super) kind: u64,
}

/// A field's content.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Four bytes.
    Fixed([u8; 4]),
    /// Eight bytes, of which nothing is needed.
    Long,
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The next field and its number.
fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let tag = varint(bytes)?;
    let mut take = |length: usize| {
        let (taken, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        Some(taken)
    };
    let field = match tag & 7 {
        0 => Field::Number(varint(bytes)?),
        1 => take(8).map(|_| Field::Long)?,
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            let (taken, rest) = bytes.split_at_checked(length)?;
            *bytes = rest;
            Field::Bytes(taken)
        }
        5 => Field::Fixed(take(4)?.try_into().ok()?),
        _ => return None,
    };
    Some((tag >> 3, field))
}

/// The vocabulary of a model.
pub(super) fn pieces(mut model: &[u8]) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    while !model.is_empty() {
        let (number, content) = field(&mut model).ok_or_else(|| "it is no protobuf".to_owned())?;
        if let (1, Field::Bytes(bytes)) = (number, content) {
            pieces.push(piece(bytes).ok_or_else(|| format!("its piece {} is no piece", pieces.len()))?);
        }
    }
    if pieces.is_empty() { Err("it has no pieces".to_owned()) } else { Ok(pieces) }
}

fn piece(mut bytes: &[u8]) -> Option<Piece> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: 1 };
    while !bytes.is_empty() {
        match field(&mut bytes)? {
            (1, Field::Bytes(text)) => piece.text = String::from_utf8(text.to_vec()).ok()?,
            (2, Field::Fixed(score)) => piece.score = f32::from_le_bytes(score),
            (3, Field::Number(kind)) => piece.kind = kind,
            _ => {}
        }
    }
    Some(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pieces, between them a field of the trainer's.
    const MODEL: &[u8] =
        b"\x0a\x0e\x0a\x05<unk>\x15\0\0\0\0\x18\x02\x12\x03\x08\x96\x01\x0a\x09\x0a\x02ab\x15\0\0\x80\xbf";

    #[test]
    fn pieces_are_found_between_other_fields() {
        let expected = [
            Piece { text: "<unk>".to_owned(), score: 0.0, kind: 2 },
            Piece { text: "ab".to_owned(), score: -1.0, kind: 1 },
        ];
        assert_eq!(pieces(MODEL).unwrap(), expected);
    }

    #[test]
    fn a_model_cut_short_or_changed_never_panics() {
        for length in 0..MODEL.len() {
            let _ = pieces(&MODEL[..length]);
            for byte in [0, 0x7f, 0xff] {
                let mut changed = MODEL.to_vec();
                changed[length] = byte;
                let _ = pieces(&changed);
            }
        }
        assert!(pieces(&MODEL[..10]).is_err());
        assert!(pieces(b"").is_err());
    }
}
