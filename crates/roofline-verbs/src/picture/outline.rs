//! The letters of the embedded font as outlines, for pictures in pixels.
//!
//! The font is one that we ship, TrueType without variations, hints or kerning, so that six tables of it are enough:
//! which glyph a letter has (`cmap`), how far it goes (`hmtx`), where its outline is (`loca`) and the outline (`glyf`).
//! Layout of any text in any font would take a shaping engine, and there is none for a title in Latin letters.
//! After Apple, "TrueType Reference Manual".

use std::sync::LazyLock;

use super::font;

/// A font, its tables found.
pub(super) struct Outlines {
    data: &'static [u8],
    /// Where the tables start.
    cmap: usize,
    hmtx: usize,
    loca: usize,
    glyf: usize,
    /// Whether places in `glyf` are written with 32 bits.
    long: bool,
    /// Glyphs that have an advance of their own; those behind share the last.
    advances: u16,
    per_em: f64,
}

/// A closed curve: points on it, and control points between them.
pub(super) type Contour = Vec<Point>;

/// In units of the font; y grows upwards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    /// Whether the curve goes through it, rather than being drawn towards it.
    pub(super) on: bool,
}

/// What is drawn for a letter that the font does not have.
const MISSING: u16 = 0;
/// Glyphs may consist of others; in a font without defects not this deeply.
const DEEPEST: u32 = 4;

