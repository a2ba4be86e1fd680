//! A picture in pixels.

use tiny_skia::{
    Color, FillRule, GradientStop, LineCap, LineJoin, LinearGradient, Paint, Path, PathBuilder, Pixmap, Point,
    SpreadMode, Stroke, StrokeDash, Transform,
};

use super::{
    canvas::{Rect, Spot, WIDTH},
    drawing::{Anchor, Drawing, Gradient, RIM, Shape, Text},
    outline::{Contour, Outlines},
};

/// Longest side in pixels: more would be a slip in the scale rather than a picture.
const LARGEST: f64 = 16_384.0;

/// How far from the corner of a quarter circle its control points are, in parts of the radius.
const CURVE: f32 = 0.447_715_2;

impl Drawing {
    /// The picture as PNG, `scale` pixels to its unit.
    ///
    /// Only the font that is embedded is used, so that the picture is the same on every machine.
    pub fn png(&self, scale: f64) -> Result<Vec<u8>, String> {
        self.pixels(scale)?.encode_png().map_err(|error| format!("the PNG cannot be written: {error}"))
    }

    fn pixels(&self, scale: f64) -> Result<Pixmap, String> {
        let (width, height) = ((WIDTH * scale).ceil(), (self.height * scale).ceil());
        let fits = |side: f64| (1.0..=LARGEST).contains(&side);
        let pixmap = if fits(width) && fits(height) { Pixmap::new(width as u32, height as u32) } else { None };
        let pixmap = pixmap.ok_or_else(|| format!("a PNG of {width} x {height} pixels cannot be made"))?;
        let mut raster = Raster { pixmap, scale: Transform::from_scale(scale as f32, scale as f32) };
        raster.pixmap.fill(color(self.background, 1.0));
        for shape in &self.shapes {
            raster.draw(shape);
        }
        Ok(raster.pixmap)
    }
}

struct Raster {
    pixmap: Pixmap,
    scale: Transform,
}

impl Raster {
    fn draw(&mut self, shape: &Shape) {
        match shape {
            Shape::Line { spots, color, width, stroke } => {
                let pen = Stroke {
                    width: *width as f32,
                    line_join: if stroke.round_joins { LineJoin::Round } else { LineJoin::Miter },
                    line_cap: if stroke.round_caps { LineCap::Round } else { LineCap::Butt },
                    dash: stroke.dashes.and_then(|dashes| StrokeDash::new(dashes.map(|part| part as f32).into(), 0.0)),
                    ..Stroke::default()
                };
                self.stroke(polygon(spots, false), color, stroke.opacity.unwrap_or(1.0), &pen);
            }
            Shape::Area { corners, gradient } => self.fill(polygon(corners, true), &tint(gradient)),
            Shape::Block { rect, rounding, color, opacity, .. } => {
                self.fill(block(rect, *rounding), &paint(color, opacity.unwrap_or(1.0)));
            }
            Shape::Mark { glyph, spot, radius, paint, .. } => {
                let (inside, rim, width) = paint.inside_and_rim();
                let path = match glyph.corners(*spot, *radius) {
                    Some(corners) => polygon(&corners, true),
                    None => PathBuilder::from_circle(spot.0 as f32, spot.1 as f32, *radius as f32),
                };
                self.fill(path.clone(), &plain(inside));
                let pen = Stroke { width: width as f32, line_join: LineJoin::Round, ..Stroke::default() };
                self.stroke(path, rim, 1.0, &pen);
            }
            Shape::Text(text) => {
                let path = letters(text);
                if let Some(rim) = text.rim {
                    let pen = Stroke { width: RIM as f32, line_join: LineJoin::Round, ..Stroke::default() };
                    self.stroke(path.clone(), rim, 1.0, &pen);
                }
                self.fill(path, &plain(text.color));
            }
        }
    }

    /// What has no inside, such as a bar of no width, is not seen.
    fn fill(&mut self, path: Option<Path>, paint: &Paint) {
        if let Some(path) = path {
            self.pixmap.fill_path(&path, paint, FillRule::Winding, self.scale, None);
        }
    }

    fn stroke(&mut self, path: Option<Path>, hex: &str, opacity: f64, pen: &Stroke) {
        if let Some(path) = path {
            self.pixmap.stroke_path(&path, &paint(hex, opacity), pen, self.scale, None);
        }
    }
}

/// `#rrggbb` with an opacity.
fn color(hex: &str, opacity: f64) -> Color {
    let channel = |at: usize| hex.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(0);
    Color::from_rgba8(channel(1), channel(3), channel(5), (opacity.clamp(0.0, 1.0) * 255.0).round() as u8)
}

fn plain(hex: &str) -> Paint<'static> {
    paint(hex, 1.0)
}

fn paint(hex: &str, opacity: f64) -> Paint<'static> {
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color(color(hex, opacity));
    paint
}

