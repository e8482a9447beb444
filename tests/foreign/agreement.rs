//! Statistics of agreement as R's irrCAC, statsmodels (SAS), fast-krippendorff, crowd-kit and the papers publish them.

use labelmill::agreement::{AgreementRow, Categories, measure, values};
use labelmill::frame::Annotations;
use labelmill::job_context::rng;
use labelmill::testing::tiny;

/// One row an instance, one column an annotator; a dot is no answer. The labels are digits.
fn ratings(rows: &str) -> (Annotations, Categories) {
    let rows: Vec<Vec<&str>> =
        rows.trim().lines().map(|row| row.split_whitespace().collect()).collect();
    let mut labels: Vec<&str> = rows.concat();
    labels.sort_unstable();
    labels.dedup();
    labels.retain(|label| *label != ".");
    let mut triples = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        for (r, label) in row.iter().enumerate() {
            if let Ok(label) = labels.binary_search(label) {
                triples.push((i as u32, r as u32, label as u32));
            }
        }
    }
    let names: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
    (tiny(labels.len(), &triples), Categories::new(&names, false))
}

/// The answers of two annotators, counted by their labels.
fn table(counts: &[&[usize]]) -> (Annotations, Categories) {
    let mut rows = String::new();
    for (k, row) in counts.iter().enumerate() {
        for (l, n) in row.iter().enumerate() {
            rows.extend(std::iter::repeat_n(format!("{k} {l}\n"), *n));
        }
    }
    ratings(&rows)
}

fn row<'a>(rows: &'a [AgreementRow], name: &str) -> &'a AgreementRow {
    let found = rows.iter().find(|row| row.statistic == name && row.class.is_none());
    found.unwrap_or_else(|| panic!("no {name}"))
}

/// Each statistic rounds to the digits that are published.
#[track_caller]
fn assert_published(
    (a, categories): &(Annotations, Categories),
    published: &[(&str, f64)],
    half: f64,
) {
    let rows = values(a, categories);
    for (name, want) in published {
        let got = row(&rows, name).value.unwrap();
        assert!((got - want).abs() <= half * 1.000_1, "{name}: {got} is not {want}");
    }
}

fn width(rows: &[AgreementRow], name: &str) -> f64 {
    let row = row(rows, name);
    row.high.unwrap() - row.low.unwrap()
}

/// irrCAC 1.0, data set `cac.raw4raters` (Gwet 2014, p. 120), as its Python port's tests have it:
/// github.com/afergadis/irrCAC, `irrCAC/datasets.py` and `test/unit/irrCAC/raw/`; the values without a weight are those
/// of its vignette `overview`.
const FOUR_RATERS: &str = "
1 1 . 1
2 2 3 2
3 3 3 3
3 3 3 3
2 2 2 2
1 2 3 4
4 4 4 4
1 1 2 1
2 2 2 2
. 5 5 5
. . 1 1
. . 3 .";

#[test]
fn irr_cac_four_raters() {
    let data = ratings(FOUR_RATERS);
    let published = [
        ("percent_agreement", 0.818),
        ("gwet_ac1", 0.775),
        ("gwet_ac2_ordinal", 0.899),
        ("gwet_ac2_quadratic", 0.914),
        ("gwet_ac2_linear", 0.859),
        ("krippendorff_nominal", 0.743),
        ("krippendorff_interval", 0.849),
        ("fleiss_kappa", 0.761),
        ("conger_kappa", 0.763),
        ("brennan_prediger", 0.773),
    ];
    assert_published(&data, &published, 0.000_5);
    // The standard error of AC1 is .143 by a linear approximation. Of 12 instances, draws that miss the one where all differ
    // have a value near 1, beyond which there is none.
    let rows = measure(&data.0, &data.1, &mut rng(0, "agreement"), usize::MAX);
    let by_draws = width(&rows, "gwet_ac1") / (2.0 * 1.96);
    assert!((by_draws - 0.143).abs() < 0.03, "{by_draws}");
    assert_eq!(row(&rows, "gwet_ac1").n, 11);
}

/// irrCAC 1.0, data set `cont3x3abstractors` (Gwet 2014): 100 women's pregnancies by two abstractors, as in its README; the
/// values with weights have the three digits of its Python port, `test/unit/irrCAC/table/`.
#[test]
fn irr_cac_two_abstractors() {
    let data = table(&[&[13, 0, 0], &[0, 20, 7], &[0, 4, 56]]);
    let published = [
        ("percent_agreement", 0.89),
        ("cohen_kappa", 0.796_409_4),
        ("conger_kappa", 0.796_409_4),
        ("scott_pi", 0.796_239_7),
        ("fleiss_kappa", 0.796_239_7),
        ("gwet_ac1", 0.849_330_5),
        ("brennan_prediger", 0.835),
        ("krippendorff_nominal", 0.797_258_5),
    ];
    assert_published(&data, &published, 0.000_000_05);
    let weighted = [
        ("cohen_kappa_linear", 0.843),
        ("cohen_kappa_quadratic", 0.892),
        ("gwet_ac2_linear", 0.900),
        ("gwet_ac2_ordinal", 0.925),
        ("gwet_ac2_quadratic", 0.940),
    ];
    assert_published(&data, &weighted, 0.000_5);
}

