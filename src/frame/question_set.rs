//! Several questions as one crowd, for a model that fits all of them at once.
//!
//! ```text
//! instances   those of the first question, then those of the second, ...: each has its own class
//! annotators  each once, whatever questions they answer
//! classes     as many as the question with the most has; the others' are the first of them
//! labels      the classes, then the labels that are no classes
//! ```

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};

use super::annotations::joint::{Joint, JointQuestion};
use super::annotations::{AnnotationRows, Annotations, Dims, Duplicates};
use super::evidence::{Evidence, QuestionFeatures};
use super::ids::{Ids, Interner};
use crate::error::{Error, Result};
use crate::frame::gold::Gold;
use crate::frame::question_frame::Frame;

/// What was observed of several questions, with numbers of instances and annotators that hold for all of them.
pub struct QuestionSet<'a> {
    /// The observations of each question, by its own numbers.
    pub evidence: Vec<Evidence<'a>>,
    /// The number of each question's instances among those of all questions: an id has one number.
    pub instances: Vec<Vec<u32>>,
    /// The number of each question's annotators among those of all questions.
    pub annotators: Vec<Vec<u32>>,
}

impl<'a> QuestionSet<'a> {
    /// The questions of these frames.
    ///
    /// # Errors
    /// When ids of one question cannot be compared with those of another.
    pub fn of_frames(frames: &'a [Frame]) -> Result<Self> {
        let numbers = |ids: fn(&Frame) -> &Ids| shared_numbers(frames.iter().map(ids).collect());
        Ok(Self {
            evidence: frames.iter().map(Frame::evidence).collect(),
            instances: numbers(|frame| &frame.instances)?,
            annotators: numbers(|frame| &frame.annotators)?,
        })
    }

    /// All questions as one crowd. Its features have no gold, which is of a question.
    ///
    /// # Errors
    /// A bug, if annotations repeat themselves.
    pub fn join(&self) -> Result<(Annotations, Option<QuestionFeatures>)> {
        let of = |n: fn(Dims) -> usize| self.evidence.iter().map(move |e| n(e.annotations.dims()));
        let classes = of(|dims| dims.classes).max().unwrap_or_default();
        let extra = of(|dims| dims.labels - dims.classes).max().unwrap_or_default();
        let questions: Vec<JointQuestion> = of(|dims| dims.classes)
            .zip(of(|dims| dims.labels))
            .enumerate()
            .map(|(index, (classes, labels))| JointQuestion { index, classes, labels })
            .collect();
        let (mut rows, mut offsets) = (AnnotationRows::default(), vec![0]);
        let mut trusted = Vec::new();
        for ((question, evidence), annotators) in
            questions.iter().zip(&self.evidence).zip(&self.annotators)
        {
            let (a, first) = (evidence.annotations, trusted.len());
            for i in 0..a.dims().instances {
                trusted.push(a.trusted_class(i));
                for (annotator, label, weight) in a.triples_of_instance(i) {
                    rows.instance.push((first + i) as u32);
                    rows.annotator.push(annotators[annotator as usize]);
                    rows.label.push(question.joint_label(label as usize, classes) as u32);
                    rows.weight.push(weight);
                }
            }
            offsets.push(trusted.len());
        }
        let dims = Dims {
            instances: trusted.len(),
            annotators: count_of(&self.annotators),
            classes,
            labels: classes + extra,
        };
        let joint = Joint {
            questions,
            offsets,
            shared: self.instances.concat(),
            n_shared: count_of(&self.instances),
        };
        let repeated = |_| Error::bug("resolved annotations repeat themselves");
        let mut a = Annotations::build(dims, rows, Duplicates::Keep).map_err(repeated)?;
        a.trusted = trusted.iter().any(Option::is_some).then_some(trusted);
        a.joint = Some(Arc::new(joint));
        Ok((a, self.with_features(dims.annotators)))
    }

    /// The features of all questions; `None` where one has none.
    fn with_features(&self, n_annotators: usize) -> Option<QuestionFeatures> {
        let all: Vec<&QuestionFeatures> =
            self.evidence.iter().map(|e| e.with_features).collect::<Option<_>>()?;
        let rows_of_annotators = || {
            let mut rows = vec![None; n_annotators];
            for (with_features, numbers) in all.iter().zip(&self.annotators) {
                let own = with_features.annotators.iter().flat_map(|(_, rows)| rows);
                own.zip(numbers).for_each(|(row, n)| rows[*n as usize] = *row);
            }
            rows
        };
        let first = all.first()?;
        Some(QuestionFeatures {
            features: first.features.clone(),
            row_of_instance: all.iter().flat_map(|d| &d.row_of_instance).copied().collect(),
            gold: Vec::new(),
            annotators: first.annotators.as_ref().map(|(f, _)| (f.clone(), rows_of_annotators())),
        })
    }