fn tint(gradient: &Gradient) -> Paint<'static> {
    let stops = gradient.stops.map(|(part, hex)| GradientStop::new(part as f32, color(hex, gradient.opacity)));
    let at = |x: f64| Point::from_xy(x as f32, 0.0);
    let (from, to) = gradient.across;
    let shader = LinearGradient::new(at(from), at(to), stops.into(), SpreadMode::Pad, Transform::identity());
    match shader {
        Some(shader) => Paint { shader, anti_alias: true, ..Paint::default() },
        // Without a way from one colour to the other there is nothing to be coloured.
        None => plain(gradient.stops[0].1),
    }
}

fn polygon(spots: &[Spot], closed: bool) -> Option<Path> {
    let mut path = PathBuilder::new();
    for (at, (x, y)) in spots.iter().enumerate() {
        let (x, y) = (*x as f32, *y as f32);
        if at == 0 { path.move_to(x, y) } else { path.line_to(x, y) }
    }
    if closed {
        path.close();
    }
    path.finish()
}

/// As in SVG, corners take no more than half of a side.
fn block(rect: &Rect, rounding: f64) -> Option<Path> {
    let (left, top, right, bottom) = (rect.x as f32, rect.y as f32, rect.right() as f32, rect.bottom() as f32);
    let [across, down] = [rect.width, rect.height].map(|side| rounding.min(side / 2.0) as f32);
    let (close, low) = (across * CURVE, down * CURVE);
    let mut path = PathBuilder::new();
    path.move_to(left + across, top);
    path.line_to(right - across, top);
    path.cubic_to(right - close, top, right, top + low, right, top + down);
    path.line_to(right, bottom - down);
    path.cubic_to(right, bottom - low, right - close, bottom, right - across, bottom);
    path.line_to(left + across, bottom);
    path.cubic_to(left + close, bottom, left, bottom - low, left, bottom - down);
    path.line_to(left, top + down);
    path.cubic_to(left, top + low, left + close, top, left + across, top);
    path.close();
    path.finish()
}

/// A text as one path, where it stands.
fn letters(text: &Text) -> Option<Path> {
    let font = Outlines::embedded()?;
    let glyphs: Vec<u16> = text.words.chars().map(|letter| font.glyph(letter)).collect();
    let width: f64 = glyphs.iter().map(|glyph| font.advance(*glyph)).sum();
    let mut pen = match text.anchor {
        Anchor::Start => 0.0,
        Anchor::Middle => -width / 2.0,
        Anchor::End => -width,
    };
    let mut path = PathBuilder::new();
    for glyph in glyphs {
        for contour in font.contours(glyph) {
            curve(&mut path, &contour, pen);
        }
        pen += font.advance(glyph);
    }
    // The font's y grows upwards.
    let size = (text.size / font.per_em()) as f32;
    let (x, y) = (text.spot.0 as f32, text.spot.1 as f32);
    let turned = Transform::from_rotate(text.angle.unwrap_or(0.0) as f32);
    path.finish()?.transform(Transform::from_scale(size, -size).post_concat(turned).post_translate(x, y))
}