impl Outlines {
    /// Those of the embedded font; none only if it were broken, which a test excludes.
    pub(super) fn embedded() -> Option<&'static Self> {
        static EMBEDDED: LazyLock<Option<Outlines>> = LazyLock::new(|| Outlines::read(font::TTF));
        EMBEDDED.as_ref()
    }

    fn read(data: &'static [u8]) -> Option<Self> {
        let count = usize::from(short(data, 4)?);
        let table = |name: &[u8; 4]| {
            let entry = (0..count).map(|at| 12 + 16 * at).find(|at| data.get(*at..at + 4) == Some(name))?;
            Some(long(data, entry + 8)? as usize)
        };
        let (head, hhea, cmap) = (table(b"head")?, table(b"hhea")?, table(b"cmap")?);
        // The letters of Unicode's first plane, in segments.
        let encodings = usize::from(short(data, cmap + 2)?);
        let places = (0..encodings).filter_map(|at| Some(cmap + long(data, cmap + 8 + 8 * at)? as usize));
        Some(Self {
            data,
            cmap: places.into_iter().find(|at| short(data, *at) == Some(4))?,
            hmtx: table(b"hmtx")?,
            loca: table(b"loca")?,
            glyf: table(b"glyf")?,
            long: short(data, head + 50)? != 0,
            advances: short(data, hhea + 34)?,
            per_em: f64::from(short(data, head + 18)?),
        })
    }

    /// Units of the font to its size.
    pub(super) fn per_em(&self) -> f64 {
        self.per_em
    }

    /// The glyph of a letter.
    pub(super) fn glyph(&self, letter: char) -> u16 {
        u16::try_from(u32::from(letter)).ok().and_then(|code| self.find(code)).unwrap_or(MISSING)
    }

    fn find(&self, code: u16) -> Option<u16> {
        let at = |place: usize| short(self.data, self.cmap + place);
        let doubled = usize::from(at(6)?);
        let (ends, starts, deltas, offsets) = (14, 16 + doubled, 16 + 2 * doubled, 16 + 3 * doubled);
        let segment = (0..doubled).step_by(2).find(|segment| at(ends + segment).is_some_and(|end| end >= code))?;
        let start = at(starts + segment)?;
        if start > code {
            return None;
        }
        let (delta, offset) = (at(deltas + segment)?, usize::from(at(offsets + segment)?));
        if offset == 0 {
            return Some(code.wrapping_add(delta));
        }
        match at(offsets + segment + offset + 2 * usize::from(code - start))? {
            MISSING => None,
            glyph => Some(glyph.wrapping_add(delta)),
        }
    }

    /// How far the next letter is, in units of the font.
    pub(super) fn advance(&self, glyph: u16) -> f64 {
        let own = usize::from(glyph.min(self.advances.saturating_sub(1)));
        short(self.data, self.hmtx + 4 * own).map_or(0.0, f64::from)
    }

    /// The curves of a glyph; a space has none.
    pub(super) fn contours(&self, glyph: u16) -> Vec<Contour> {
        let outline = self.outline(glyph, 0).unwrap_or_default();
        if glyph == MISSING && outline.is_empty() { self.frame() } else { outline }
    }

    /// An empty frame: the font was cut down, and what stands for a missing letter was cut with it.
    fn frame(&self) -> Vec<Contour> {
        let (width, height) = (self.advance(MISSING), 0.7 * self.per_em);
        let (edge, line) = (0.1 * width, 0.05 * self.per_em);
        let corner = |x: f64, y: f64| Point { x, y, on: true };
        let rectangle = |by: f64| {
            let (left, right, low, high) = (edge + by, width - edge - by, by, height - by);
            vec![corner(left, low), corner(left, high), corner(right, high), corner(right, low)]
        };
        // The inner one goes the other way round, which makes it a hole.
        vec![rectangle(0.0), rectangle(line).into_iter().rev().collect()]
    }

    fn outline(&self, glyph: u16, depth: u32) -> Option<Vec<Contour>> {
        let place = |glyph: usize| {
            let short = short(self.data, self.loca + 2 * glyph).map(|halves| 2 * usize::from(halves));
            if self.long { long(self.data, self.loca + 4 * glyph).map(|place| place as usize) } else { short }
        };
        let (start, end) = (place(glyph.into())?, place(usize::from(glyph) + 1)?);
        if start == end || depth > DEEPEST {
            return Some(Vec::new());
        }
        let outline = self.data.get(self.glyf + start..self.glyf + end)?;
        match signed(outline, 0)? {
            count @ 0.. => simple(outline, count as usize),
            _ => self.composed(outline, depth),
        }
    }

    /// A letter with its accent: glyphs, each moved and perhaps scaled.
    fn composed(&self, outline: &[u8], depth: u32) -> Option<Vec<Contour>> {
        const WORDS: u16 = 1;
        const ONE_SCALE: u16 = 8;
        const MORE: u16 = 32;
        const TWO_SCALES: u16 = 64;
        const MATRIX: u16 = 128;
        let mut all = Vec::new();
        let mut at = 10;
        loop {
            let (flags, part) = (short(outline, at)?, short(outline, at + 2)?);
            at += 4;
            let (right, up) = if flags & WORDS != 0 {
                at += 4;
                (f64::from(signed(outline, at - 4)?), f64::from(signed(outline, at - 2)?))
            } else {
                at += 2;
                let byte = |at: usize| outline.get(at).map(|byte| f64::from(byte.cast_signed()));
                (byte(at - 2)?, byte(at - 1)?)
            };
            let mut factor = || {
                at += 2;
                signed(outline, at - 2).map(|factor| f64::from(factor) / 16_384.0)
            };
            let [xx, xy, yx, yy] = match flags {
                flags if flags & ONE_SCALE != 0 => {
                    let both = factor()?;
                    [both, 0.0, 0.0, both]
                }
                flags if flags & TWO_SCALES != 0 => [factor()?, 0.0, 0.0, factor()?],
                flags if flags & MATRIX != 0 => [factor()?, factor()?, factor()?, factor()?],
                _ => [1.0, 0.0, 0.0, 1.0],
            };
            for contour in self.outline(part, depth + 1)? {
                let moved = |point: Point| Point {
                    x: point.x * xx + point.y * yx + right,
                    y: point.x * xy + point.y * yy + up,
                    on: point.on,
                };
                all.push(contour.into_iter().map(moved).collect());
            }
            if flags & MORE == 0 {
                return Some(all);
            }
        }
    }
}

