//! A picture as a list of shapes, and the list as SVG.
//!
//! Shapes are data rather than text because they are drawn twice: as SVG, where texts stay texts that can be selected,
//! and as pixels by [`super::raster`]. A picture uses a handful of shapes. A renderer of any SVG would do as well, and
//! brings the parsers of XML, CSS and fonts with it, which took longer to compile than the rest of the pictures together.

use base64::{Engine, prelude::BASE64_STANDARD};

use super::{
    canvas::{Rect, Spot, WIDTH},
    cells::is_direction,
    font,
    legend::{Glyph, Paint},
};

/// A picture, ready to be written.
pub struct Drawing {
    pub(super) title: String,
    /// In units of the SVG; the width is the same for all.
    pub(super) height: f64,
    pub(super) background: &'static str,
    pub(super) shapes: Vec<Shape>,
}

/// Something drawn; later ones cover earlier ones. Colours are `#rrggbb`.
pub(super) enum Shape {
    /// A line through spots.
    Line {
        spots: Vec<Spot>,
        color: &'static str,
        width: f64,
        stroke: Stroke,
    },
    /// The inside of a polygon, coloured from left to right.
    Area {
        corners: Vec<Spot>,
        gradient: Gradient,
    },
    /// A rectangle, and what it says when pointed at.
    Block {
        rect: Rect,
        rounding: f64,
        color: &'static str,
        /// From 0 to 1, where it is not opaque.
        opacity: Option<f64>,
        tooltip: String,
    },
    /// A point, and what it says when pointed at.
    Mark {
        glyph: Glyph,
        spot: Spot,
        radius: f64,
        paint: Paint,
        tooltip: String,
    },
    Text(Text),
}

/// How a line is drawn, where not plainly.
#[derive(Clone, Copy, Default)]
pub(super) struct Stroke {
    /// From 0 to 1, where it is not opaque.
    pub(super) opacity: Option<f64>,
    /// Lengths of a dash and of the gap behind it.
    pub(super) dashes: Option<[f64; 2]>,
    pub(super) round_joins: bool,
    pub(super) round_caps: bool,
}

