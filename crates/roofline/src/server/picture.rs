//! `POST /api/plot`: a picture as SVG.

use axum::{extract::State, response::Response};
use roofline_verbs::plot;

use super::{
    answers::{read, typed},
    extract::Fields,
    refusal::Refusal,
    state::Shared,
};

pub(super) async fn plot(State(state): State<Shared>, Fields(body): Fields) -> Result<Response, Refusal> {
    let (request, context): (plot::Request, _) = (read(body)?, state.context());
    let svg = state.aside(move || Ok(plot::picture(&context, &request)?.svg(request.theme))).await?;
    Ok(typed("image/svg+xml", svg))
}
