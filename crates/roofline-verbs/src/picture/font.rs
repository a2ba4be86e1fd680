//! The font of the pictures: Inter, cut down to Latin, Greek and a few signs, without kerning, so that the width of a
//! text is the sum of the widths of its letters.

/// The font, for the outlines of a PNG and inside every SVG. Its licence (OFL 1.1) lies beside it.
pub(super) const TTF: &[u8] = include_bytes!("../../assets/Inter-Regular-subset.ttf");
pub(super) const FAMILY: &str = "Inter";

/// Advance widths of U+0020 to U+007E, in units of the font.
const ADVANCES: [u16; 95] = [
    576, 589, 954, 1297, 1314, 2011, 1319, 614, 747, 747, 1026, 1355, 590, 942, 590, 738, 1292, 833, 1249, 1265, 1323,
    1215, 1270, 1159, 1267, 1270, 590, 618, 1355, 1355, 1355, 1047, 1978, 1413, 1340, 1496, 1478, 1231, 1209, 1528,
    1522, 550, 1169, 1376, 1158, 1850, 1543, 1566, 1308, 1566, 1318, 1314, 1322, 1524, 1413, 2018, 1397, 1390, 1288,
    747, 738, 747, 965, 934, 661, 1150, 1254, 1170, 1254, 1194, 758, 1256, 1211, 496, 496, 1124, 496, 1794, 1210, 1228,
    1254, 1254, 771, 1081, 670, 1211, 1151, 1676, 1118, 1151, 1131, 873, 681, 873, 1355,
];
const UNITS_PER_EM: f64 = 2048.0;
/// About what the other letters of the font take, and what a letter of another font may take.
const OTHER: u16 = 1340;
const FOREIGN: u16 = 2048;

/// The width of `text` at a font size.
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(advance).sum::<f64>() * size
}

fn advance(letter: char) -> f64 {
    let ascii = (letter as usize).checked_sub(0x20).and_then(|at| ADVANCES.get(at)).copied();
    f64::from(ascii.unwrap_or(if letter < '\u{2000}' { OTHER } else { FOREIGN })) / UNITS_PER_EM
}

/// As much of `text` as fits, with an ellipsis where something is missing.
pub(super) fn fit(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut left = room - width("…", size);
    let kept = text.chars().take_while(|letter| {
        left -= advance(*letter) * size;
        left >= 0.0
    });
    kept.collect::<String>().trim_end().to_owned() + "…"
}

#[cfg(test)]
mod tests {
    use super::{super::outline::Outlines, *};

    #[test]
    fn widths_are_those_of_the_font() {
        let outlines = Outlines::embedded().unwrap();
        assert_eq!(outlines.per_em(), UNITS_PER_EM);
        for (at, expected) in ADVANCES.iter().enumerate() {
            let letter = char::from(0x20 + at as u8);
            assert_eq!(outlines.advance(outlines.glyph(letter)), f64::from(*expected), "{letter}");
        }
    }

    #[test]
    fn long_texts_end_in_an_ellipsis() {
        assert_eq!(fit("short", 12.0, 100.0), "short");
        let text = fit("a text that is much too long for its place", 12.0, 100.0);
        assert!(text.ends_with('…') && width(&text, 12.0) <= 100.0, "{text}");
        assert_eq!(fit("text", 12.0, 0.0), "…");
    }
}