/// A contour as quadratic curves: halfway between two control points the curve goes through.
fn curve(path: &mut PathBuilder, contour: &Contour, right: f64) {
    let count = contour.len();
    let halfway = |one: (f32, f32), other: (f32, f32)| (one.0.midpoint(other.0), one.1.midpoint(other.1));
    let spot = |at: usize| ((contour[at % count].x + right) as f32, contour[at % count].y as f32);
    let on = |at: usize| contour[at % count].on;
    if count < 2 {
        return;
    }
    let first = (0..count).find(|at| on(*at)).unwrap_or(0);
    let start = if on(first) { spot(first) } else { halfway(spot(first + count - 1), spot(first)) };
    path.move_to(start.0, start.1);
    let begin = if on(first) { first + 1 } else { first };
    for at in begin..first + count {
        let here = spot(at);
        if on(at) {
            // The end of the curve before it, or of a straight line.
            if at == begin || on(at - 1) {
                path.line_to(here.0, here.1);
            }
            continue;
        }
        let end = match at + 1 {
            next if next == first + count => start,
            next if on(next) => spot(next),
            next => halfway(here, spot(next)),
        };
        path.quad_to(here.0, here.1, end.0, end.1);
    }
    path.close();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::{Shares, Theme, drawing, samples};

    const INK: &str = "#000000";

    fn drawn(shapes: Vec<Shape>) -> Pixmap {
        Drawing { title: String::new(), height: 200.0, background: "#ffffff", shapes }.pixels(1.0).unwrap()
    }

    fn text(words: &str, anchor: Anchor, angle: Option<f64>) -> Shape {
        let words = words.to_owned();
        Shape::Text(Text { spot: (480.0, 100.0), size: 20.0, anchor, color: INK, rim: None, angle, words })
    }

    fn dark(pixels: &Pixmap, x: u32, y: u32) -> bool {
        pixels.pixel(x, y).unwrap().red() < 128
    }

    /// Left, top, right and bottom of what is dark.
    fn ink(pixels: &Pixmap) -> [u32; 4] {
        let all = (0..pixels.width()).flat_map(|x| (0..pixels.height()).map(move |y| (x, y)));
        let spots: Vec<(u32, u32)> = all.filter(|(x, y)| dark(pixels, *x, *y)).collect();
        let (xs, ys) = (spots.iter().map(|spot| spot.0), spots.iter().map(|spot| spot.1));
        [xs.clone().min().unwrap(), ys.clone().min().unwrap(), xs.max().unwrap(), ys.max().unwrap()]
    }

    #[test]
    fn a_png_has_its_signature_and_size() {
        let drawing = samples::shares().drawing(Theme::Light);
        let png = drawing.png(2.0).unwrap();
        assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
        let size = [16, 20].map(|at| u32::from_be_bytes(png[at..at + 4].try_into().unwrap()));
        assert_eq!(size, [1920, 2 * drawing.height as u32]);
    }

    #[test]
    fn a_png_that_cannot_be_made_says_so() {
        let drawing = Shares::default().drawing(Theme::Light);
        assert!([0.0, -1.0, 1e9, f64::NAN].into_iter().all(|scale| drawing.png(scale).is_err()));
    }

    #[test]
    fn texts_stand_at_their_anchor() {
        let [start, middle, end] =
            [Anchor::Start, Anchor::Middle, Anchor::End].map(|anchor| ink(&drawn(vec![text("HxxH", anchor, None)])));
        assert!((480..484).contains(&start[0]) && (476..480).contains(&end[2]), "{start:?} {end:?}");
        assert!((middle[0] + middle[2]).abs_diff(960) <= 2, "{middle:?}");
        // On the line, as high as capitals of this size are.
        assert!(start[3] == 99 && (84..=87).contains(&start[1]), "{start:?}");
    }

    #[test]
    fn a_turned_text_goes_up() {
        let [left, top, right, bottom] = ink(&drawn(vec![text("HxxxxH", Anchor::Start, Some(-90.0))]));
        assert!(bottom < 100 && bottom - top > 40 && right - left < 20 && right < 480, "{left} {top} {right} {bottom}");
    }

    #[test]
    fn letters_have_their_holes() {
        let pixels = drawn(vec![text("O", Anchor::Middle, None)]);
        let [left, top, right, bottom] = ink(&pixels);
        let (x, y) = (left.midpoint(right), top.midpoint(bottom));
        assert!(!dark(&pixels, x, y) && dark(&pixels, left + 1, y) && dark(&pixels, x, top + 1));
    }

    #[test]
    fn a_rim_keeps_lines_away_from_a_text() {
        let line = || Shape::Line {
            spots: vec![(400.0, 93.0), (560.0, 93.0)],
            color: INK,
            width: 2.0,
            stroke: drawing::Stroke::default(),
        };
        let written = |rim| {
            let Shape::Text(text) = text("l", Anchor::Middle, None) else { unreachable!() };
            drawn(vec![line(), Shape::Text(Text { rim, ..text })])
        };
        assert!(dark(&written(None), 477, 93) && !dark(&written(Some("#ffffff")), 477, 93));
        assert!(dark(&written(Some("#ffffff")), 470, 93) && dark(&written(Some("#ffffff")), 480, 90));
    }

    #[test]
    fn dashes_and_opacity_are_drawn() {
        let stroke = drawing::Stroke { opacity: Some(0.5), dashes: Some([10.0, 10.0]), ..drawing::Stroke::default() };
        let spots = vec![(100.0, 50.0), (200.0, 50.0)];
        let pixels = drawn(vec![Shape::Line { spots, color: INK, width: 4.0, stroke }]);
        let red = |x| pixels.pixel(x, 50).unwrap().red();
        assert!((126..=129).contains(&red(105)) && red(115) == 255, "{} {}", red(105), red(115));
    }

    #[test]
    fn a_block_may_be_faint_or_narrower_than_its_corners() {
        let block = |x, width, opacity| {
            let rect = Rect { x, y: 50.0, width, height: 15.0 };
            Shape::Block { rect, rounding: 2.0, color: INK, opacity, tooltip: String::new() }
        };
        let pixels = drawn(vec![block(100.0, 1.0, None), block(200.0, 40.0, Some(0.3))]);
        let red = |x| pixels.pixel(x, 57).unwrap().red();
        assert_eq!([99, 100, 101].map(red), [255, 0, 255]);
        assert!((177..=180).contains(&red(220)), "{}", red(220));
    }
}
