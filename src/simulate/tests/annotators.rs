//! Types of annotators: their confusion matrices and their syntax.

use super::{assert_near, assert_rows, matrix};
use crate::job_context::JobContext;
use crate::simulate::annotators::{AnnotatorType, Dependence};
use crate::simulate::grammar::{annotator_id, crowd, kind, links};

#[test]
fn every_type_of_fixed_matrix_is_the_one_worked_out_by_hand() {
    assert_rows(
        &matrix("symmetric(0.4)", 3, 0),
        &[&[0.6, 0.2, 0.2], &[0.2, 0.6, 0.2], &[0.2, 0.2, 0.6]],
    );
    assert_rows(
        &matrix("pair(0.45)", 3, 0),
        &[&[0.55, 0.45, 0.0], &[0.0, 0.55, 0.45], &[0.45, 0.0, 0.55]],
    );
    assert_rows(
        &matrix("pair(0.45 0>2)", 3, 0),
        &[&[0.55, 0.0, 0.45], &[0.0, 0.55, 0.45], &[0.45, 0.0, 0.55]],
    );
    assert_rows(
        &matrix("class-wise(0 2)", 4, 0),
        &[&[1.0, 0.0, 0.0, 0.0], &[0.25; 4], &[0.0, 0.0, 1.0, 0.0], &[0.25; 4]],
    );
    assert_rows(&matrix("hammer-spammer(0.4)", 2, 0), &[&[0.7, 0.3], &[0.3, 0.7]]);
    assert_rows(
        &matrix("neighbour-confuser(0.5)", 4, 0),
        &[
            &[0.5, 0.25, 0.0, 0.25],
            &[0.25, 0.5, 0.25, 0.0],
            &[0.0, 0.25, 0.5, 0.25],
            &[0.25, 0.0, 0.25, 0.5],
        ],
    );
    assert_rows(&matrix("neighbour-confuser(0.5)", 2, 0), &[&[0.5, 0.5], &[0.5, 0.5]]);
    assert_rows(
        &matrix("similar-pair(0.6 0-2 1-3)", 4, 0),
        &[
            &[0.6, 0.0, 0.4, 0.0],
            &[0.0, 0.6, 0.0, 0.4],
            &[0.4, 0.0, 0.6, 0.0],
            &[0.0, 0.4, 0.0, 0.6],
        ],
    );
    assert_rows(
        &matrix("confuser(0 2>0)", 3, 0),
        &[&[1.0, 0.0, 0.0], &[0.0, 1.0, 0.0], &[1.0, 0.0, 0.0]],
    );
    assert_rows(
        &matrix("adversarial(0.24)", 4, 0),
        &[
            &[0.24, 0.0, 0.76, 0.0],
            &[0.0, 0.24, 0.0, 0.76],
            &[0.76, 0.0, 0.24, 0.0],
            &[0.0, 0.76, 0.0, 0.24],
        ],
    );
    // The largest number of places is 3 more than a multiple of 4.
    assert_rows(
        &matrix("adversarial(0.3 18446744073709551615)", 4, 0),
        &[
            &[0.3, 0.0, 0.0, 0.7],
            &[0.7, 0.3, 0.0, 0.0],
            &[0.0, 0.7, 0.3, 0.0],
            &[0.0, 0.0, 0.7, 0.3],
        ],
    );
    assert_rows(
        &matrix("adversarial(0.4 0>2 2>1 1>0)", 3, 0),
        &[&[0.4, 0.0, 0.6], &[0.6, 0.4, 0.0], &[0.0, 0.6, 0.4]],
    );
    assert_rows(&matrix("right", 2, 0), &[&[1.0, 0.0], &[0.0, 1.0]]);
    assert_rows(&matrix("wrong", 3, 0), &[&[0.0, 0.5, 0.5], &[0.5, 0.0, 0.5], &[0.5, 0.5, 0.0]]);
    assert_rows(&matrix("random", 2, 0), &[&[0.5, 0.5], &[0.5, 0.5]]);
    assert_rows(&matrix("constant(1)", 2, 0), &[&[0.0, 1.0], &[0.0, 1.0]]);
    let naive = kind("naive-majority").unwrap();
    let naive =
        naive.confusion(&[0.2, 0.5, 0.3], &mut JobContext::new(0).rng("test")).unwrap().unwrap();
    assert_rows(&naive, &[&[0.0, 1.0, 0.0], &[0.0, 1.0, 0.0], &[0.0, 1.0, 0.0]]);
}

#[test]
fn drawn_matrices_have_the_rows_that_their_type_allows() {
    for seed in 0..20 {
        let flipper = matrix("pairwise-flipper(0.3)", 5, seed);
        for k in 0..5 {
            let others: Vec<f64> = flipper
                .row(k)
                .iter()
                .copied()
                .filter(|p| *p > 0.0 && (*p - 0.3).abs() > 1e-9)
                .collect();
            assert_eq!((flipper.right(k), others.as_slice()), (0.3, &[0.7][..]));
        }
        let hammer = matrix("hammer-or-spammer(0.5)", 4, seed);
        // Uniform plus 0.01 on the diagonal, divided by 1.01.
        let spam = [(0.26 / 1.01), (0.25 / 1.01)];
        assert!(hammer.right(0) == 1.0 || (hammer.right(0) - spam[0]).abs() < 1e-12);
        assert!(hammer.row(0)[1] == 0.0 || (hammer.row(0)[1] - spam[1]).abs() < 1e-12);
        assert_eq!(hammer.right(0), hammer.right(3));
        let by_class = matrix("class-wise-hammer-spammer(0.5)", 4, seed);
        for k in 0..4 {
            // A spammer's diagonal weighs 1.1 to 1.11 among ones.
            let spam = by_class.right(k) / by_class.row(k)[(k + 1) % 4];
            assert!(by_class.right(k) == 1.0 || (1.1..1.11).contains(&spam), "{spam}");
        }
        for classes in [6, 7] {
            let pairs = matrix("similar-pair(0.4)", classes, seed);
            let target = |k: usize| (0..classes).find(|l| (pairs.row(k)[*l] - 0.6).abs() < 1e-9);
            let back = (0..classes).filter(|k| target(target(*k).unwrap()) == Some(*k)).count();
            // Of seven classes, three form a cycle.
            assert_eq!(back, if classes == 6 { 6 } else { 4 });
        }
    }
    assert_ne!(matrix("pairwise-flipper(0.3)", 9, 1), matrix("pairwise-flipper(0.3)", 9, 2));
}