    /// The gold of each question's features, with the question.
    pub fn gold(&self) -> impl Iterator<Item = (JointQuestion, &Gold)> {
        self.evidence.iter().enumerate().flat_map(|(index, evidence)| {
            let Dims { classes, labels, .. } = evidence.annotations.dims();
            let question = JointQuestion { index, classes, labels };
            evidence.with_features.iter().flat_map(|d| &d.gold).map(move |gold| (question, gold))
        })
    }
}

/// How many numbers there are, from 0 to the largest.
fn count_of(numbers: &[Vec<u32>]) -> usize {
    numbers.iter().flatten().max().map_or(0, |most| *most as usize + 1)
}

/// A number for each distinct id, in the order in which the lists have them.
fn shared_numbers(lists: Vec<&Ids>) -> Result<Vec<Vec<u32>>> {
    let mut types = lists.iter().map(|ids| ids.values().data_type());
    let first = types.next().cloned().unwrap_or(DataType::Null);
    // Text of one question may have become integers, where all of it could.
    let data_type = if types.all(|other| *other == first) { first } else { DataType::Utf8 };
    let mut interner = Interner::new(&Field::new("id", data_type.clone(), true));
    let number = |ids: &Ids| -> Result<Vec<u32>> {
        let (values, mut numbers): (ArrayRef, _) = (cast(ids.values(), &data_type)?, Vec::new());
        interner.intern(&values, &mut numbers)?;
        Ok(numbers)
    };
    lists.into_iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};

    use super::*;
    use crate::testing::{frame_of, tiny};

    fn texts(values: &[&str]) -> Ids {
        Ids::in_order(Arc::new(StringArray::from(values.to_vec())))
    }

    /// Two questions: of two classes and a label that is no class, and of three classes. Instance `b` and annotator `s`
    /// are in both.
    fn frames() -> Vec<Frame> {
        let one = tiny(2, &[(0, 0, 0), (1, 1, 2)]);
        let mut two = tiny(3, &[(0, 0, 2), (1, 1, 0), (1, 0, 1)]);
        two.trusted = Some(vec![None, Some(1)]);
        let labels = texts(&["0", "1", "2"]);
        vec![
            frame_of([texts(&["a", "b"]), texts(&["r", "s"]), labels.clone()], one),
            frame_of([texts(&["b", "c"]), texts(&["s", "t"]), labels], two),
        ]
    }

    #[test]
    fn questions_share_annotators_and_ids_but_no_classes() {
        let frames = frames();
        let questions = QuestionSet::of_frames(&frames).unwrap();
        assert_eq!(questions.instances, [[0, 1], [1, 2]]);
        assert_eq!(questions.annotators, [[0, 1], [1, 2]]);
        let (a, with_features) = questions.join().unwrap();
        assert!(with_features.is_none());
        assert_eq!(a.dims(), Dims { instances: 4, annotators: 3, classes: 3, labels: 4 });
        let of = |i| a.triples_of_instance(i).map(|(r, l, _)| (r, l)).collect::<Vec<_>>();
        // The label that is no class comes after the classes of the other question.
        assert_eq!([of(0), of(1), of(2)].concat(), [(0, 0), (1, 3), (1, 2)]);
        assert_eq!(of(3), [(1, 1), (2, 0)]);
        assert_eq!(a.trusted, Some(vec![None, None, None, Some(1)]));
        let joint = a.joint.as_ref().unwrap();
        assert_eq!((&joint.shared, joint.n_shared), (&vec![0, 1, 1, 2], 3));
        let of = |i| joint.question_of(i).index;
        assert_eq!([0, 1, 2, 3].map(of), [0, 0, 1, 1]);
        let [one, two] = [joint.questions[0], joint.questions[1]];
        assert_eq!([0, 1, 2, 3].map(|l| one.own_label(l, 3)), [Some(0), Some(1), None, Some(2)]);
        assert_eq!([0, 1, 2, 3].map(|l| two.own_label(l, 3)), [Some(0), Some(1), Some(2), None]);
        for part in a.split(&[true, false, true, false, true]).unwrap() {
            assert_eq!(part.joint, a.joint);
        }
    }

    #[test]
    fn ids_of_several_types_are_compared_as_text() {
        let numbers = Ids::in_order(Arc::new(Int64Array::from(vec![7, 8])));
        let got = shared_numbers(vec![&numbers, &texts(&["8", "x"])]).unwrap();
        assert_eq!(got, [[0, 1], [1, 2]]);
    }
}
