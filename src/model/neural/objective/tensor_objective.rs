//! Losses in tensors, whose derivatives candle computes: for a model whose derivatives nobody should write by hand.
//!
//! # Why
//! A loss costs a graph of tensors for each batch, in `f64` on the host whatever device the networks are on, as everything
//! about annotators. That is little beside a network (`benches/networks.md` measures `max_mig` both ways), and saves pages of
//! derivatives. Losses over large matrices of many annotators stay written by hand: each tensor is another copy.

use candle_core::{Device, Result as CandleResult, Tensor, Var, backprop::GradStore};

use super::batch_context::{BatchContext, Gradient};
use crate::error::{Error, Result};
use crate::model::neural::net::heads::Outputs;
use crate::model::neural::params::param_table::ParamTable;

/// The loss of a batch as a function of tensors.
pub trait TensorObjective {
    /// The loss, a scalar; it depends on `variables` where it has derivatives, and on `context` for all else.
    ///
    /// # Errors
    /// A bug, when tensors do not fit each other.
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
    /// The rows of each table, `[row, width]`: one for each annotator or instance of the batch, or one of the whole model. A
    /// fixed table is no variable.
    pub tables: Vec<Tensor>,
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
/// A bug, when tensors do not fit each other.
pub(in crate::model::neural) fn loss_by_tensors(
    model: &impl TensorObjective,
    context: &BatchContext<'_>,
    gradient: &mut Gradient,
) -> Result<f64> {
    differentiate(model, context, gradient)
        .map_err(|e| Error::bug("the tensors of a loss do not fit each other").found(e.to_string()))
}

fn differentiate(
    model: &impl TensorObjective,
    context: &BatchContext<'_>,
    gradient: &mut Gradient,
) -> CandleResult<f64> {
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
}

impl BatchVariables {
    fn new(context: &BatchContext<'_>) -> CandleResult<Self> {
        let tables = context.gathered.iter().zip(&context.annotator_params.tables);
        let table = |(values, table): (&Vec<f64>, &ParamTable)| {
            let rows = variable(values, values.len() / table.width.max(1), table.width)?;
            Ok(if table.is_fixed { rows.as_detached_tensor() } else { rows.into_inner() })
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
        let of_rows =
            |values: &Vec<f64>| variable(values, out.rows, values.len() / out.rows.max(1));
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
fn variable(values: &[f64], rows: usize, width: usize) -> CandleResult<Var> {
    Var::from_slice(values, (rows, width), &Device::Cpu)
}

/// Adds the derivative with respect to a variable, where the loss depends on it.
fn add(of_loss: &GradStore, variable: &Tensor, to: &mut [f64]) -> CandleResult<()> {
    let Some(derivative) = of_loss.get(variable) else { return Ok(()) };
    let derivative = derivative.flatten_all()?.to_vec1::<f64>()?;
    to.iter_mut().zip(derivative).for_each(|(to, d)| *to += d);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Dims;
    use crate::model::neural::data::batch::Batch;
    use crate::model::neural::objective::train_spec::Reduction;
    use crate::model::neural::objective::train_state::Estimates;
    use crate::model::neural::params::annotator_params::AnnotatorParams;

    /// The sum of the products of every number with its position, and of the squares of one table.
    struct ByPosition;

    impl TensorObjective for ByPosition {
        fn tensor_loss(&self, _: &BatchContext<'_>, x: &BatchVariables) -> CandleResult<Tensor> {
            let other = &x.others[0];
            let linear =
                [&x.out.logits, &x.out.p, &x.out.hidden, &x.out.named[0], &other.p, &other.logits];
            let mut loss = x.tables[0].sqr()?.sum_all()?;
            for numbers in linear.map(Var::as_tensor).into_iter().chain([&x.tables[1]]) {
                let positions = Tensor::arange(0.0, numbers.elem_count() as f64, &Device::Cpu)?;
                loss = (loss + (numbers.flatten_all()? * positions)?.sum_all()?)?;
            }
            Ok(loss)
        }
    }

    /// Each derivative is a position, or twice the parameter; a fixed table and an empty output have none.
    #[test]
    fn every_variable_gets_its_own_derivatives() {
        let of = |logits: &[f64], hidden: &[f64], named: &[f64]| Outputs {
            rows: 2,
            logits: logits.to_vec(),
            p: logits.to_vec(),
            hidden: hidden.to_vec(),
            named: vec![named.to_vec()],
            ..Outputs::default()
        };
        let out = of(&[1.0, 2.0, 3.0, 4.0], &[0.5; 6], &[7.0, 8.0]);
        let others = [of(&[0.0, 1.0], &[], &[])];
        let gathered = vec![vec![3.0, -1.0, 2.0, 0.5], vec![1.0; 3]];
        let annotator_params = AnnotatorParams {
            tables: vec![
                ParamTable::each("squared", 2, &[0.0; 2]),
                ParamTable::of_model("fixed", vec![0.0; 3]).fixed(),
            ],
        };
        let context = BatchContext {
            phase: "",
            batch: &Batch::default(),
            out: &out,
            others: &others,
            gathered: &gathered,
            annotator_params: &annotator_params,
            estimates: &Estimates::default(),
            reduction: Reduction::Sum,
            dims: Dims { instances: 2, annotators: 2, classes: 2, labels: 2 },
        };
        let mut gradient = Gradient {
            out: out.zeros_like(),
            others: others.iter().map(Outputs::zeros_like).collect(),
            tables: gathered.iter().map(|rows| vec![0.0; rows.len()]).collect(),
        };
        // What is there already stays.
        gradient.out.p[1] = 10.0;
        let loss = loss_by_tensors(&ByPosition, &context, &mut gradient).unwrap();
        assert_eq!(loss, 14.25 + 2.0 * 20.0 + 7.5 + 8.0 + 2.0 + 3.0);
        let positions = |n: u32| (0..n).map(f64::from).collect::<Vec<_>>();
        assert_eq!(gradient.out.logits, positions(4));
        assert_eq!(gradient.out.p, [0.0, 11.0, 2.0, 3.0]);
        assert_eq!(
            (gradient.out.hidden, gradient.out.named[0].clone()),
            (positions(6), positions(2))
        );
        assert_eq!(
            (&gradient.others[0].p, &gradient.others[0].logits),
            (&positions(2), &positions(2))
        );
        assert_eq!(gradient.tables, [vec![6.0, -2.0, 4.0, 1.0], vec![0.0; 3]]);
    }
}
