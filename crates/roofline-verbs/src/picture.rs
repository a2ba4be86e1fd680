//! Pictures of results: rooflines, lines, bars and stacked bars, as SVG, as PNG and as characters in a terminal.
//!
//! A picture is plain data and computes nothing but where its lines meet. Labels may come from model files, so whatever
//! they hold is escaped, and a value that cannot be drawn (not finite, or not positive on a logarithmic axis) is left out.

mod analysis;
mod axis;
mod canvas;
mod cells;
mod drawing;
mod file;
mod font;
mod labels;
mod legend;
mod lines;
mod outline;
mod panels;
mod pareto;
mod raster;
mod roofline;
mod roofs;
mod shares;
mod theme;
mod times;

pub use analysis::{Analysis, Pass, PassKind};
pub use drawing::Drawing;
pub use file::write;
pub use lines::{Lines, Series};
pub use panels::{PanelRun, Panels};
pub use pareto::{Pareto, Spotted};
pub use roofline::{Ceiling, Class, Memory, Point, Roofline};
pub use roofs::{ceilings, shown};
pub use shares::{Bar, Shares};
pub use theme::Theme;
pub use times::{Group, Time, Times};

/// Any picture.
pub enum Picture {
    Roofline(Roofline),
    Lines(Lines),
    Shares(Shares),
    Pareto(Pareto),
    Times(Times),
}

impl Picture {
    /// For a background, to be written as SVG or PNG.
    pub fn drawing(&self, theme: Theme) -> Drawing {
        match self {
            Self::Roofline(picture) => picture.drawing(theme),
            Self::Lines(picture) => picture.drawing(theme),
            Self::Shares(picture) => picture.drawing(theme),
            Self::Pareto(picture) => picture.drawing(theme),
            Self::Times(picture) => picture.drawing(theme),
        }
    }

    pub fn svg(&self, theme: Theme) -> String {
        self.drawing(theme).svg()
    }

    /// In characters; colour is taken out again where nobody wants it.
    pub fn terminal(&self, width: usize, height: usize, color: bool) -> String {
        match self {
            Self::Roofline(picture) => picture.terminal(width, height, color),
            Self::Lines(picture) => picture.terminal(width, height, color),
            Self::Shares(picture) => picture.terminal(width, height, color),
            Self::Pareto(picture) => picture.terminal(width, height, color),
            Self::Times(picture) => picture.terminal(width, color),
        }
    }
}

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