/// An outline of its own: ends of the contours, instructions, then flags, then all x, then all y as differences.
fn simple(outline: &[u8], count: usize) -> Option<Vec<Contour>> {
    const ON: u8 = 1;
    const SHORT_X: u8 = 2;
    const SHORT_Y: u8 = 4;
    const REPEAT: u8 = 8;
    const SAME_X: u8 = 16;
    const SAME_Y: u8 = 32;
    let ends: Vec<usize> =
        (0..count).map(|at| short(outline, 10 + 2 * at).map(usize::from)).collect::<Option<Vec<usize>>>()?;
    let points = ends.last().map_or(0, |last| last + 1);
    let instructions = 10 + 2 * count;
    let mut at = instructions + 2 + usize::from(short(outline, instructions)?);
    let mut flags = Vec::with_capacity(points);
    while flags.len() < points {
        let flag = *outline.get(at)?;
        let again = if flag & REPEAT != 0 { usize::from(*outline.get(at + 1)?) } else { 0 };
        at += if flag & REPEAT != 0 { 2 } else { 1 };
        flags.extend(std::iter::repeat_n(flag, (again + 1).min(points - flags.len())));
    }
    let mut coordinates = |is_short: u8, is_same: u8| -> Option<Vec<f64>> {
        let mut value = 0.0;
        let next = |flag: &u8| {
            let same = flag & is_same != 0;
            if flag & is_short != 0 {
                // Where it is short the other flag is its sign.
                value += f64::from(*outline.get(at)?) * if same { 1.0 } else { -1.0 };
                at += 1;
            } else if !same {
                value += f64::from(signed(outline, at)?);
                at += 2;
            }
            Some(value)
        };
        flags.iter().map(next).collect()
    };
    let (x, y) = (coordinates(SHORT_X, SAME_X)?, coordinates(SHORT_Y, SAME_Y)?);
    let mut start = 0;
    let contour = |end: usize| {
        let range = start..end + 1;
        start = end + 1;
        range.map(|at| Point { x: x[at], y: y[at], on: flags[at] & ON != 0 }).collect()
    };
    ends.is_sorted().then(|| ends.iter().copied().map(contour).collect())
}

fn short(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(data.get(at..at + 2)?.try_into().ok()?))
}

fn signed(data: &[u8], at: usize) -> Option<i16> {
    short(data, at).map(u16::cast_signed)
}

fn long(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Left, bottom, right and top of a letter's points.
    fn extent(letter: char) -> [f64; 4] {
        let outlines = Outlines::embedded().unwrap();
        let points: Vec<Point> = outlines.contours(outlines.glyph(letter)).concat();
        let fold = |of: fn(&Point) -> f64, by: fn(f64, f64) -> f64| points.iter().map(of).reduce(by).unwrap();
        [fold(|p| p.x, f64::min), fold(|p| p.y, f64::min), fold(|p| p.x, f64::max), fold(|p| p.y, f64::max)]
    }

    #[test]
    fn every_letter_of_a_picture_has_an_outline() {
        let outlines = Outlines::embedded().unwrap();
        for letter in ('!'..='~').chain("µ×·–—…≈≤≥←→äöüéΔσ°²³".chars()) {
            let glyph = outlines.glyph(letter);
            assert!(glyph != MISSING && !outlines.contours(glyph).is_empty(), "{letter}");
        }
        assert!(outlines.contours(outlines.glyph(' ')).is_empty() && outlines.advance(outlines.glyph(' ')) > 0.0);
        assert_eq!(outlines.glyph('漢'), MISSING);
        assert!(!outlines.contours(MISSING).is_empty(), "a letter that is not there is seen");
        assert!(outlines.advance(MISSING) > 400.0, "{}", outlines.advance(MISSING));
    }

    #[test]
    fn letters_stand_where_letters_stand() {
        let [left, bottom, right, top] = extent('H');
        let advance = |letter| Outlines::embedded().unwrap().advance(Outlines::embedded().unwrap().glyph(letter));
        assert!(bottom == 0.0 && left > 0.0 && right < advance('H'), "{left} {bottom} {right} {top}");
        assert!((left - (advance('H') - right)).abs() < 2.0, "an H is as far from both neighbours");
        let [.., small] = extent('x');
        assert!(small < 0.8 * top && extent('p')[1] < 0.0 && extent('d')[3] > small);
        // The accent stands above its letter, and the letter is the letter.
        let (plain, accented) = (extent('o'), extent('ö'));
        assert!(accented[3] > plain[3] + 100.0 && accented[1] == plain[1], "{plain:?} {accented:?}");
    }

    #[test]
    fn contours_are_what_a_letter_has() {
        let outlines = Outlines::embedded().unwrap();
        let count = |letter| outlines.contours(outlines.glyph(letter)).len();
        assert_eq!(['l', 'o', 'i', 'B', '8', '%', '='].map(count), [1, 2, 2, 3, 3, 5, 2]);
    }

    #[test]
    fn a_broken_font_is_no_font() {
        for length in [0, 4, 12, 100, 1000] {
            assert!(Outlines::read(&font::TTF[..length]).is_none_or(|cut| cut.contours(40).is_empty()), "{length}");
        }
    }
}
