//! Losses in tensors, whose derivatives candle computes: for a model whose derivatives nobody should write by hand.
//!
//! # Why
//! A loss costs a graph of tensors for each batch, in `f64` on the host whatever device the networks are on, as everything
//! about annotators. `max_mig` on LabelMe (130 epochs, 2 cores) took 1.48 s with derivatives written by hand and takes 1.60
//! s, to the same bits, with half as much code; where annotators have large matrices, or an instance many annotations, the
//! copies of both cost more, and the losses of those models stay written by hand.

use candle_core::{Device, Result as CandleResult, Tensor, Var, backprop::GradStore};

use super::batch_context::{BatchContext, Gradient};
use crate::error::Result;
use crate::model::neural::device::from_candle;
use crate::model::neural::net::heads::Outputs;
use crate::model::neural::params::param_table::ParamTable;

/// The loss of a batch as a function of tensors.
pub trait TensorObjective {
    /// The loss, a scalar; it depends on `variables` where it has derivatives, and on `context` for all else.
    ///
    /// # Errors
    /// When tensors do not fit each other.
    fn tensor_loss(
        &self,
        context: &BatchContext<'_>,
        variables: &BatchVariables,
    ) -> CandleResult<Tensor>;
}

/// The networks' outputs for a batch, and the parameters of its annotators, as variables.
pub struct BatchVariables {
    /// The outputs of the classifier.
    pub out: OutputVariables,
    /// Those of the other learners, in the order in which the model names them.
    pub others: Vec<OutputVariables>,
    /// The rows of each table, `[annotator of the batch, width]`; `[1, width]` for a table of the whole model.
    pub tables: Vec<Var>,
}

/// The outputs of a network, `[row, width]`; an output that the model does not read has the width 0.
pub struct OutputVariables {
    /// The logits, `[row, class]`.
    pub logits: Var,
    /// The softmax of the logits, `[row, class]`. A derivative with respect to it is propagated to the logits afterwards.
    pub p: Var,
    /// The last hidden layer.
    pub hidden: Var,
    /// The named heads.
    pub named: Vec<Var>,
}

/// The loss of a batch; adds its derivatives to `gradient`.
///
/// # Errors
/// When tensors do not fit each other.
pub(in crate::model::neural) fn loss_by_tensors(
    model: &impl TensorObjective,
    context: &BatchContext<'_>,
    gradient: &mut Gradient,
) -> Result<f64> {
    from_candle((|| {
        let variables = BatchVariables::new(context)?;
        let loss = model.tensor_loss(context, &variables)?;
        let of_loss = loss.backward()?;
        variables.out.add(&of_loss, &mut gradient.out)?;
        for (variables, gradient) in variables.others.iter().zip(&mut gradient.others) {
            variables.add(&of_loss, gradient)?;
        }
        for (table, gradient) in variables.tables.iter().zip(&mut gradient.tables) {
            add(&of_loss, table, gradient)?;
        }
        loss.to_scalar()
    })())
}

impl BatchVariables {
    fn new(context: &BatchContext<'_>) -> CandleResult<Self> {
        let tables = context.gathered.iter().zip(&context.annotator_params.tables);
        let table = |(values, table): (&Vec<f64>, &ParamTable)| {
            variable(values, values.len() / table.width.max(1))
        };
        Ok(Self {
            out: OutputVariables::new(context.out)?,
            others: context.others.iter().map(OutputVariables::new).collect::<CandleResult<_>>()?,
            tables: tables.map(table).collect::<CandleResult<_>>()?,
        })
    }
}

impl OutputVariables {
    fn new(out: &Outputs) -> CandleResult<Self> {
        let of_rows = |values: &Vec<f64>| variable(values, out.rows);
        Ok(Self {
            logits: of_rows(&out.logits)?,
            p: of_rows(&out.p)?,
            hidden: of_rows(&out.hidden)?,
            named: out.named.iter().map(of_rows).collect::<CandleResult<_>>()?,
        })
    }

    fn add(&self, of_loss: &GradStore, to: &mut Outputs) -> CandleResult<()> {
        add(of_loss, &self.logits, &mut to.logits)?;
        add(of_loss, &self.p, &mut to.p)?;
        add(of_loss, &self.hidden, &mut to.hidden)?;
        self.named.iter().zip(&mut to.named).try_for_each(|(head, to)| add(of_loss, head, to))
    }
}

/// A variable `[row, width]` with these values.
fn variable(values: &[f64], rows: usize) -> CandleResult<Var> {
    Var::from_slice(values, (rows, values.len() / rows.max(1)), &Device::Cpu)
}

/// Adds the derivative with respect to a variable, where the loss depends on it.
fn add(of_loss: &GradStore, variable: &Var, to: &mut [f64]) -> CandleResult<()> {
    let Some(derivative) = of_loss.get(variable) else { return Ok(()) };
    let derivative = derivative.flatten_all()?.to_vec1::<f64>()?;
    to.iter_mut().zip(derivative).for_each(|(to, d)| *to += d);
    Ok(())
}
