//! Class shares of the anaesthesia data, as R's package rater estimates them.

use crate::support::{assert_close, number, read_table, run_ok, temporary_folder};

/// github.com/jeffreypullin/rater at b5fc3ad (1.2.0), `README.md`: the means of `pi` by MCMC, with Dirichlet priors: 3 for each
/// class, and for a row of a matrix 4.8 for the right label and 3.2 among the others. Its site has .375, .406, .143 and .075,
/// from other draws.
const PI: [f64; 4] = [0.375_860_40, 0.406_546_49, 0.143_371_54, 0.074_221_56];

/// `ibcc` with the same priors finds its means by variational Bayes, which is too sure of the classes: they differ by less
/// than half of one of the 45 patients. Other priors move a patient or two, and class 2 between .40 and .45.
#[test]
fn rater_anaesthesia() {
    let same: &[&str] =
        &["model.prior_class=3", "model.prior_diagonal=4.8", "model.prior_off_diagonal=1.066667"];
    for (kind, settings, patients) in
        [("ibcc", same, 0.5), ("ibcc", &[][..], 2.0), ("dawid_skene", &[][..], 2.0)]
    {
        let folder = temporary_folder();
        let url = folder.path().display().to_string();
        let data = "pipelines/data/anaesthesia.csv";
        let mut arguments = vec!["aggregate", "--annotations", data, "--output", &url, "-q"];
        arguments.extend(["--model", kind]);
        let columns = [
            "source.columns.instance=patient",
            "source.columns.annotator=observer",
            "source.columns.label=fitness",
            "frame.duplicates=keep",
        ];
        arguments.extend(columns.iter().chain(settings).flat_map(|setting| ["--set", setting]));
        run_ok(&arguments);
        let classes = read_table(&folder.path().join("latest"), "classes");
        let prior: Vec<f64> = classes.iter().map(|row| number(row, "prior")).collect();
        assert_close(&prior, &PI, patients / 45.0, &format!("{kind} {settings:?}"));
        assert!((0.35..0.45).contains(&prior[1]), "class 2: {prior:?}");
    }
}
