//! Pictures of results: rooflines, lines, bars and stacked bars, as SVG, as PNG and as characters in a terminal.
//!
//! A picture is plain data and computes nothing but where its lines meet. Labels may come from model files, so whatever
//! they hold is escaped, and a value that cannot be drawn (not finite, or not positive on a logarithmic axis) is left out.

mod axis;
mod canvas;
mod cells;
mod drawing;
mod font;
mod front;
mod labels;
mod legend;
mod lines;
mod outline;
mod raster;
mod roofline;
mod shares;
mod theme;
mod times;

pub(crate) use drawing::Drawing;
pub(crate) use front::{Front, Spotted};
pub(crate) use lines::{Lines, Series};
pub(crate) use roofline::{Ceiling, Class, Memory, Point, Roofline};
pub(crate) use shares::{Bar, Shares};
pub(crate) use theme::Theme;
pub(crate) use times::{Group, Time, Times};

/// Any picture.
pub(crate) enum Picture {
    Roofline(Roofline),
    Lines(Lines),
    Shares(Shares),
    Front(Front),
    Times(Times),
}

impl Picture {
    /// For a background, to be written as SVG or PNG.
    pub(crate) fn drawing(&self, theme: Theme) -> Drawing {
        match self {
            Self::Roofline(picture) => picture.drawing(theme),
            Self::Lines(picture) => picture.drawing(theme),
            Self::Shares(picture) => picture.drawing(theme),
            Self::Front(picture) => picture.drawing(theme),
            Self::Times(picture) => picture.drawing(theme),
        }
    }

    pub(crate) fn svg(&self, theme: Theme) -> String {
        self.drawing(theme).svg()
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

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
