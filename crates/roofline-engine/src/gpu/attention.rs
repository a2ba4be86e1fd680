//! Queries over the cache.

use roofline_core::program::{Step, Weight};
use roofline_run::cuda::model::Attending;

use super::pass::Steps;
use crate::Result;

impl Steps<'_, '_> {
    pub(super) fn attention(&mut self, layer: Option<usize>, step: &Step) -> Result<()> {
        let (at, shape) = self.grouped(layer)?;
        let sinks = match step.weights {
            [Weight::Sinks] => Some(self.vector(layer, step.weights, 0)?),
            _ => None,
        };
        let turn = self.waiting.turn.take();
        let session = &*self.session;
        let arithmetic = &session.model.arithmetic;
        let scale =
            arithmetic.attention_scale.map_or_else(|| (shape.width as f32).sqrt().recip(), |scale| scale as f32);
        let pass = self.pass.shape;
        let of = Attending {
            sequences: pass.sequences,
            first: pass.first,
            new: pass.new,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            width: shape.width,
            window: shape.window,
            scale,
            cap: arithmetic.score_cap.map(|cap| cap as f32),
            sinks,
            queries: session.room.query.address(),
            starts: session.room.starts(),
            longest: session.context(),
            cache: session.caches[at].cached(),
            turn,
            out: session.room.mixed.address(),
        };
        // Layers of one shape have caches alike.
        let order = &session.model.anatomy.order;
        let alike = order.iter().zip(&session.caches).filter(|(shape, _)| **shape == order[at]);
        let caches: Vec<_> = alike.map(|(_, cache)| cache.cached()).collect();
        Ok(self.session.attentions.run(&of, &caches)?)
    }
}