#[test]
fn rows_sum_to_one_and_the_expected_accuracy_is_the_stated_one() {
    let q = [0.1; 10];
    let stated = [
        ("symmetric(0.8)", 0.2),
        ("pair(0.45)", 0.55),
        ("class-wise(7 8 9)", (3.0 + 7.0 / 10.0) / 10.0),
        ("hammer-spammer(0.4)", 0.4 + 0.6 / 10.0),
        ("pairwise-flipper(0.3)", 0.3),
        ("neighbour-confuser(0.5)", 0.5),
        ("similar-pair(0.6)", 0.6),
        ("adversarial(0.24)", 0.24),
        ("right", 1.0),
        ("wrong", 0.0),
        ("random", 0.1),
        ("constant(3)", 0.1),
        ("naive-majority", 0.1),
    ];
    for (word, accuracy) in stated {
        let confusion = matrix(word, 10, 3);
        for k in 0..10 {
            assert_near(confusion.row(k).iter().sum(), 1.0, 1e-12);
        }
        assert_near(confusion.accuracy(&q), accuracy, 1e-12);
    }
    let hammers = |word: &str| {
        let of_seed = |seed| matrix(word, 10, seed).accuracy(&q);
        (0..400).map(of_seed).sum::<f64>() / 400.0
    };
    // p + (1 - p) / C, plus the small weight on a spammer's diagonal; 0.02 is one standard error of 400 draws.
    assert_near(hammers("hammer-or-spammer(0.2)"), 0.28, 0.06);
    assert_near(hammers("class-wise-hammer-spammer(0.2)"), 0.28, 0.03);
}

#[test]
fn followers_expect_what_their_reference_does() {
    let of = matrix("symmetric(0.45)", 4, 0);
    assert_eq!(Dependence::Imitative.confusion(&of), of);
    assert_near(Dependence::Supportive.confusion(&of).accuracy(&[0.25; 4]), 0.55, 1e-12);
    assert_near(Dependence::Opposite.confusion(&of).accuracy(&[0.25; 4]), 0.45, 1e-12);
}

#[test]
fn words_are_read_as_they_are_written() {
    let words = "symmetric(0.8), pair(0.45 0>2), class-wise(7 8 9), hammer-spammer(0.4), similar-pair(0.6 3>5 5>3), \
                 adversarial(0.24 5), adversarial(0.24 0>1 1>0), constant(2), right, opposite(a01)";
    let groups = crowd(words).unwrap();
    let written: Vec<String> = groups.iter().map(|(_, kind)| kind.text(9)).collect();
    assert_eq!(written.join(", "), words);
    assert_eq!(crowd("10*right").unwrap(), [(10, AnnotatorType::Right)]);
    assert_eq!(
        kind("similar-pair(0.6 3-5)").unwrap(),
        AnnotatorType::SimilarPair(0.6, vec![(3, 5), (5, 3)])
    );
    let error = |word: &str| crowd(word).unwrap_err().to_string();
    assert!(error("symetric(0.8)").contains("did you mean `symmetric`?"));
    assert!(error("symmetric").contains("a chance from 0 to 1 is missing"));
    assert!(error("symmetric(1.5)").contains("`1.5` is not a chance from 0 to 1"));
    assert!(error("symmetric(0.5 0.5)").contains("one word too many"));
    assert!(error("0*right").contains("needs a number of annotators"));
    assert!(error("imitative(b)").contains("`b` is not an annotator such as a00"));
    assert!(error("pair(0.4 3+4)").contains("is not a link"));
    assert!(error("right(").contains("no closing bracket"));
    assert!(error("adversarial(0.5 3 4)").contains("one word too many"));
    assert!(error("confuser(0.5)").contains("a link such as 3>5 or 3-5 is missing"));
    for word in ["pair", "similar-pair", "confuser", "adversarial"] {
        let itself = error(&format!("{word}(0.5 1>2 3>3)"));
        assert!(itself.contains("class 3 is linked to itself"), "{itself}");
        assert!(itself.contains(&format!("write {word}(")), "{itself}");
        let twice = error(&format!("{word}(0.5 3>1 2-3)"));
        assert!(twice.contains("class 3 is linked twice"), "{twice}");
    }
    assert!(links("3-5 4-4").unwrap_err().to_string().contains("class 4 is linked to itself"));
}

#[test]
fn an_id_has_the_digits_that_its_crowd_needs() {
    let follower = kind("imitative(a7)").unwrap();
    let texts = [8, 100, 101, 1001].map(|annotators| follower.text(annotators));
    let written = ["imitative(a07)", "imitative(a07)", "imitative(a007)", "imitative(a0007)"];
    assert_eq!(texts, written);
    assert_eq!(annotator_id(7, 1001), "a0007");
}
