//! Pictures of results: rooflines, lines, bars and stacked bars, as SVG, as PNG and as characters in a terminal.
//!
//! A picture is plain data and computes nothing but where its lines meet. Labels may come from model files, so whatever
//! they hold is escaped, and a value that cannot be drawn (not finite, or not positive on a logarithmic axis) is left out.

mod axis;
mod canvas;
mod cells;
mod font;
mod front;
mod labels;
mod legend;
mod lines;
mod roofline;
mod shares;
mod theme;
mod times;

pub(crate) use front::{Front, Spotted};
pub(crate) use lines::{Lines, Series};
pub(crate) use roofline::{Ceiling, Class, Memory, Point, Roofline};
pub(crate) use shares::{Bar, Shares};
pub(crate) use theme::Theme;
pub(crate) use times::{Group, Time, Times};

use std::sync::Arc;

use resvg::{
    tiny_skia::{Pixmap, Transform},
    usvg::{Options, Tree, fontdb},
};

/// Any picture.
pub(crate) enum Picture {
    Roofline(Roofline),
    Lines(Lines),
    Shares(Shares),
    Front(Front),
    Times(Times),
}

impl Picture {
    pub(crate) fn svg(&self, theme: Theme) -> String {
        match self {
            Self::Roofline(picture) => picture.svg(theme),
            Self::Lines(picture) => picture.svg(theme),
            Self::Shares(picture) => picture.svg(theme),
            Self::Front(picture) => picture.svg(theme),
            Self::Times(picture) => picture.svg(theme),
        }
    }

    /// In characters; colour is taken out again where nobody wants it.
    pub(crate) fn terminal(&self, width: usize, height: usize, color: bool) -> String {
        match self {
            Self::Roofline(picture) => picture.terminal(width, height, color),
            Self::Lines(picture) => picture.terminal(width, height, color),
            Self::Shares(picture) => picture.terminal(width, height, color),
            Self::Front(picture) => picture.terminal(width, height, color),
            Self::Times(picture) => picture.terminal(width, color),
        }
    }
}

/// Longest side of a PNG in pixels: more would be a slip in the scale rather than a picture.
const LARGEST: f32 = 16_384.0;

/// An SVG of this module as PNG, `scale` pixels to its unit.
///
/// Only the font that is embedded is used, so that the picture is the same on every machine.
pub(crate) fn png(svg: &str, scale: f32) -> Result<Vec<u8>, String> {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(font::TTF.to_vec());
    let options = Options { fontdb: Arc::new(fonts), font_family: font::FAMILY.to_owned(), ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(|error| format!("the SVG cannot be drawn: {error}"))?;
    let (width, height) = ((tree.size().width() * scale).ceil(), (tree.size().height() * scale).ceil());
    let fits = |side: f32| (1.0..=LARGEST).contains(&side);
    let pixmap = if fits(width) && fits(height) { Pixmap::new(width as u32, height as u32) } else { None };
    let mut pixmap = pixmap.ok_or_else(|| format!("a PNG of {width} x {height} pixels cannot be made"))?;
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixmap.as_mut());
    pixmap.encode_png().map_err(|error| format!("the PNG cannot be written: {error}"))
}

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