/// Two colours, each alone on its side, mixed between two places.
pub(super) struct Gradient {
    /// From where to where it goes.
    pub(super) across: (f64, f64),
    /// Colours, and up to where or from where they are alone, in parts of the way.
    pub(super) stops: [(f64, &'static str); 2],
    pub(super) opacity: f64,
}

/// A line of text.
pub(super) struct Text {
    pub(super) spot: Spot,
    pub(super) size: f64,
    pub(super) anchor: Anchor,
    pub(super) color: &'static str,
    /// A rim of this colour, so that lines behind it do not disturb.
    pub(super) rim: Option<&'static str>,
    /// Degrees that it is turned around its spot.
    pub(super) angle: Option<f64>,
    pub(super) words: String,
}

/// Which part of a text stands at its spot.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How wide the rim of a text is, both sides together.
pub(super) const RIM: f64 = 3.0;

impl Drawing {
    /// The picture as SVG, with the font inside.
    pub fn svg(&self) -> String {
        let (family, data) = (font::FAMILY, BASE64_STANDARD.encode(font::TTF));
        let body: String = self.shapes.iter().map(|shape| shape.svg() + "\n").collect();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\" font-family=\"{family}, sans-serif\">\n\
             <style>@font-face{{font-family:{family};src:url(data:font/ttf;base64,{data})}}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"{}\"/>\n{body}</svg>\n",
            escape(&self.title),
            self.background,
            height = self.height,
        )
    }
}

impl Shape {
    fn svg(&self) -> String {
        match self {
            Self::Line { spots, color, width, stroke } => {
                let (data, style) = (path(spots), stroke.svg());
                format!("<path d=\"{data}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"{style}/>")
            }
            Self::Area { corners, gradient } => {
                format!("{}\n<path d=\"{}Z\" fill=\"url(#sides)\"/>", gradient.svg(), path(corners))
            }
            Self::Block { rect, rounding, color, opacity, tooltip } => {
                let [x, y, width, height] = [rect.x, rect.y, rect.width, rect.height].map(px);
                let rounding = if *rounding > 0.0 { format!(" rx=\"{rounding}\"") } else { String::new() };
                let opacity = opacity.map(|opacity| format!(" fill-opacity=\"{opacity}\"")).unwrap_or_default();
                let start = format!(
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"{rounding} fill=\"{color}\"{opacity}"
                );
                if tooltip.is_empty() { start + "/>" } else { format!("{start}>{}</rect>", title(tooltip)) }
            }
            Self::Mark { glyph, spot, radius, paint, tooltip } => {
                let (fill, stroke, width) = paint.inside_and_rim();
                let style = format!("fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"{width}\"");
                let title = title(tooltip);
                if let Some(corners) = glyph.corners(*spot, *radius) {
                    format!("<path d=\"{}Z\" {style} stroke-linejoin=\"round\">{title}</path>", path(&corners))
                } else {
                    let [x, y, radius] = [spot.0, spot.1, *radius].map(px);
                    format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" {style}>{title}</circle>")
                }
            }
            Self::Text(text) => text.svg(),
        }
    }
}

impl Stroke {
    fn svg(&self) -> String {
        let mut style = String::new();
        if let Some(opacity) = self.opacity {
            style += &format!(" stroke-opacity=\"{opacity}\"");
        }
        if let Some([dash, gap]) = self.dashes {
            style += &format!(" stroke-dasharray=\"{dash} {gap}\"");
        }
        if self.round_joins {
            style += " stroke-linejoin=\"round\"";
        }
        if self.round_caps {
            style += " stroke-linecap=\"round\"";
        }
        style
    }
}

impl Gradient {
    fn svg(&self) -> String {
        let stop = |(part, color): (f64, &str)| {
            let (offset, opacity) = (px(part * 100.0), self.opacity);
            format!("<stop offset=\"{offset}%\" stop-color=\"{color}\" stop-opacity=\"{opacity}\"/>")
        };
        format!(
            "<defs><linearGradient id=\"sides\" gradientUnits=\"userSpaceOnUse\" x1=\"{}\" y1=\"0\" x2=\"{}\" y2=\"0\">\
             {}</linearGradient></defs>",
            px(self.across.0),
            px(self.across.1),
            self.stops.map(stop).concat()
        )
    }
}

impl Text {
    fn svg(&self) -> String {
        let (x, y) = (px(self.spot.0), px(self.spot.1));
        let anchor = match self.anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let mut style = String::new();
        if let Some(color) = self.rim {
            style +=
                &format!(" stroke=\"{color}\" stroke-width=\"{RIM}\" stroke-linejoin=\"round\" paint-order=\"stroke\"");
        }
        if let Some(angle) = self.angle {
            style += &format!(" transform=\"rotate({} {x} {y})\"", px(angle));
        }
        let (size, color, text) = (self.size, self.color, escape(&self.words));
        format!("<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{color}\"{anchor}{style}>{text}</text>")
    }
}

/// A path through spots.
fn path(spots: &[Spot]) -> String {
    let mut data = String::new();
    for (at, (x, y)) in spots.iter().enumerate() {
        data += &format!("{}{} {}", if at == 0 { "M" } else { "L" }, px(*x), px(*y));
    }
    data
}

fn title(tooltip: &str) -> String {
    if tooltip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tooltip)) }
}

/// A coordinate with a hundredth of a unit, without idle digits.
fn px(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// `text` for XML, in which most control characters may not even be written as references.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '&' => out += "&amp;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            '\n' => out.push('\n'),
            '\u{fffe}' | '\u{ffff}' => out.push(char::REPLACEMENT_CHARACTER),
            letter if letter.is_control() || is_direction(letter) => out.push(char::REPLACEMENT_CHARACTER),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_stays_text() {
        assert_eq!(escape("<a href='x'>&\"\u{1b}[31m\u{0}\u{ffff}"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;�[31m��");
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!([1.0, 0.126, -0.001, 1234.5].map(px), ["1", "0.13", "0", "1234.5"]);
    }
}
