//! `roofline predict`.

mod model;
mod operator;

use roofline_verbs::{
    Context,
    predict::{Answer, Request, predict},
};

use crate::{
    failure::Failure,
    report::{Format, Shown, emit},
};

pub(crate) fn run(context: &Context, request: &Request, form: Format) -> Result<(), Failure> {
    match predict(context, request)? {
        Answer::Operator(told) => emit(&Shown::all(&*told), form),
        Answer::Model(told) => emit(&Shown::all(&*told), form),
    }
}