/// fast-krippendorff 0.8.1: the doctest and tests of `src/krippendorff/krippendorff.py`. The first data are Wikipedia's, the
/// second those of Krippendorff (2011), Computing Krippendorff's Alpha-Reliability.
#[test]
fn fast_krippendorff_doctest() {
    let wikipedia = "
. 1 .
. . .
. 2 2
. 1 1
. 3 3
3 3 4
4 4 4
1 3 .
2 . 2
1 . 1
1 . 1
3 . 3
3 . 3
. . .
3 . 4";
    let published = [("krippendorff_nominal", 0.691_358), ("krippendorff_interval", 0.810_845)];
    assert_published(&ratings(wikipedia), &published, 0.000_000_5);
    let twelve = "
1 1 . 1
2 2 3 2
3 3 3 3
3 3 3 3
2 2 2 2
1 2 3 4
4 4 4 4
1 1 2 1
2 2 2 2
. 5 5 5
. . 1 1
. 3 . .";
    let published = [("krippendorff_ordinal", 0.815), ("krippendorff_ratio", 0.797)];
    assert_published(&ratings(twelve), &published, 0.000_5);
}

/// Hayes and Krippendorff (2007), doi:10.1080/19312450709336664, table 1 and the output of KALPHA; the data as in
/// github.com/jucor/krippendorff, `data-raw/hayes2007table1.csv`.
#[test]
fn hayes_and_krippendorff_2007() {
    let tone = "
1 1 2 . 2
1 1 0 1 .
2 3 3 3 .
. 0 0 . 0
0 0 0 . 0
0 0 0 . 0
1 0 2 . 1
1 . 2 0 .
2 2 2 . 2
2 1 1 1 .
. 1 0 0 .
0 0 0 0 .
1 2 2 2 .
3 3 2 2 3
1 1 1 . 1
1 1 1 . 1
2 1 2 . 2
1 2 3 3 .
1 1 0 1 .
0 0 0 . 0
0 0 1 1 .
0 0 . 0 0
2 3 3 3 .
0 0 0 0 .
1 2 . 2 2
0 1 1 1 .
0 0 0 1 0
1 2 1 2 .
1 1 2 2 .
1 1 2 . 2
1 1 0 . 0
2 1 2 1 .
2 2 . 2 2
3 2 2 2 .
2 2 2 . 2
2 2 3 . 2
2 2 2 . 2
2 2 . 1 2
2 2 2 2 .
1 1 1 . 1";
    assert_published(&ratings(tone), &[("krippendorff_ordinal", 0.7598)], 0.000_05);
}

/// Fleiss (1971), doi:10.1037/h0031619: the diagnoses of 30 patients by six psychiatrists, as in statsmodels 0.14,
/// `stats/tests/test_inter_rater.py`, where R's irr gives .4302445. The kappas of the classes are the paper's, which computes
/// them from shares with two digits: dkpro-statistics, `CategoryAgreementTest.java`, allows .005 as well.
#[test]
fn fleiss_1971() {
    let rows = "
444444 222555 233335 555555 222444 113333 333355 113334 114444 555555
144444 124444 222333 144444 224445 333335 111455 111112 224444 133555
555555 244444 224555 114444 144445 222224 111155 224444 133333 555555";
    let spread = |row: &str| row.chars().map(|c| format!("{c} ")).collect::<String>();
    let rows: Vec<String> = rows.split_whitespace().map(spread).collect();
    let data = ratings(&rows.join("\n"));
    assert_published(&data, &[("fleiss_kappa", 0.430_244_5)], 0.000_000_05);
    let by_class = values(&data.0, &data.1);
    let by_class: Vec<f64> =
        by_class.iter().filter(|row| row.class.is_some()).filter_map(|row| row.value).collect();
    // Depression, personality disorder, schizophrenia, neurosis, other.
    let published = [0.248, 0.248, 0.517, 0.470, 0.565];
    assert_eq!(by_class.len(), 5);
    for (got, want) in by_class.iter().zip(published) {
        assert!((got - want).abs() < 0.005, "{by_class:?}");
    }
}

/// Artstein and Poesio (2008), doi:10.1162/coli.07-034-R2, tables 1 and 4: 100 dialogue acts, two coders.
#[test]
fn artstein_and_poesio_2008() {
    let published = [("brennan_prediger", 0.4), ("scott_pi", 0.341), ("cohen_kappa", 0.348)];
    assert_published(&table(&[&[20, 20], &[10, 50]]), &published, 0.000_5);
}

/// SAS's FREQ, as statsmodels 0.14 has it in `stats/tests/test_inter_rater.py`: the kappas, and limits by their asymptotic
/// standard errors.
#[test]
fn sas_kappa_of_statsmodels() {
    let data = table(&[&[0, 4, 1], &[0, 8, 0], &[0, 1, 5]]);
    let published = [("cohen_kappa", 0.4842), ("cohen_kappa_linear", 0.4701)];
    assert_published(&data, &published, 0.000_05);
    let rows = measure(&data.0, &data.1, &mut rng(0, "agreement"), usize::MAX);
    let [simple, linear] = published.map(|(name, _)| row(&rows, name).clone());
    for (row, low, high) in [(simple, 0.2137, 0.7547), (linear, 0.1845, 0.7558)] {
        assert!((row.low.unwrap() - low).abs() < 0.08, "{row:?}");
        assert!((row.high.unwrap() - high).abs() < 0.08, "{row:?}");
    }
}

/// crowd-kit 1.0, `alpha_krippendorff` of its toy data, as in `tests/metrics/`.
#[test]
fn crowd_kit_toy_alpha() {
    let data = ratings(
        "no yes . yes no\nyes yes yes no no\nyes no no yes no\nyes yes yes yes yes\nyes no no no no",
    );
    assert_published(&data, &[("krippendorff_nominal", 0.142_191_142_191)], 1e-12);
}
